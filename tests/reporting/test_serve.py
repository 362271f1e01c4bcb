"""The server that shows a sweep: answers, refused requests, and the page in a browser."""

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.request

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.basics.atomic_io import write_lock
from recombine.basics.console import duration
from recombine.basics.errors import InputError
from recombine.reporting import serve
from recombine.storage.status import Status
from recombine.storage.table import Table
from tests.tiny import TINY

RUNS = rc.sweep(TINY, model__widths=[(8, 8), (12, 12)], seed=range(2))
EVIL = "</script><script>alert('x')</script><img src=x onerror=alert(1)>"
EXPERIMENT = """
from pathlib import Path
from recombine.reporting import figure

def runs(scale): ...

def figures(rows):
    with Path(__file__).with_suffix(".log").open("a") as log:
        log.write(f"{len(rows)}\\n")
    first = rows[rows["model.widths"] == "12x12"].iloc[0]
    titles = {"x_title": "step", "y_title": "R²"}
    return {
        part: figure.lines(rows, "step", f"{part}/r2", "model.widths", title=part, **titles)
        for part in ("seen", "test")
    }
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> pd.DataFrame:
    return rc.train(RUNS, tmp_path_factory.mktemp("serve") / "rows.parquet")


@pytest.fixture
def half(rows, tmp_path) -> Table:
    """A sweep of four runs, two of them finished, of a user's own experiment."""
    (tmp_path / "own.py").write_text(EXPERIMENT)
    table = Table(tmp_path / "sweep")
    table.append(rows[rows["seed"] == 0])
    about = {
        "experiment": "own",
        "source": str(tmp_path / "own.py"),
        "command": "recombine run own.py",
    }
    table.note(**about, title="My own sweep", shown=list(dict.fromkeys(rows["run"])))
    Status(table.path, runs=4, reused=0).write(immediately=True, finished=2)
    return table


