"""The command line: every verb has --json and an example; errors have a message, a next step and their exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from leadline import bench, cli, doctor, following, verbs
from leadline.cli import gather_process
from leadline.errors import DiskFull, Interrupted, LeadlineError, NotServing

GROUP = typer.main.get_command(cli.app)
VERBS = sorted(GROUP.commands)  # type: ignore[attr-defined]


def leadline(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "LEADLINE_HOME": str(home), "PYTHONPATH": ":".join(sys.path), "HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-m", "leadline", *arguments], capture_output=True, text=True, env=environment, cwd=home, check=False, timeout=60
    )


def test_the_verbs_are_those_of_the_design() -> None:
    assert set(VERBS) == {"doctor", "inspect", "bench", "tune", "status", "report", "apply", "restore", "demo", "watch", "serve"}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_json_and_an_example(verb: str) -> None:
    command = GROUP.commands[verb]  # type: ignore[attr-defined]
    options = {option for parameter in command.params for option in parameter.opts}
    assert "--json" in options
    assert f"leadline {verb}" in (command.epilog or "")
    assert command.help


@pytest.mark.parametrize(
    ("given", "gathered"),
    [
        (["tune", "--yes", "process:llama-server", "-m", "a b", "--yes"], ["tune", "--yes", "process:llama-server -m 'a b' --yes"]),
        (["tune", "process:llama-server -m x", "--yes"], ["tune", "process:llama-server -m x", "--yes"]),
        (["tune", "process:llama-server"], ["tune", "process:llama-server"]),
        (["tune", "systemd:x.service", "--yes"], ["tune", "systemd:x.service", "--yes"]),
    ],
)
def test_a_process_target_takes_the_rest(given: list[str], gathered: list[str]) -> None:
    assert gather_process(given) == gathered


BAD = [
    (["tune", "process:sleep 5", "--yes"], 12, "sleep 5"),
    (["tune", "nowhere:x", "--yes"], 13, "nowhere"),
    (["tune", "process:llama-server -m x.gguf -md y.gguf", "--concurrency", "0", "--yes"], 16, "0"),
    (["tune", "process:llama-server -m x.gguf -md y.gguf", "--concurrency", "one", "--yes"], 10, "'one'"),
    (["tune", "process:llama-server -m x.gguf -md y.gguf", "--workload", "no-such", "--yes"], 17, "no-such"),
    (["status", "nothing-there"], 44, "nothing-there"),
    (["tune", "--config", "absent.toml", "process:x"], 10, "absent.toml"),
    (["tune", "--yes", "process:/nonexistent/llama-server -m x.gguf -md y.gguf"], 32, "/nonexistent/llama-server"),
    (["tune", "--yes", "--algorithm", "draft-simple", "process:llama-server -m x.gguf"], 15, "draft"),
    (["tune"], 2, "TARGET"),
    (["tune", "--no-such-flag"], 2, "no-such-flag"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), BAD, ids=lambda value: str(value)[:50])
def test_bad_input_gets_message_next_step_and_status(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    done = leadline(*arguments, home=tmp_path)
    assert done.returncode == code, done.stderr
    assert "error: " in done.stderr
    assert " next: " in done.stderr
    assert words in done.stderr
    assert done.stdout == ""


def test_an_unknown_key_names_its_place(tmp_path: Path) -> None:
    (tmp_path / "leadline.toml").write_text("[tune]\nobjectve = 'peak'\n")
    done = leadline("tune", "process:llama-server -m x.gguf -md y.gguf", home=tmp_path)
    assert done.returncode == 10
    assert "leadline.toml:2 [tune]" in done.stderr
    assert "'objective'" in done.stderr


def test_errors_are_json_where_json_was_asked_for(tmp_path: Path) -> None:
    done = leadline("status", "nothing-there", "--json", home=tmp_path)
    said = json.loads(done.stdout)
    assert said["error"] == "NoCampaign"
    assert said["exit_code"] == done.returncode == 44
    assert said["next"]


UNTOUCHED = "interrupted: no service was touched"
INTERRUPTED = [
    (["inspect", "systemd:x.service"], (verbs, "inspect"), UNTOUCHED),
    (["doctor", "systemd:x.service"], (doctor, "examine"), UNTOUCHED),
    (["report"], (following, "report_on"), UNTOUCHED),
    (["status"], (verbs, "status"), UNTOUCHED),
    (["watch"], (following, "watch_one"), UNTOUCHED),
    (["bench", "http://127.0.0.1:9"], (bench, "run"), "interrupted: nothing was changed\n"),
    (["bench", "systemd:x.service"], (verbs, "bench"), "interrupted: nothing was changed\n"),
    (["bench", "process:llama-server", "--out", "x"], (verbs, "bench"), "the server that was to be measured does not run any more"),
    (["tune", "systemd:x.service"], (verbs, "tune"), "interrupted: the service stands as it was found"),
    (["demo"], (verbs, "demo"), "interrupted: the service stands as it was found"),
    (["apply"], (verbs, "apply"), "interrupted: the change may not be complete"),
    (["restore"], (verbs, "restore"), "interrupted: the service may not stand as it was found yet"),
]


@pytest.mark.parametrize(("arguments", "work", "words"), INTERRUPTED, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_an_interrupted_verb_says_what_is_true_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], work: tuple[object, str], words: str
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(*work, interrupted)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["leadline", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    said = capsys.readouterr().err
    assert left.value.code == Interrupted.exit_code
    assert words in said
    assert ("journal" in said) == (arguments[0] in ("tune", "demo"))
    assert "--out" not in said  # what follows process: is the command's own


@pytest.mark.parametrize("arguments", [["inspect", "--server-log"], ["doctor", "--log"]], ids=lambda value: value[0])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_only_reads_touched_nothing_when_it_is_interrupted(tmp_path: Path, arguments: list[str], number: signal.Signals) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    argv = [sys.executable, "-m", "leadline", *arguments, str(pipe)]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), "HOME": str(tmp_path)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as running:
        with pipe.open("w"):  # it is there when it reads
            running.send_signal(number)
            _, said = running.communicate(timeout=30)
    assert running.returncode == Interrupted.exit_code
    assert UNTOUCHED in said


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("argv", "status"), [(("bench", "--help"), DiskFull), (("bench", "http://127.0.0.1:9", "--json"), NotServing)])
def test_output_that_finds_no_room_is_no_defect(argv: tuple[str, ...], status: type[LeadlineError], unbuffered: str) -> None:
    """The interpreter would try once more when it ends, and leave with a status of its own."""
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run(
            [sys.executable, "-m", "leadline", *argv],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert (done.returncode, done.stderr.count("\n")) == (status.exit_code, 3), done.stderr
    assert status.__name__ in done.stderr


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_a_process_without_its_standard_streams_does_its_work(closed: str) -> None:
    command = f'exec "$0" -m leadline bench http://127.0.0.1:9 --json {closed}'
    done = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, text=True, check=False)
    assert done.returncode == NotServing.exit_code, done.stderr
    assert ("NotServing" in done.stdout, "NotServing" in done.stderr) == (closed == "2>&-", closed == ">&-")


def test_a_terminal_does_not_obey_what_a_server_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli._complain(NotServing(url="http://h", why="HTTP 500: \x1b[2J\x07\r\x9b\u202eno\n\tm\u00f6re", fix="look"))
    assert "HTTP 500: \\x1b[2J\\x07\\r\\x9b\\u202eno\n\tm\u00f6re\n" in capsys.readouterr().err
