"""Commands in the documentation: those with output are run and compared, the others must at least be commands that leadline has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from docs_console import ROOT, Step, matches, prepare, run, steps
from leadline import cli

DOCS = sorted((ROOT / "docs").glob("*.md"))
STEPS = [step for path in DOCS for step in steps(path)]
GROUP = typer.main.get_command(cli.app)
COMMANDS = GROUP.commands  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("docs")
    return folder, prepare(folder)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step.document}: {step.command}"[:80])
def test_what_a_document_shows_is_what_is_printed(step: Step, place: tuple[Path, dict[str, str]]) -> None:
    printed = run(step, *place)
    assert matches(step.expected, printed), printed


def test_the_tutorial_has_commands() -> None:
    assert len(STEPS) >= 4


SHOWN = [
    (path.name, line.strip())
    for path in [*DOCS, ROOT / "README.md"]
    if path.exists()
    for block in re.findall(r"^```sh\n(.*?)^```$", path.read_text(encoding="utf-8"), re.M | re.S)
    for line in block.replace("\\\n", " ").splitlines()
    if line.strip().startswith("leadline ")
]


@pytest.mark.parametrize(("document", "line"), SHOWN)
def test_a_command_that_is_shown_exists(document: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    verb = next(word for word in words if not word.startswith("-"))
    assert verb in COMMANDS
    known = {option for parameter in COMMANDS[verb].params for option in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    for word in words[words.index(verb) + 1 :]:
        if word.startswith("process:"):
            break  # the rest belongs to the server
        if word.startswith("-") and word != "-":
            assert word.split("=")[0] in known, f"{verb} has no {word}"


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", target):
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("took ... s\n", "took 4.1 s\n", True),
        ("a\n", "a\nb\n", False),
        ("a\n...\nd\n", "a\nb\nc\n", False),
    ],
)
def test_the_comparison_itself(expected: str, printed: str, same: bool) -> None:
    assert matches(expected, printed) is same
