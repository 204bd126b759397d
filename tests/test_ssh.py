"""The connection's own folder on this machine: private, gone with its process, and after kill -9 with the next one."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from leadline.socketfolder import LOCK, SocketFolder
from leadline.ssh import SshTarget

SSH = """#!/bin/sh
# An ssh that reaches this machine: the last argument is the command.
for command; do :; done
exec sh -c "$command"
"""
CONNECTED = """
import sys, time
from leadline.ssh import SshTarget
target = SshTarget("host", ssh=(sys.argv[1],))
target.run(["true"])
print("connected", flush=True)
time.sleep(120)
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where connections keep their folders: a short path, as a socket's must be."""
    with tempfile.TemporaryDirectory(prefix="ll-", dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


@pytest.fixture
def ssh(tmp_path: Path) -> str:
    """A stand-in for ssh."""
    program = tmp_path / "ssh"
    program.write_text(SSH)
    program.chmod(0o755)
    return str(program)


def connected(ssh: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", CONNECTED, ssh], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "connected\n"
    return process


def test_a_connection_leaves_nothing(ssh: str, run: Path) -> None:
    target = SshTarget("host", ssh=(ssh,))
    assert list(run.iterdir()) == [], "it connects when it is needed"
    assert target.run(["echo", "a b"]).text == "a b\n"
    (folder,) = run.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    target.close()
    target.close()
    assert list(run.iterdir()) == []
    assert target.run(["echo", "again"]).text == "again\n"
    target.close()
    assert list(run.iterdir()) == []


def test_the_next_one_clears_what_a_killed_one_left_and_nothing_of_a_living_one(ssh: str, run: Path) -> None:
    target = SshTarget("host", ssh=(ssh,))
    with connected(ssh) as living:
        (kept,) = run.iterdir()
        with connected(ssh) as killed:
            (left,) = set(run.iterdir()) - {kept}
            (left / "s").touch()  # the socket, which an ssh that was killed as well leaves
            killed.send_signal(signal.SIGKILL)
        assert set(run.iterdir()) == {kept, left}
        target.run(["true"])
        assert left not in run.iterdir()
        assert kept in run.iterdir()
        target.close()
        living.send_signal(signal.SIGKILL)
    assert set(run.iterdir()) == {kept}
    target.run(["true"])
    target.close()
    assert list(run.iterdir()) == []


def test_a_removal_that_was_interrupted_is_ended(tmp_path: Path) -> None:
    first = SocketFolder(tmp_path)
    (first.path / LOCK).unlink()
    second = SocketFolder(tmp_path)
    assert list(tmp_path.iterdir()) == [second.path]
    first.remove()
    second.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_a_folder_of_ours_stays(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch()
    (tmp_path / "leadline-ssh-link").symlink_to(tmp_path / "elsewhere")
    SocketFolder(tmp_path).remove()
    assert (tmp_path / "elsewhere" / "file").exists()
    assert (tmp_path / "leadline-ssh-link").is_symlink()