@contextlib.contextmanager
def serving(folder, host="127.0.0.1", with_experiment=True):
    """A server for a folder, and for the experiment's file next to it if there is one."""
    file = folder.parent / "own.py"
    experiment = file if with_experiment and file.exists() else None
    with serve.Server(folder, host, 0, experiment) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server, path, method="GET", **headers) -> tuple[int, http.client.HTTPMessage, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, text


def test_every_address_answers(half, rows):
    with serving(half.path) as server, urllib.request.urlopen(server.address) as page:
        assert page.headers["Content-Type"] == "text/html; charset=utf-8"
        assert b"plotly.js" in page.read()
        state = json.loads(ask(server, "/state")[2])
        assert (state["finished"], state["runs"], state["title"]) == (2, 4, "My own sweep")
        table = json.loads(ask(server, "/rows?anything")[2])
        kinds = {column["name"]: column["kind"] for column in table["columns"]}
        assert kinds == {"model.widths": "text", "seen/r2": "score", "test/r2": "score"}
        last = rows[rows["seed"] == 0].groupby("run").tail(1).set_index("model.widths")
        assert table["lines"] == [
            [w, last.loc[w, "seen/r2"], pytest.approx(last.loc[w, "test/r2"])]
            for w in ("8x8", "12x12")
        ]
        figures = json.loads(ask(server, "/figures")[2])
        assert figures["reason"] is None
        assert list(figures["figures"]) == ["seen", "test"]
        assert figures["figures"]["test"]["layout"]["title"]["text"] == "test"
        code, headers, script = ask(server, "/plotly.js")
        assert (code, headers["Content-Type"]) == (200, "text/javascript; charset=utf-8")
        assert "plotly.js v" in script[:500]


def test_figures_are_drawn_again_only_for_new_rows(half, rows, tmp_path):
    with serving(half.path) as server:
        answers = [ask(server, "/figures")[2] for _ in range(3)]
        assert len(set(answers)) == 1
        half.append(rows[rows["seed"] == 1])
        assert ask(server, "/figures")[2] != answers[0]
    assert (tmp_path / "own.log").read_text().split() == ["4", "8"]


def test_figures_that_need_more_rows_give_the_reason(half, rows, tmp_path):
    path = tmp_path / "begun"
    Status(path, runs=4, reused=0)
    assert not path.exists(), "nothing is written if there is no folder"
    path.mkdir()
    Status(path, runs=4, reused=0)
    begun = Table(path)
    begun.note(**half.meta())
    with serving(path) as server:
        assert json.loads(ask(server, "/figures")[2]) == {
            "figures": {},
            "reason": "No run has finished yet.",
        }
        assert json.loads(ask(server, "/rows")[2])["total"] == 0
        begun.append(rows[rows["model.widths"] == "8x8"])
        answer = json.loads(ask(server, "/figures")[2])
        assert answer["figures"] == {}
        message = "The figures cannot be drawn from the rows so far: IndexError:"
        assert answer["reason"].startswith(message)
        assert answer["reason"].endswith("(line 10)")
        begun.append(rows[rows["model.widths"] == "12x12"])
        assert len(json.loads(ask(server, "/figures")[2])["figures"]) == 2


def test_saved_figures_are_shown_if_the_experiment_is_unknown(rows, tmp_path):
    table = Table(tmp_path / "saved.parquet")
    table.append(rows)
    table.save_figures({"saved": '{"data": [], "layout": {}}'})
    for source in ({}, {"source": "gone.py"}):
        table.note(**source)
        with serving(table.path) as server:
            answer = json.loads(ask(server, "/figures")[2])
        assert answer == {"figures": {"saved": {"data": [], "layout": {}}}, "reason": None}


def test_a_file_that_is_only_named_in_the_folder_is_not_executed(half, tmp_path):
    with serving(half.path, with_experiment=False) as server:
        answer = json.loads(ask(server, "/figures")[2])
    assert answer["figures"] == {}
    assert answer["reason"].endswith("serve again with --figures FILE.py.")
    assert not (tmp_path / "own.log").exists()


def test_a_server_on_all_addresses_uses_the_name_of_the_machine(half):
    with serving(half.path, host="0.0.0.0") as server:
        name = socket.gethostname()
        token = server.token
        assert server.address == f"http://{name}:{server.server_port}/?token={token}"
        assert ask(server, f"/state?token={token}", Host=f"{name}:1")[0] == 200
        assert ask(server, f"/state?token={token}", Host="evil.example")[0] == 403


def test_other_machines_need_the_token(half):
    with serving(half.path) as server:
        assert server.token == ""
        assert "token" not in server.address
    with serving(half.path, host="0.0.0.0") as server:
        assert len(server.token) >= 32
        for path, headers in (
            ("/", {}),
            ("/state", {}),
            ("/state?token=", {}),
            ("/state?token=wrong", {}),
            ("/state?token=%C3%BC", {}),
            ("/state", {"Cookie": "recombine-token=wrong"}),
            ("/state", {"Cookie": "a=\x00;;="}),
        ):
            code, answer_headers, text = ask(server, path, **headers)
            assert code == 403, path
            assert server.token not in text + str(answer_headers)
        code, answer_headers, _ = ask(server, f"/?token={server.token}")
        cookie = answer_headers["Set-Cookie"]
        assert code == 200
        assert "HttpOnly; SameSite=Strict" in cookie
        assert ask(server, "/state", Cookie=cookie.partition(";")[0])[0] == 200


def test_at_most_500_lines_are_sent_and_no_nan(tmp_path):
    score = np.where(np.arange(600) % 2, 0.5, np.nan)
    frame = pd.DataFrame(
        {"run": [f"{i:03}" for i in range(600)], "step": 1, "seed": range(600), "test/r2": score}
    )
    Table(tmp_path).append(frame)
    with serving(tmp_path) as server:
        text = ask(server, "/rows")[2]
    answer = json.loads(text, parse_constant=pytest.fail)
    assert answer["total"] == 600
    assert answer["lines"][:2] == [[0, None], [1, 0.5]]
    assert len(answer["lines"]) == 500


def test_only_requests_for_this_machine_are_answered(half):
    with serving(half.path) as server:
        for host in ("localhost", "127.0.0.1:8000", "LOCALHOST:1", "[::1]:8000", "[::1]"):
            assert ask(server, "/state", Host=host)[0] == 200, host
        for host in (
            "evil.example",
            "evil.example:8000",
            "127.0.0.1.evil.example",
            "localhost@evil.example",
            "[",
            "",
        ):
            for path in ("/", "/state", "/nowhere"):
                code, _, text = ask(server, path, Host=host)
                assert code == 403, host
                assert "sweep" not in text


def test_only_the_routes_are_answered(half):
    paths = [
        "/favicon.ico",
        "/state/",
        "/../status.json",
        "/rows/../../status.json",
        "/..%2fstatus.json",
        "//etc/passwd",
    ]
    paths += [
        "/experiment.json",
        str(half.path / "status.json"),
        f"file://{half.path}/status.json",
        "/%00",
        "*",
    ]
    with serving(half.path) as server:
        for path in paths:
            code, headers, text = ask(server, path)
            assert (code, text) == (404, "there is no such page\n"), path
            assert headers["Content-Type"].startswith("text/plain")
        for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
            assert ask(server, "/state", method)[0] == 501


def test_every_answer_has_security_headers(half):
    with serving(half.path) as server:
        for path in ("/", "/state", "/nowhere"):
            headers = ask(server, path)[1]
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert (
                "'unsafe-inline'"
                not in headers["Content-Security-Policy"].split("script-src")[1].split(";")[0]
            )
        assert ask(server, "/state", "POST")[1]["X-Content-Type-Options"] == "nosniff"


def test_a_removed_folder_is_an_error_until_it_is_back(half, tmp_path):
    with serving(half.path) as server:
        half.path.rename(tmp_path / "moved")
        code, _, text = ask(server, "/state")
        assert code == 500
        assert "has no results of a sweep" in text
        assert "\n" not in text
        (tmp_path / "moved").rename(half.path)
        assert ask(server, "/state")[0] == 200


def test_bad_addresses_and_folders_raise_an_error(half, tmp_path):
    with (
        serving(half.path) as server,
        pytest.raises(InputError, match=r"port \d+ .*choose another port with --port"),
    ):
        serve.serve(half.path, port=server.server_port)
    with pytest.raises(InputError, match="there is no port 70000"):
        serve.serve(half.path, port=70000)
    with pytest.raises(InputError, match=r"cannot listen at 203\.0\.113\.7"):
        serve.serve(half.path, host="203.0.113.7", port=0)
    with pytest.raises(InputError, match="has no results of a sweep"):
        serve.serve(tmp_path / "missing", port=0)


def test_it_prints_its_address_and_ends_with_ctrl_c(half):
    # A process in the background ignores Ctrl-C unless it asks for it.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += f"from recombine.reporting.serve import serve; serve({str(half.path)!r}, port=0)"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-u", "-c", code], text=True, **pipes)
    line = process.stdout.readline()
    address = line.split(" at ")[1].split()[0]
    with urllib.request.urlopen(f"{address}state") as answer:
        assert json.load(answer)["runs"] == 4
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")


def test_ready_is_called_with_the_address(half, capsys):
    addresses = []

    def ready(address):
        addresses.append(address)
        raise KeyboardInterrupt

    serve.serve(half.path, host="localhost", port=0, ready=ready)
    assert addresses[0].startswith("http://localhost:")
    assert capsys.readouterr() == ("", "")


@pytest.mark.browser
def test_the_page_formats_durations_like_the_terminal(chromium, half):
    page = chromium.new_page()
    with serving(half.path) as server:
        page.goto(server.address)
        for seconds in (-1, 0, 0.04, 0.36, 0.97, 1, 59.4, 59.6, 400, 3599.6, 5399, 493200):
            assert page.evaluate(f"duration({seconds})") == duration(seconds)


@pytest.mark.browser
def test_the_page_updates_itself(chromium, half, rows):
    now = {"runs": 2, "phase": "training", "step": 10, "num_steps": 20, "score": 0.25}
    status = Status(half.path, runs=4, reused=0)
    status.chunks = {0: now}
    status.write(
        immediately=True,
        finished=2,
        left=5430.0,
        rate=9500.0,
        failures=[{"runs": ["a"], "reason": EVIL}],
        notes=[EVIL],
    )
    half.note(title=EVIL)
    page = chromium.new_page()
    errors = []
    requests = []
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(dialog.message))
    page.on("request", lambda request: requests.append(request.url))
    with write_lock(half.path), serving(half.path) as server:
        page.goto(server.address)
        page.locator(".chart").nth(1).locator(".xtick text").first.wait_for(timeout=20_000)
        text = page.locator("body").inner_text()
        for expected in (
            "75%",
            "2 of 4",
            "1 h 30 min",
            "9,500",
            f"1 run failed: {EVIL}",
            "recombine run own.py",
        ):
            assert expected in text, expected
        assert "training 2 runs, step 10 of 20, test score 0.250" in text
        assert page.title() == f"75% {EVIL}"
        assert page.locator("[role=progressbar]").get_attribute("aria-valuenow") == "75"
        assert page.locator(".js-plotly-plot").count() == 2
        assert page.locator("tbody tr").count() == 2
        page.evaluate("document.querySelector('.chart').mark = 'the same element'")
        page.locator("th button").last.click()
        page.locator("th button").last.click()
        points = page.locator(".cartesianlayer .point").count()

        half.append(rows[rows["seed"] == 1])
        status.chunks = {}
        status.write(immediately=True, state="finished", finished=4, failures=[])
        page.locator("tbody tr").nth(3).wait_for(timeout=20_000)
        # Not `wait_for_function`: the security headers forbid the `eval` of its second attempt.
        new_point = page.locator(".cartesianlayer .point").nth(points)
        new_point.wait_for(state="attached", timeout=20_000)
        assert page.title() == f"100% {EVIL}"
        assert page.locator(".percent").inner_text() == "100%"
        assert not page.locator("#problems").is_visible()
        assert page.locator(".js-plotly-plot").count() == 2
        assert page.evaluate("document.querySelector('.chart').mark"), (
            "figures are updated in place"
        )
        scores = [float(cell) for cell in page.locator("tbody td:last-child").all_inner_texts()]
        assert scores == sorted(scores, reverse=True), "the user's sorting is kept"
        assert errors == []
        assert all(url.startswith(server.address) or url == "data:," for url in requests), requests
    page.locator("#lost").wait_for(timeout=20_000)
    assert "Connection lost" in page.locator("#lost").inner_text()
    page.close()
