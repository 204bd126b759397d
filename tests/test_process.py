"""Nothing is left running whatever happens; output is bounded; a full disk is survived. Real processes, real signals."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from leadline import keeper, outputs, sockets
from leadline.config import Deploy
from leadline.errors import DiskFull, HostInUse, LaunchFailed, PortTaken
from leadline.process import ProcessSupervisor
from leadline.records import Command
from leadline.target import free_port
from test_supervisor_conformance import SERVER, wait_for

FAMILY = """
import os, subprocess, sys, time
token = sys.argv[1]
child = [sys.executable, "-c", "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)", token]
subprocess.Popen(child, start_new_session=True)      # left the process group
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, child)              # a daemon: its parent is gone
    os._exit(0)
os.wait()
while time.process_time() < 0.05:                    # more than one tick of the kernel's clock
    pass
print("family", flush=True)
time.sleep(300)
"""
"""A service with a stubborn child in another session and a stubborn daemon; all carry the token in their command lines."""


def family(token: str) -> tuple[str, ...]:
    return (sys.executable, "-c", FAMILY, token)


@pytest.fixture
def token() -> Iterator[str]:
    name = f"leadline-test-{random.randrange(1 << 60):x}"
    yield name
    for pid in alive(name):
        os.kill(pid, signal.SIGKILL)


def alive(token: str) -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if token in (process.info["cmdline"] or ()) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def supervisor(folder: Path, argv: tuple[str, ...], port: int | None = None, **deploy: float) -> ProcessSupervisor:
    return ProcessSupervisor(Command(argv=argv), folder, Deploy(**{"stop_grace_s": 0.5, "free_timeout_s": 20.0, **deploy}), port=port)


def dying(folder: Path, argv: tuple[str, ...], port: int = 0) -> subprocess.Popen[str]:
    script = str(Path(__file__).parent / "leadline_that_dies.py")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen([sys.executable, script, str(folder), str(port), *argv], stdout=subprocess.PIPE, text=True, env=env)


def told(process: subprocess.Popen[str]) -> tuple[str, int, int]:
    assert process.stdout is not None
    launch_id, pid, keeper_pid = process.stdout.readline().split()
    return launch_id, int(pid), int(keeper_pid)


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def record(folder: Path, launch_id: str) -> dict[str, object]:
    text = (folder / f"launch-{launch_id}" / "exit.json").read_text()
    found = json.loads(text) if text.strip() else {}
    assert isinstance(found, dict)
    return found


# -- nothing is left ---------------------------------------------------------------------------------------------------


def test_a_stop_ends_the_whole_family(tmp_path: Path, token: str) -> None:
    one = supervisor(tmp_path, family(token))
    launch = one.start(family(token))
    wait_for(lambda: b"family" in one.log(launch) and len(alive(token)) >= 4)  # with the keeper
    daemons = [pid for pid in alive(token) if pid != launch.pid]
    assert all(one.owns(launch, pid) for pid in daemons if "keeper.py" not in " ".join(psutil.Process(pid).cmdline()))
    usage = one.status(launch)
    assert usage.cpu_s is not None
    assert usage.cpu_s > 0
    assert usage.memory_bytes is not None
    assert usage.memory_bytes > 5_000_000
    assert one.stop(launch, grace_s=0.3).by == "leadline"
    assert alive(token) == []


def test_a_stop_insists_with_kill(tmp_path: Path, token: str) -> None:
    argv = (
        sys.executable,
        "-c",
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)",
        token,
    )
    one = supervisor(tmp_path, argv)
    launch = one.start(argv)
    wait_for(lambda: b"deaf" in one.log(launch))
    ended = one.stop(launch, grace_s=0.2)
    assert (ended.signal, ended.by) == (signal.SIGKILL, "leadline")
    assert alive(token) == []


def test_what_a_dead_service_leaves_behind_is_ended(tmp_path: Path, token: str) -> None:
    argv = (sys.executable, "-c", FAMILY.replace("time.sleep(300)\n", "sys.exit(7)\n"), token)
    one = supervisor(tmp_path, argv)
    launch = one.start(argv)
    wait_for(lambda: not one.status(launch).running)
    wait_for(lambda: alive(token) == [])
    ended = one.stop(launch)
    assert (ended.code, ended.by) == (7, "itself")


def test_killed_at_any_moment_leadline_leaves_no_process_and_a_free_port(tmp_path: Path, token: str) -> None:
    port = free_port()
    argv = (sys.executable, "-c", SERVER, str(port), token)
    moments = random.Random(20)
    for moment in range(20):
        folder = tmp_path / str(moment)
        process = dying(folder, argv, port)
        if moment % 4 == 3:
            told(process)
        time.sleep(moments.uniform(0.0, 0.5))
        kill(process)
        wait_for(lambda: alive(token) == [] and sockets.listeners(port) == ())


def test_the_record_says_that_leadline_went_away(tmp_path: Path, token: str) -> None:
    process = dying(tmp_path, family(token))
    launch_id, _, _ = told(process)
    wait_for(lambda: len(alive(token)) >= 4)
    kill(process)
    wait_for(lambda: alive(token) == [])
    wait_for(lambda: record(tmp_path, launch_id).get("clean") is True)
    assert record(tmp_path, launch_id)["by"] == "keeper"
    assert record(tmp_path, launch_id)["leadline_gone"] is True


def test_a_killed_keeper_takes_the_service_with_it_and_the_rest_is_found(tmp_path: Path, token: str) -> None:
    one = supervisor(tmp_path, family(token))
    launch = one.start(family(token))
    wait_for(lambda: b"family" in one.log(launch))
    keeper_pid = one._keeper_pid(launch.launch_id)
    assert keeper_pid is not None
    os.kill(keeper_pid, signal.SIGKILL)
    wait_for(lambda: not one.status(launch).running)
    assert alive(token) == []
    ended = one.status(launch).exit
    assert ended is not None
    assert ended.by == "keeper"


def test_the_next_leadline_ends_what_is_left_when_both_were_killed(tmp_path: Path, token: str) -> None:
    process = dying(tmp_path, family(token))
    _, _, keeper_pid = told(process)
    wait_for(lambda: len(alive(token)) >= 4)
    os.kill(keeper_pid, signal.SIGKILL)
    kill(process)
    assert alive(token) != []
    one = supervisor(tmp_path, family(token))
    launch = one.start((sys.executable, "-c", "print(1)"))
    assert alive(token) == []
    one.stop(launch)


def test_the_next_leadline_waits_for_a_keeper_that_still_cleans_up(tmp_path: Path, token: str) -> None:
    port = free_port()
    deaf = "import signal; signal.signal(15, signal.SIG_IGN); " + SERVER
    argv = (sys.executable, "-c", deaf, str(port), token)
    process = dying(tmp_path, argv, port)
    told(process)
    wait_for(lambda: bool(sockets.listeners(port)))
    kill(process)
    one = supervisor(tmp_path, argv, port=port)
    launch = one.start(argv)
    assert len([pid for pid in alive(token) if one.owns(launch, pid)]) == 1
    one.close()
    assert alive(token) == []


def test_another_living_leadline_is_left_alone(tmp_path: Path, token: str) -> None:
    process = dying(tmp_path, family(token))
    told(process)
    try:
        with pytest.raises(HostInUse, match=str(process.pid)):
            supervisor(tmp_path, family(token)).start(family(token))
        assert alive(token) != []
    finally:
        kill(process)
    wait_for(lambda: alive(token) == [])


def test_a_pid_of_another_boot_or_process_is_never_signalled(tmp_path: Path, token: str) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", token])
    folder = tmp_path / "launch-0123456789ab"
    folder.mkdir()
    someone = {"pid": bystander.pid, "start": 1}
    (folder / "launch.json").write_text(
        json.dumps({"keeper": someone, "leadline": someone, "boot_id": "x", "mark": "0123456789ab", "argv": []})
    )
    supervisor(tmp_path, ("true",)).clear()
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_a_closed_supervisor_leaves_nothing(tmp_path: Path, token: str) -> None:
    one = supervisor(tmp_path, family(token))
    one.start(family(token))
    one.close()
    assert alive(token) == []


# -- starting ----------------------------------------------------------------------------------------------------------


def test_a_port_of_another_user_names_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_owners", lambda inodes: set())
    monkeypatch.setattr(sockets, "_listening", lambda port: {"1"})
    with pytest.raises(PortTaken, match="may not see"):
        supervisor(tmp_path, ("true",), port=9).start(("true",))


def test_what_cannot_be_executed_is_named(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("no program")
    (tmp_path / "garbage").write_text("no program")
    (tmp_path / "garbage").chmod(0o755)
    for argv, why in (
        (("no-such-program",), "No such file"),
        ((str(tmp_path / "plain"),), "Permission denied"),
        ((str(tmp_path / "garbage"),), "Exec format error"),
    ):
        with pytest.raises(LaunchFailed, match=why) as caught:
            supervisor(tmp_path, argv).start(argv)
        assert argv[0] in caught.value.message


def test_a_missing_working_directory_is_named(tmp_path: Path) -> None:
    one = ProcessSupervisor(Command(argv=("true",), cwd="/nonexistent/here"), tmp_path)
    with pytest.raises(LaunchFailed, match="/nonexistent/here"):
        one.start(("true",))


def test_environment_and_working_directory_reach_the_service(tmp_path: Path) -> None:
    argv = (sys.executable, "-c", "import os; print(os.environ['WORD'], os.getcwd())")
    one = ProcessSupervisor(Command(argv=argv, env=(("WORD", "given"),), cwd="/"), tmp_path)
    launch = one.start(argv)
    wait_for(lambda: not one.status(launch).running)
    one.stop(launch)
    assert one.log(launch) == b"given /\n"


def test_a_double_dash_belongs_to_the_command(tmp_path: Path) -> None:
    argv = (sys.executable, "-c", "import sys; print(sys.argv[1:])", "--", "-x", "--")
    one = supervisor(tmp_path, argv)
    launch = one.start(argv)
    wait_for(lambda: not one.status(launch).running)
    one.stop(launch)
    assert one.log(launch) == b"['--', '-x', '--']\n"


# -- output ------------------------------------------------------------------------------------------------------------


def flood(lines: int) -> tuple[str, ...]:
    return (sys.executable, "-c", f"for n in range(1, {lines} + 1): print('line', n, 'x' * 80)")


def test_output_is_bounded_and_its_start_and_end_are_kept_with_true_line_numbers(tmp_path: Path) -> None:
    limit, lines = 1 << 20, 40_000
    one = supervisor(tmp_path, flood(lines), log_limit_bytes=limit)
    launch = one.start(flood(lines))
    wait_for(lambda: not one.status(launch).running)
    one.stop(launch)
    folder = Path(launch.log).parent
    assert sum(path.stat().st_size for path in folder.glob("output.*")) <= limit
    assert one.status(launch).log_bytes == sum(len(f"line {n} ") + 81 for n in range(1, lines + 1))
    assert one.log(launch).startswith(b"line 1 x")
    assert one.log(launch, start=-100).rstrip().endswith(f"line {lines} ".encode() + b"x" * 80)
    head, tail = [source for source in one.evidence(launch).sources if source.name == "log"]
    assert (head.first_line, head.truncated) == (1, True)
    assert tail.text.splitlines()[0].startswith(f"line {tail.first_line} ")
    assert tail.text.splitlines()[-1].startswith(f"line {lines} ")


def test_short_output_is_whole(tmp_path: Path) -> None:
    one = supervisor(tmp_path, flood(100))
    launch = one.start(flood(100))
    wait_for(lambda: not one.status(launch).running)
    one.stop(launch)
    (log,) = [source for source in one.evidence(launch).sources if source.name == "log"]
    assert (log.truncated, len(log.text.splitlines())) == (False, 100)


def refuse(after: int) -> Callable[[int, bytes], int]:
    """An ``os.write`` on a disk with ``after`` bytes left."""
    room = after

    def write(handle: int, data: bytes) -> int:
        nonlocal room
        taken = min(room, len(data))
        if taken == 0:
            raise OSError(28, "No space left on device")
        room -= taken
        return os.pwrite(handle, data[:taken], os.lseek(handle, 0, os.SEEK_END))

    return write


def test_output_on_a_full_disk_is_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = keeper.Output(tmp_path, 1 << 20)
    monkeypatch.setattr(keeper.os, "write", refuse(25))
    output.write(b"a line of twenty bytes" * 2 + b"\n")
    output.write(b"lost\n")
    monkeypatch.undo()
    output.write(b"space again\n")
    assert (output.seen, output.dropped) == (62, 62 - 25 - 12)
    assert outputs.seen(tmp_path) == 62
    assert outputs.read(tmp_path, 0, 1000) == b"a line of twenty bytesa lspace again\n"
    (part,) = tmp_path.glob("output.*.*")
    assert part.name == "output.50.3"


def test_the_keeper_goes_on_when_its_files_can_grow_no_more(tmp_path: Path, token: str) -> None:
    """A real limit of the kernel (RLIMIT_FSIZE) in place of a full disk."""
    folder = tmp_path / "launch-a"
    folder.mkdir()
    service = (sys.executable, "-c", "print('y' * 200_000, flush=True); print('end'); raise SystemExit(5)", token)
    command = ["prlimit", "--fsize=50000", sys.executable, "-I", "-S", keeper.__file__, str(folder), "a", str(1 << 20), *service]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.wait(30)
    process.communicate()
    found = record(tmp_path, "a")
    assert (found["code"], found["clean"], found["log_bytes"]) == (5, True, 200_005)
    dropped = found["log_dropped_bytes"]
    assert isinstance(dropped, int)
    assert dropped > 0
    assert outputs.read(folder, 0, 10) == b"y" * 10


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_at_the_start_is_an_error_of_its_own(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(small)], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let us mount a tmpfs")
    try:
        (small / "filler").write_bytes(b"x" * 12288)
        with pytest.raises(DiskFull, match=str(small)):
            supervisor(small / "state", ("true",)).start(("true",))
    finally:
        subprocess.run(["umount", str(small)], check=True)
