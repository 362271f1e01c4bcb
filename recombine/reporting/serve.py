"""Show a sweep in the browser: a small HTTP server for the machine on which it runs.

It answers five addresses and nothing else. The path of a request is never used as a file name. The
page is `templates/watch.html`. A request must have this machine as its host, so that no website can
read the answers through a domain name of its own (DNS rebinding).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.cookies
import ipaddress
import json
import re
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pandas as pd

from recombine.basics import user_files
from recombine.basics.console import print_line
from recombine.basics.errors import InputError, require
from recombine.reporting.page import MAX_TABLE_ROWS, SCORE_COLUMNS
from recombine.reporting.watch import Sweep, swept_columns, to_json_values
from recombine.storage.table import Table

FindExperiment = Callable[[str], ModuleType | None]
FiguresOf = Callable[[ModuleType, pd.DataFrame], dict[str, Any]]
PAGE = (
    resources.files("recombine.reporting")
    .joinpath("templates", "watch.html")
    .read_text(encoding="utf-8")
)
# The browser runs only the page's own script, which it knows by this hash.
_script = re.findall(r"<script>(.*?)</script>", PAGE, re.DOTALL)[0]
SCRIPT_HASH = base64.b64encode(hashlib.sha256(_script.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src 'self' 'sha256-{SCRIPT_HASH}'; connect-src 'self'; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
COOKIE = "recombine-token"
ALL_ADDRESSES = ("0.0.0.0", "::", "")


def serve(
    folder: str | Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    ready: Callable[[str], None] | None = None,
    figures: Path | None = None,
    find: FindExperiment | None = None,
    figures_of: FiguresOf | None = None,
) -> None:
    """Show a sweep in the browser until Ctrl-C.

    `ready` is called with the address; without it, the address is printed. `find` returns the
    module of one of our experiments by its name: its figures are drawn as rows arrive. `figures` is
    the file of your own experiment. A file that is only named in the folder is never executed,
    since anyone could have written it.
    """
    with Server(folder, host, port, figures, find, figures_of) as server:
        try:
            if ready is None:
                print_line(f"Serving {folder} at {server.address} (Ctrl-C to stop)")
                if server.token:
                    print_line("Other machines can open this address. Only its token protects it.")
            else:
                ready(server.address)
            server.serve_forever()
        except KeyboardInterrupt:
            pass


class Server(ThreadingHTTPServer):
    """Listens as soon as it is created. `address` is the URL to open."""

    def __init__(
        self,
        folder: str | Path,
        host: str,
        port: int,
        figures: Path | None = None,
        find: FindExperiment | None = None,
        figures_of: FiguresOf | None = None,
    ):
        require(
            0 <= port < 2**16,
            f"there is no port {port}: choose one below 65536 with --port, or 0 for a free one",
        )
        self.answers = Answers(folder, figures, find, figures_of)
        machine = socket.gethostname()
        self.names = {"localhost", "127.0.0.1", "::1", host}  # hosts that a request may name
        if host in ALL_ADDRESSES:
            self.names |= {machine.lower(), socket.getfqdn().lower()}
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise InputError(
                f"cannot listen at {host}, port {port} ({error.strerror}): choose another port "
                "with --port, or 0 for a free one"
            ) from error
        url_host = machine if host in ALL_ADDRESSES else host
        if ":" in url_host:
            url_host = f"[{url_host}]"
        # Other machines can connect, too. They need the token in the printed address.
        self.token = "" if _is_loopback(host) else secrets.token_urlsafe(24)
        query = f"?token={self.token}" if self.token else ""
        self.address = f"http://{url_host}:{self.server_port}/{query}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that disconnects in the middle of an answer."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Answers:
    """The answer of each address: a function that returns text, and the type of that text."""

    def __init__(
        self,
        folder: str | Path,
        figures: Path | None = None,
        find: FindExperiment | None = None,
        figures_of: FiguresOf | None = None,
    ):
        self.find = find
        self.figures_of = figures_of
        self.module = None if figures is None else user_files.load(figures)
        self.sweep = Sweep(folder)
        self.sweep_lock = threading.Lock()
        self.figures_lock = threading.Lock()
        self.figures_version: Any = None  # the version of the rows in `figures_json`
        self.figures_json = ""
        self.sweep.state()  # raises an error for a folder without a sweep
        self.routes = {
            "/": (lambda: PAGE, "text/html"),
            "/state": (self.state, "application/json"),
            "/rows": (self.rows, "application/json"),
            "/figures": (self.figures, "application/json"),
            "/plotly.js": (plotly, "text/javascript"),
        }

    def state(self) -> str:
        """The state of the sweep."""
        with self.sweep_lock:
            return json.dumps(self.sweep.state())

    def rows(self) -> str:
        """The table of results: a line per run, up to a maximum number."""
        with self.sweep_lock:
            self.sweep.refresh()
            lines = self.sweep.lines
        visible = lines.drop(columns="run") if swept_columns(lines) else lines
        columns = [
            {"name": name, "kind": _column_kind(str(name), values)}
            for name, values in visible.items()
        ]
        cells = [
            [to_json_values(value) for value in line]
            for line in visible.head(MAX_TABLE_ROWS).itertuples(index=False)
        ]
        return json.dumps({"columns": columns, "lines": cells, "total": len(lines)})

    def figures(self) -> str:
        """The experiment's figures of the rows so far. They are drawn again when rows change."""
        with self.figures_lock:
            with self.sweep_lock:
                meta = self.sweep.refresh()
                rows = self.sweep.rows
                version = self.sweep.version
            if version != self.figures_version:
                drawn, reason = draw(
                    self.sweep.table, meta, rows, self.module, self.find, self.figures_of
                )
                answer = {"figures": to_json_values(drawn), "reason": reason}
                self.figures_json = json.dumps(answer)
                self.figures_version = version
            return self.figures_json


