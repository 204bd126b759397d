"""Followers of a campaign: ``leadline watch`` in a terminal, ``leadline serve`` in a browser. Both only read the journal.

The server answers GET and HEAD of four paths and nothing else, on the loopback unless it is told otherwise, and only for the host names that it is bound
to or was told (a page elsewhere that points its own name at this machine gets nothing).
"""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.live import Live

from . import journal, live, report
from .errors import LeadlineError
from .journal import Journal
from .records import Progress
from .state import Knowledge

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def follow(folder: Path, *, every_s: float = 0.5, now: Callable[[], float] = time.time) -> Iterator[tuple[Knowledge, Progress]]:
    """What is known and what happens, again and again, until the campaign is concluded or its writer is gone.

    Raises what :class:`~leadline.journal.Journal` raises.
    """
    with Journal(folder, write=False) as book:
        while True:
            # the writer is looked at first: what it wrote before it went is then surely read
            alive = journal.writer_alive(folder)
            known = book.refresh()
            yield known, live.progress_of(known, now(), alive)
            if known.verdict is not None or not alive:
                return
            time.sleep(every_s)


def watch(folder: Path, console: Console, *, every_s: float = 0.5, now: Callable[[], float] = time.time) -> Knowledge:
    """Show a campaign until :func:`follow` ends: on a terminal as a live view, elsewhere one line a change. Returns what was known last."""
    last, known = "", Knowledge()
    with Live(console=console, auto_refresh=False, transient=True) as shown:
        for known, progress in follow(folder, every_s=every_s, now=now):
            if console.is_terminal:
                shown.update(live.view(known, progress), refresh=True)
            elif (said := live.line(known, progress)) != last:
                console.print(said, markup=False, highlight=False, soft_wrap=True)
                last = said
    return known


class Follower(http.server.ThreadingHTTPServer):
    """Serves one campaign; a thread of its own reads what the journal gains. Raises OSError when the address cannot be bound."""

    daemon_threads = True
    every_s = 0.5

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        self.folder = folder
        with Journal(folder, write=False) as book:  # a damaged or missing journal is told now, not to the browser
            self.known = book.knowledge
        self.failure = ""
        self.closed = threading.Event()
        self._reader = threading.Thread(target=self._read, name="journal reader", daemon=True)
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)
        self.names = {host, *(LOOPBACK if host in LOOPBACK else ())}
        self._reader.start()

    def _read(self) -> None:
        # SQLite connections belong to the thread that opened them, so this thread opens its own
        try:
            with Journal(self.folder, write=False) as book:
                self.known = book.knowledge
                while not self.closed.wait(self.every_s):
                    self.known = book.refresh()
        except LeadlineError as error:
            self.failure = f"{error.message}; {error.next}"

    def server_close(self) -> None:
        self.closed.set()
        super().server_close()
        if self._reader.is_alive():
            self._reader.join(timeout=5)

    @property
    def url(self) -> str:
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Follower
    server_version = "leadline"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        if self.server.closed.is_set():
            self.close_connection = True  # a connection kept alive would outlive its server
            return
        if not self._welcome():
            self._send(HTTPStatus.FORBIDDEN, "text/plain", "this server answers to its own name only\n", body)
            return
        if self.server.failure:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{self.server.failure}\n", body)
            return
        known = self.server.known
        match urlsplit(self.path).path:
            case "/":
                self._send(HTTPStatus.OK, "text/html", report.html(known, live=True), body)
            case "/progress.json":
                progress = live.progress_of(known, time.time(), journal.writer_alive(self.server.folder))
                said = {"events": known.events, "done": known.verdict is not None, "line": live.line(known, progress)}
                self._send(HTTPStatus.OK, "application/json", json.dumps(said), body)
            case "/report.json":
                self._send(HTTPStatus.OK, "application/json", json.dumps(report.as_json(known)), body)
            case "/report.md":
                self._send(HTTPStatus.OK, "text/markdown", report.markdown(known), body)
            case _:
                self._send(HTTPStatus.NOT_FOUND, "text/plain", "here are /, /progress.json, /report.json and /report.md\n", body)

    def _welcome(self) -> bool:
        """Whether the Host header names this server: a wildcard address has no name of its own and takes any."""
        if {"0.0.0.0", "::"} & self.server.names:
            return True
        return (urlsplit(f"//{self.headers.get('Host', '')}").hostname or "") in self.server.names

    def _send(self, status: HTTPStatus, kind: str, text: str, body: bool) -> None:
        payload = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(payload)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        if body:
            self.wfile.write(payload)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is http.server's
        """Requests are not narrated."""
