"""A sweep in the browser: a small server of the standard library, for the machine it runs on.

It answers five addresses and nothing else; no path of a request ever meets the file system. Its page is `watch.html`.
A request must name this machine as its host, so that no website can read the answers through a name of its own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import pandas as pd

from recombine.basics import user_files
from recombine.basics.console import print_line
from recombine.basics.errors import InputError, require
from recombine.reporting.page import MAX_LINES, SCORES
from recombine.reporting.watch import Sweep, plain, swept
from recombine.storage.table import Table

Find = Callable[[str], ModuleType | None]
PAGE = (
    resources.files("recombine.reporting")
    .joinpath("templates", "watch.html")
    .read_text(encoding="utf-8")
)
SCRIPT = base64.b64encode(
    hashlib.sha256(re.findall(r"<script>(.*?)</script>", PAGE, re.DOTALL)[0].encode()).digest()
)
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; script-src 'self' 'sha256-{SCRIPT.decode()}'; connect-src 'self'; "
    "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def serve(
    folder: str | Path,
    host: str = "127.0.0.1",
    port: int = 8000,
    ready: Callable[[str], None] | None = None,
    figures: Path | None = None,
    find: Find | None = None,
) -> None:
    """Show a sweep in the browser until Ctrl-C; `ready` is told the address instead of the terminal.

    Figures of our own experiments are drawn as rows come in; of the user's own only by the file that is given here: the
    one that a folder names is not run, for it may be anybody's. `find` gives the module of one of ours by its name.
    """
    with Server(folder, host, port, figures, find) as server:
        try:
            if ready is None:
                print_line(f"{folder} is shown at {server.address}  (Ctrl-C ends it)")
            else:
                ready(server.address)
            server.serve_forever()
        except KeyboardInterrupt:
            pass


class Server(ThreadingHTTPServer):
    """Listens from the moment it is made; `address` is what to open."""

    def __init__(
        self,
        folder: str | Path,
        host: str,
        port: int,
        figures: Path | None = None,
        find: Find | None = None,
    ):
        require(
            0 <= port < 2**16,
            f"there is no port {port}: choose one below 65536 with --port, or 0 for a free one",
        )
        self.answers, self.host = Answers(folder, figures, find), host
        everywhere = host in ("0.0.0.0", "::", "")
        self.names = {"localhost", "127.0.0.1", "::1", host}
        self.names |= (
            {socket.gethostname().lower(), socket.getfqdn().lower()} if everywhere else set()
        )
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise InputError(
                f"cannot listen at {host}, port {port} ({error.strerror}): choose another with --port, 0 for a free one"
            ) from error
        shown = socket.gethostname() if everywhere else host
        self.address = f"http://{f'[{shown}]' if ':' in shown else shown}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay quiet when a browser left in the middle of an answer."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class Answers:
    """What each address answers: a function that gives text and its type."""

    def __init__(self, folder: str | Path, figures: Path | None = None, find: Find | None = None):
        self.find = find
        self.module = None if figures is None else user_files.load(figures)
        self.sweep, self.reading, self.drawing = Sweep(folder), threading.Lock(), threading.Lock()
        self.drawn: tuple[Any, str] = (None, "")  # the figures, and which rows they are of
        self.sweep.state()  # a folder without a sweep is refused before anybody asks
        self.routes = {
            "/": (lambda: PAGE, "text/html"),
            "/state": (self.state, "application/json"),
            "/rows": (self.rows, "application/json"),
            "/figures": (self.figures, "application/json"),
            "/plotly.js": (plotly, "text/javascript"),
        }

    def state(self) -> str:
        """How far the sweep is."""
        with self.reading:
            return json.dumps(self.sweep.state())

    def rows(self) -> str:
        """The table of results: a line per run, at most 500 of them."""
        with self.reading:
            self.sweep.refresh()
            lines = self.sweep.lines
        told = lines.drop(columns="run") if swept(lines) else lines
        columns = [
            {"name": name, "kind": _kind(str(name), values)} for name, values in told.items()
        ]
        cells = [
            [plain(value) for value in line]
            for line in told.head(MAX_LINES).itertuples(index=False)
        ]
        return json.dumps({"columns": columns, "lines": cells, "total": len(lines)})

    def figures(self) -> str:
        """The experiment's figures of the rows so far, drawn anew only when rows changed."""
        with self.drawing:
            with self.reading:
                meta, rows, stamp = self.sweep.refresh(), self.sweep.rows, self.sweep.stamp
            if stamp != self.drawn[0]:
                figures, reason = draw(self.sweep.table, meta, rows, self.module, self.find)
                self.drawn = stamp, json.dumps({"figures": plain(figures), "reason": reason})
            return self.drawn[1]


def draw(
    table: Table,
    meta: dict[str, Any],
    rows: pd.DataFrame,
    module: ModuleType | None = None,
    find: Find | None = None,
) -> tuple[dict[str, Any], str | None]:
    """Figures by name as Plotly JSON, and why there are none: rows may be too few for them still.

    Where the experiment is not ours and was not given, those that were kept with the rows are shown.
    """
    if not len(rows):
        return {}, "no run has finished yet"
    kept = {name: json.loads(text) for name, text in table.figures().items()}
    if module is None and find is not None:
        module = find(str(meta.get("source", "")))
    if module is None:
        return (
            kept,
            None if kept else "figures of your own experiment: serve again with --figures FILE.py",
        )
    try:
        made = getattr(module, "figures", lambda _: {})(rows)
        return {name: json.loads(figure.to_json()) for name, figure in made.items()}, None
    except Exception as error:
        return (
            {},
            f"no figures of the rows so far: {user_files.where(error, Path(module.__file__ or ''))}",
        )


def plotly() -> str:
    """The script that draws, from the installed package."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def _kind(name: str, values: pd.Series) -> str:
    numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    return "score" if name in SCORES else "number" if numeric else "text"


class _Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version, sys_version = "recombine", ""
    timeout = 30  # seconds for a request to arrive

    def do_GET(self) -> None:
        make, kind = self.server.answers.routes.get(urlsplit(self.path).path, (None, ""))
        if not self._is_meant():
            self._send(
                403, "open the page by the address that `recombine serve` told\n", "text/plain"
            )
        elif make is None:
            self._send(404, "there is no such page\n", "text/plain")
        else:
            try:
                code, text = 200, make()
            except (
                Exception
            ) as error:  # the folder was removed, say: the page tells it and asks again
                code, kind, text = (
                    500,
                    "text/plain",
                    " ".join(str(error).split()) or type(error).__name__,
                )
            self._send(code, text, kind)

    def _is_meant(self) -> bool:
        """Whether the request names this machine, and not a name of somebody else's that leads here."""
        try:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        except ValueError:
            return False
        return name in self.server.names | {self.connection.getsockname()[0]}

    def _send(self, code: int, text: str, kind: str) -> None:
        data = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal belongs to the user."""