def draw(
    table: Table,
    meta: dict[str, Any],
    rows: pd.DataFrame,
    module: ModuleType | None = None,
    find: FindExperiment | None = None,
    figures_of: FiguresOf | None = None,
) -> tuple[dict[str, Any], str | None]:
    """Figures by name as Plotly JSON, and the reason if there are none.

    `module` is the experiment. Without it, `find` is asked for one of ours. If it is not ours, the
    figures that were saved with the rows are shown.
    """
    if not len(rows):
        return {}, "No run has finished yet."
    if module is None and find is not None:
        module = find(str(meta.get("source", "")))
    if module is None:
        try:
            saved = {name: json.loads(text) for name, text in table.figures().items()}
        except (ValueError, RecursionError) as error:
            return {}, f"The saved figures are damaged: {error}"
        hint = "To see the figures of your own experiment, serve again with --figures FILE.py."
        return saved, None if saved else hint
    try:
        made = (figures_of or _own_figures)(module, rows)
        return {name: json.loads(figure.to_json()) for name, figure in made.items()}, None
    except Exception as error:
        problem = user_files.describe_error(error, Path(module.__file__ or ""))
        return {}, f"The figures cannot be drawn from the rows so far: {problem}"


def _own_figures(module: ModuleType, rows: pd.DataFrame) -> dict[str, Any]:
    return module.figures(rows) if hasattr(module, "figures") else {}


def plotly() -> str:
    """The script of the installed plotly."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def _column_kind(name: str, values: pd.Series) -> str:
    """How the page formats a column: score, number or text."""
    if name in SCORE_COLUMNS:
        return "score"
    numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    return "number" if numeric else "text"


class _Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version = "recombine"
    sys_version = ""
    timeout = 30  # seconds for a request to arrive

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if not self._names_this_machine():
            message = "open the page at the address that `recombine serve` printed\n"
            self._send(403, message, "text/plain")
        elif not self._has_token():
            message = "open the whole address that `recombine serve` printed, with its token\n"
            self._send(403, message, "text/plain")
        elif path not in self.server.answers.routes:
            self._send(404, "there is no such page\n", "text/plain")
        else:
            answer, content_type = self.server.answers.routes[path]
            try:
                text = answer()
            except Exception as error:  # e.g. the folder was removed: the page shows the message
                message = " ".join(str(error).split()) or type(error).__name__
                self._send(500, message, "text/plain")
            else:
                self._send(200, text, content_type)

    def _names_this_machine(self) -> bool:
        """Whether the request's host is this machine, not another domain name that leads here."""
        try:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        except ValueError:
            return False
        return name in self.server.names | {self.connection.getsockname()[0]}

    def _has_token(self) -> bool:
        """Whether the request has the token, in its address or in the cookie of an earlier one."""
        if not self.server.token:
            return True
        tokens = parse_qs(urlsplit(self.path).query).get("token", [])
        with contextlib.suppress(http.cookies.CookieError):
            cookies = http.cookies.SimpleCookie(self.headers.get("Cookie", ""))
            tokens += [cookie.value for name, cookie in cookies.items() if name == COOKIE]
        expected = self.server.token.encode()
        return any(secrets.compare_digest(token.encode(), expected) for token in tokens)

    def _send(self, code: int, text: str, content_type: str) -> None:
        data = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{content_type}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if self.server.token and "token=" in self.path and self._has_token():
            cookie = f"{COOKIE}={self.server.token}; HttpOnly; SameSite=Strict; Path=/"
            self.send_header("Set-Cookie", cookie)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""
