"""The ``console`` blocks of the documentation: read, run, compare, and written anew.

A block holds commands (``$ leadline ...``) and what they print.  In what is expected, a line ``...`` stands for any lines and ``...`` inside a line for any text.
``python tests/docs_console.py docs/tutorial.md`` runs every command and writes what it printed into the file, cut to the lines that the block had room for
(a block without output gets all of it).
"""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec

from leadline.journal import Journal
from leadline.records import AnyEvent

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
JOURNALS = ROOT / "tests" / "data" / "journals"
DEMO_ID = "20261129-demo"


class Step(NamedTuple):
    """One command with the output that its document shows."""

    document: str
    command: str
    expected: str


def steps(path: Path) -> list[Step]:
    """Every command of a document, in order."""
    found = []
    for block in BLOCK.findall(path.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, expected = part.partition("\n")
            found.append(Step(path.name, command, expected))
    return found


def real_events(name: str) -> list[AnyEvent]:
    """The events of a real campaign, in order; see the README beside them."""
    decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
    with gzip.open(JOURNALS / f"{name}.jsonl.gz") as lines:
        return [decoder.decode(line) for line in lines]


def prepare(folder: Path) -> dict[str, str]:
    """An environment in which ``leadline`` is on the path and the demo's campaign is the newest one."""
    shim = folder / "bin" / "leadline"
    shim.parent.mkdir(parents=True)
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m leadline "$@"\n')
    shim.chmod(0o755)
    with Journal(folder / "state" / "campaigns" / DEMO_ID, write=True) as book:
        for event in real_events("demo"):
            book.append(event)
    (folder / "work").mkdir()
    return {
        "PATH": f"{shim.parent}:/usr/bin:/bin",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "src"), *sys.path])),
        "LEADLINE_HOME": str(folder / "state"),
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "COLUMNS": "100",
    }


def run(step: Step, folder: Path, environment: dict[str, str]) -> str:
    """What a command prints on both outputs, in order."""
    ended = subprocess.run(
        ["bash", "-c", step.command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=folder / "work",
        check=False,
        timeout=60,
    )
    return ended.stdout


def matches(expected: str, printed: str) -> bool:
    """Whether ``printed`` is what the document shows."""
    parts = []
    for line in expected.rstrip().splitlines():
        if line.strip() == "...":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*".join(re.escape(piece) for piece in line.rstrip().split("...")) + r"[ ]*\n")
    return re.fullmatch("".join(parts), printed.rstrip() + "\n" if printed.strip() else "\n") is not None or not expected.strip()


def write_anew(path: Path) -> None:
    """Put the real output of every command into the document."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        environment = prepare(folder)
        text = path.read_text(encoding="utf-8")
        for step in steps(path):
            printed = "\n".join(line.rstrip() for line in run(step, folder, environment).splitlines()).rstrip() + "\n"
            text = text.replace(f"$ {step.command}\n{step.expected}", f"$ {step.command}\n{printed}", 1)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write_anew(Path(name))
