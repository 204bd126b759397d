"""A command is read by the generation of the build that is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from leadline.errors import CannotRewrite
from leadline.process import ProcessSupervisor
from leadline.records import Candidate, Command
from leadline.services import adapt

OLD_HELP = "--draft-max, --draft, --draft-n N   number of tokens to draft for speculative decoding (default: 16)"
NEW_HELP = "--spec-draft-n-max N                number of tokens to draft for speculative decoding (default: 3)"


def build(folder: Path, help_text: str) -> str:
    program = folder / "llama-server"
    program.write_text(f"#!/bin/sh\necho '{help_text}'\n")
    program.chmod(0o755)
    return str(program)


def test_an_old_build_is_tuned_in_its_own_words(tmp_path: Path) -> None:
    argv = (build(tmp_path, OLD_HELP), "-m", "t.gguf", "-md", "d.gguf")
    engine, parsed = adapt(ProcessSupervisor(Command(argv=argv), tmp_path), argv)
    assert parsed.candidate == Candidate(algorithm="draft-simple", depth=16)
    assert engine.render(parsed, Candidate(algorithm="draft-simple", depth=4)) == (*argv, "--draft-max", "4")


def test_a_new_build_refuses_the_old_words_with_the_new_name(tmp_path: Path) -> None:
    argv = (build(tmp_path, NEW_HELP), "-m", "t.gguf", "-md", "d.gguf", "--draft-max", "8")
    with pytest.raises(CannotRewrite) as caught:
        adapt(ProcessSupervisor(Command(argv=argv), tmp_path), argv)
    assert "--spec-draft-n-max 8" in caught.value.next


@pytest.mark.parametrize("program", ["/nonexistent/llama-server", None])
def test_without_a_help_text_the_command_line_decides(tmp_path: Path, program: str | None) -> None:
    argv = (program or build(tmp_path, "usage: something else"), "-m", "t.gguf", "-md", "d.gguf")
    _, parsed = adapt(ProcessSupervisor(Command(argv=argv), tmp_path), argv)
    assert parsed.candidate.off
