"""The verbs that only read a campaign: ``report``, ``watch``, ``serve``. ``cli`` parses, this does."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console

from . import journal, live, report
from .errors import ConfigError, DiskFull
from .journal import Journal
from .serve import LOOPBACK, Follower, follow, watch
from .state import Knowledge


def read(which: str | None) -> Knowledge:
    """All that a campaign's journal says. Raises NoCampaign and what :class:`~leadline.journal.Journal` raises."""
    with Journal(journal.find(which), write=False) as book:
        return book.knowledge


def on_screen(known: Knowledge) -> str:
    """The report for standard output: as wide as the terminal and with colours there (unless NO_COLOR is set), plain elsewhere."""
    if not sys.stdout.isatty():
        return report.text(known)
    width = min(max(shutil.get_terminal_size((100, 24)).columns, 60), 140)
    return report.text(known, width, colour="NO_COLOR" not in os.environ)


def report_on(which: str | None, *, html: Path | None, md: Path | None, other: str | None, as_json: bool) -> str:
    """What goes to standard output; files are written on the way. Raises ConfigError for a path that cannot be written, DiskFull."""
    after = read(which)
    if other is not None:
        if html is not None:
            raise ConfigError(place="--html", what="a comparison has no page", fix="use --md FILE or --json with --diff")
        before = read(other)
        made = report.diff(before, after)
        said = json.dumps(report.diff_json(before, after), indent=2) + "\n" if as_json else made
        return said if md is None else _put(md, made, said if as_json else "")
    said = json.dumps(report.as_json(after), indent=2) + "\n" if as_json else ("" if html or md else on_screen(after))
    if html is not None:
        said = _put(html, report.html(after), said)
    return _put(md, report.markdown(after), said) if md is not None else said


def _put(path: Path, text: str, said: str) -> str:
    """Write to a file, or add to what is said when the path is ``-``."""
    if str(path) == "-":
        return said + text
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(path=path) from error
        raise ConfigError(place=path, what=f"cannot be written: {error.strerror}", fix="give a path that you may write to") from error
    print(f"wrote {path} ({len(text.encode()) / 1000:,.0f} kB)", file=sys.stderr)
    return said


def watch_one(which: str | None, *, as_json: bool) -> None:
    """Follow a campaign until it ends: a live view on a terminal, lines elsewhere, one JSON object a change with ``as_json``."""
    folder = journal.find(which)
    if not as_json:
        known = watch(folder, Console())
        if known.verdict is None:
            print(live.line(known, live.progress_of(known, time.time(), alive=False)), file=sys.stderr)
        else:
            print(known.verdict.sentence)
        return
    for known, progress in follow(folder):
        told = {"events": known.events, "done": known.verdict is not None, "phase": progress.phase, "line": live.line(known, progress)}
        print(json.dumps(told), flush=True)


def serve_one(which: str | None, *, host: str, port: int, as_json: bool) -> None:
    """Serve a campaign until interrupted. Raises ConfigError when the address cannot be listened on."""
    folder = journal.find(which)
    try:
        server = Follower(folder, host, port)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            place="--host, --port", what=f"cannot listen on {host} port {port}: {why}", fix="leave --port out for a free one"
        ) from error
    with server:
        print(json.dumps({"url": server.url, "campaign": folder.name}) if as_json else f"{folder.name} at {server.url}", flush=True)
        if host not in LOOPBACK:
            print(f"warning: {host} is not the loopback: whoever reaches this port reads the report", file=sys.stderr)
        print("Ctrl-C ends it", file=sys.stderr)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print("", file=sys.stderr)
