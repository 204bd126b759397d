"""systemd without a host: probes against recordings, the hand against a stand-in systemctl, names and quoting as properties."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline import deploy, probes
from leadline.config import Deploy
from leadline.deploy import Place
from leadline.errors import HostKeyRefused, HostUnreachable
from leadline.records import Exit, LaunchFile
from leadline.ssh import explain, needs_sudo

RECORDINGS = Path(__file__).parent / "data" / "recordings" / "systemd"
CASES = sorted(path.name for path in RECORDINGS.glob("c*") if (path / "systemctl-show.txt").exists())


def shown(case: str) -> probes.Shown:
    return probes.parse_show((RECORDINGS / case / "systemctl-show.txt").read_text())


# -- golden files ------------------------------------------------------------------------------------------------------


def test_there_are_recordings() -> None:
    assert len(CASES) > 40


@pytest.mark.parametrize("case", CASES)
def test_show_is_read(case: str) -> None:
    one = shown(case)
    assert one.get("Id").endswith(".service")
    assert one.get("LoadState") in {"loaded", "not-found", "masked", "bad-setting"}
    if one.get("ActiveState") in {"inactive", "failed"}:
        assert not one.running
    if one.get("SubState") == "running":
        assert one.running
    if one.exit is not None:
        assert (one.exit.code is None) != (one.exit.signal is None)


@pytest.mark.parametrize(
    ("case", "exit_"),
    [
        ("c01-healthy", None),
        ("c03-traceback", Exit(code=1)),
        ("c04-sigkill-self", Exit(signal=9)),
        ("c06-sigsegv-nocore", Exit(signal=11)),
        ("c07-sigabrt", Exit(signal=6)),
        ("c12-exec-missing", Exit(code=203)),
    ],
)
def test_exit(case: str, exit_: Exit | None) -> None:
    assert shown(case).exit == exit_


def test_waiting_for_an_automatic_restart_is_not_running() -> None:
    one = shown("c11-auto-restart-exit")
    assert one.get("ActiveState") == "activating"
    assert not one.running


def test_the_effective_command_is_read_back() -> None:
    assert probes.same_command(shown("c17-dropin-reset-execstart").exec_argv[0], ("/usr/bin/python3", "/opt/llm/dummy.py", "slow", "5"))
    assert not probes.same_command(shown("c01-healthy").exec_argv[0], ("/usr/bin/python3", "/opt/llm/dummy.py", "slow", "5"))
    assert shown("c17-dropin-exec-cleared").exec_argv == []
    assert probes.same_command("a 'b c' /root/x", ("a", "b c", "\0"))


def test_a_command_with_line_breaks_is_read_whole() -> None:
    text = "Id=a.service\nExecStart={ path=/x ; argv[]=/x one\nMainPID=9\ntwo ; ignore_errors=no ; status=0/0 }\nMainPID=7\n"
    one = probes.parse_show(text)
    assert one.get("MainPID") == "7"
    assert probes.same_command(one.exec_argv[0], ("/x", "one\nMainPID=9\ntwo"))


def test_figures_that_systemd_does_not_know() -> None:
    one = shown("c01-healthy")
    assert one.number("CPUUsageNSec") == 510_000_000
    assert one.number("IOReadBytes") is None
    assert one.number("UID") is None
    assert one.number("NoSuchKey") is None


@pytest.mark.parametrize(("text", "seconds"), [("1min 30s", 90), ("100ms", 0.1), ("infinity", None), ("1h 2min", 3720), ("", None)])
def test_spans(text: str, seconds: float | None) -> None:
    assert probes.span_s(text) == (None if seconds is None else pytest.approx(seconds))


def test_environment_files() -> None:
    assert probes.environment_files(shown("c12-envfile").all("EnvironmentFiles")) == [("/etc/llm.env", False)]


@pytest.mark.parametrize("case", [case for case in CASES if (RECORDINGS / case / "journal.json").exists()])
def test_journal_is_read(case: str) -> None:
    text = (RECORDINGS / case / "journal.json").read_text()
    lines = probes.parse_journal(text + '{"torn')
    assert len(lines) == sum(1 for line in text.splitlines() if line.startswith("{"))
    assert all(line.cursor and line.at_s > 1e9 for line in lines)


def test_journal_message_of_bytes() -> None:
    assert probes.parse_journal('{"MESSAGE":[104,255],"__CURSOR":"x","__REALTIME_TIMESTAMP":"1"}')[0].text == b"h\xff"


def test_a_hidden_journal_is_noticed() -> None:
    transcript = (RECORDINGS / "c19-permission" / "viewer.txt").read_text()
    assert probes.journal_hidden(transcript)
    assert not probes.journal_hidden("")


def test_sockets() -> None:
    text = (Path(__file__).parent / "data" / "systemd" / "sockets.txt").read_text()
    (one,) = probes.parse_sockets(text, 8080, boot_s=1000.0)
    assert (one.port, one.pid) == (8080, 1064)
    assert one.command.startswith("python3 /opt/lab/llama-server -m m.gguf")
    assert one.started_s == pytest.approx(1000.0 + 125502 / 100)
    assert probes.parse_sockets(text, 22, boot_s=0.0)[0].command == "sshd"
    (hidden,) = probes.parse_sockets("LISTEN 0 5 127.0.0.1:8080 0.0.0.0:*\n", 8080, boot_s=0.0)
    assert hidden.pid == 0


def test_clock() -> None:
    assert probes.parse_clock("1000.5\n100.5\n100\n") == (900.0, 100)


def test_gpu_neighbours() -> None:
    text = (
        "app 11 500 0::/system.slice/llm.service \n"
        "app 12 900 0::/system.slice/docker-0123456789abcdef.scope \n"
        "app 13 900 0::/system.slice/docker-fedcba987654.scope \n"
        "box docker web 0123456789abcdef0000\n"
    )
    gpu = probes.parse_gpu(text)
    assert gpu.containers == ("web (docker)", "container fedcba987654")
    assert gpu.apps[0] == (11, "0::/system.slice/llm.service")
    assert probes.parse_gpu(probes.NO_GPU) == probes.Gpu()


@pytest.mark.parametrize(
    ("said", "error", "why"),
    [
        ("nosuch@127.0.0.1: Permission denied (publickey).", HostUnreachable, "Permission denied"),
        ("No ED25519 host key is known for x\nHost key verification failed.", HostKeyRefused, "not in known_hosts"),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.\n", HostKeyRefused, "not the key"),
        ("ssh: connect to host 127.0.0.1 port 1: Connection refused", HostUnreachable, "refused"),
        ("", HostUnreachable, "without a word"),
    ],
)
def test_ssh_says_why(said: str, error: type[Exception], why: str) -> None:
    """The words are those of the recording c19-permission/ssh-errors.txt."""
    assert not said or said.splitlines()[-1] in (RECORDINGS / "c19-permission" / "ssh-errors.txt").read_text()
    found = explain("lab", said)
    assert isinstance(found, error)
    assert why in found.message


def test_a_refused_sudo_names_the_line_to_add() -> None:
    error = needs_sudo("ops", "gpu1", "sudo: a password is required")
    assert "ops ALL=(root) NOPASSWD: ALL" in error.next
    assert error.exit_code == 22


# -- names and texts ---------------------------------------------------------------------------------------------------

UNIT_NAMES = st.from_regex(r"[A-Za-z0-9:_.\\][A-Za-z0-9:_.\\-]{0,30}(@[A-Za-z0-9:_.\\-]{1,10})?\.service", fullmatch=True)


@settings(deadline=None, max_examples=60)
@given(UNIT_NAMES, st.booleans())
def test_places_are_plain_paths_and_the_hand_is_a_valid_script(unit: str, user_unit: bool) -> None:
    where = deploy.place(unit, user_unit=user_unit, runtime_dir="/run/user/1000", config_dir="/home/o'neil/.config")
    assert re.fullmatch(r"[A-Za-z0-9_./-]+", where.dir + where.timer)
    assert where.dropin.endswith(f"/{unit}.d/zz-leadline.conf")
    text = deploy.hand_text(where, Deploy())
    head = text.partition("\n# leadline's hand")[0]
    assert subprocess.run(["sh", "-c", head + '\nprintf %s "$unit"'], capture_output=True, check=True).stdout.decode() == unit


def test_two_units_never_share_a_place() -> None:
    places = {deploy.place(unit, user_unit=False).dir for unit in ("a@b.service", "a_b.service", "a:b.service", r"a\b.service")}
    assert len(places) == 4


@settings(deadline=None, max_examples=100)
@given(st.floats(1, 3600))
def test_the_timer_looks_often_enough(period_s: float) -> None:
    tick = deploy.tick_s(period_s)
    assert 60 % tick == 0
    assert tick <= max(1, period_s / 6)


def test_the_bound_is_said() -> None:
    assert deploy.restore_bound_s(Deploy(deadman_s=180, stop_grace_s=10)) == 180 + 30 + 10 + 5


def test_owner() -> None:
    owner = deploy.Owner(account="jo", machine="desk", pid=7, since="2026-11-29T20:00:00+00:00", token="t")
    assert deploy.parse_owner(deploy.owner_text(owner)) == owner
    assert deploy.parse_owner("?").machine == "unknown"
    assert deploy.parse_owner('{"account": 1}').pid == 0


def test_trial_dropin() -> None:
    found = deploy.Found(exec_start="x", stop_timeout_s=10.0, to_journal=False)
    text = deploy.trial_dropin(found, "/bin/x \\\n  -a", Deploy(), start_limit_s=3600)
    assert "ExecStart=\nExecStart=/bin/x \\\n  -a\n" in text
    assert {"Restart=no", "TimeoutStartSec=3600", "TimeoutStopSec=90", "StandardOutput=journal"} <= set(text.splitlines())
    endless = deploy.trial_dropin(msgspec.structs.replace(found, stop_timeout_s=None, to_journal=True), "x", Deploy(), start_limit_s=1)
    assert "TimeoutStopSec=infinity" in endless
    assert "StandardOutput" not in endless
    assert deploy.lasting_dropin("/bin/x", when="today").splitlines()[-1] == "ExecStart=/bin/x"


def test_a_file_of_a_launch_stands_in_the_dropin() -> None:
    file = LaunchFile(name="leadline-schedule-1.json", text='{"1": "a\\b"}')
    line = 'SetCredential=leadline-schedule-1.json:{"1": "a\\\\b"}'
    found = deploy.Found(exec_start="x")
    assert line in deploy.trial_dropin(found, "/bin/x", Deploy(), start_limit_s=60, files=[file]).splitlines()
    assert deploy.lasting_dropin("/bin/x", when="today", files=[file]).splitlines()[-1] == line
    assert deploy.credential_path("llm.service", file.name) == "/run/credentials/llm.service/leadline-schedule-1.json"
    assert probes.systemd_release("command not found") is None


def test_the_diff_shows_the_option_that_changed_and_the_whole_dropin() -> None:
    text = deploy.diff("llm.service", "/x -a 1 --depth 3", "/x -a 1 --depth 5", "/run/x.conf", "[Service]\nExecStart=\n")
    assert "---depth 3\n+--depth 5" in text
    assert "new file /run/x.conf\n+ [Service]\n" in text
    assert "as found" in deploy.diff("llm.service", "x", "x", "/run/x.conf", "")


# -- the hand, with a stand-in systemctl -------------------------------------------------------------------------------

SYSTEMCTL = r"""#!/bin/sh
# A service in three files: state, invocation, and the log of what was asked for.
cd "$STAND" || exit 1
echo "$*" >>log
verb=$1; shift
fresh() { n=$(($(cat count) + 1)); echo "$n" >count; echo "inv$n" >invocation; }
case $verb in
show)
    case $2 in
    ExecStart) echo "{ path=/x ; argv[]=/x $(cat dropins 2>/dev/null) ; ignore_errors=no }" ;;
    *) echo "MainPID=7"; echo "ActiveState=$(cat state)"; echo "InvocationID=$(cat invocation)"; echo "ControlGroup=" ;;
    esac ;;
daemon-reload) [ ! -e no-reload ] || { echo "Connection timed out" >&2; exit 1; } ;;
stop) case $* in *timer*) rm -f timer ;; *) [ -e no-stop ] || echo inactive >state ;; esac ;;
kill) echo inactive >state ;;
start) [ ! -e no-start ] || exit 1; echo active >state; fresh ;;
is-active) [ -e timer ] ;;
esac
exit 0
"""


class Stand:
    """A folder that plays the host: /run, /etc and a stand-in systemctl and systemd-run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        bin_ = root / "bin"
        bin_.mkdir()
        for name, text in (("systemctl", SYSTEMCTL), ("systemd-run", '#!/bin/sh\necho "$*" >>"$STAND/timers"; touch "$STAND/timer"\n')):
            (bin_ / name).write_text(text)
            (bin_ / name).chmod(0o755)
        for name, text in (("state", "active"), ("invocation", "inv1"), ("count", "1")):
            (root / name).write_text(text + "\n")
        run = root / "run"
        self.place = Place(
            unit="a b$(touch hacked);'.service",
            user_unit=False,
            folder=str(run / "systemd" / "x.service.d"),
            lasting_folder=str(root / "etc" / "x.service.d"),
            dir=str(run / "leadline" / "x"),
            timer="leadline-x",
        )
        (run / "systemd").mkdir(parents=True)
        self.settings = Deploy(deadman_s=6, stop_grace_s=2)

    def sh(self, *argv: str, stdin: bytes = b"") -> int:
        env = {**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}", "STAND": str(self.root)}
        done = subprocess.run(["sh", *argv], input=stdin, capture_output=True, env=env, cwd=self.root, timeout=60, check=False)
        self.said = done.stderr.decode()
        return done.returncode

    def arm(self, token: str = "t1") -> int:
        hand = deploy.hand_text(self.place, self.settings).encode()
        return self.sh("-c", deploy.BOOTSTRAP, "sh", self.place.dir, str(len(hand)), token, "{}", stdin=hand)

    def hand(self, *argv: str, stdin: bytes = b"") -> int:
        return self.sh(self.place.hand, *argv, stdin=stdin)

    def age(self, seconds: int) -> None:
        up = int(float(Path("/proc/uptime").read_text().split()[0]))
        Path(self.place.dir, "alive").write_text(f"{max(0, up - seconds)}\n")

    @property
    def files(self) -> set[str]:
        kept = {"bin", "state", "invocation", "count", "log", "timers", "timer", "no-reload", "no-start", "no-stop"}
        return {
            str(p.relative_to(self.root)) for p in self.root.rglob("*") if p.is_file() and p.relative_to(self.root).parts[0] not in kept
        }

    def text(self, name: str) -> str:
        return (self.root / name).read_text().strip()


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


def test_a_trial_and_its_end(stand: Stand) -> None:
    assert stand.arm() == 0
    assert "--on-calendar=*:*:0/1" in stand.text("timers")
    assert stand.hand("put", "t1", "3", stdin=b"abc") == 0
    assert Path(stand.place.dropin).read_bytes() == b"abc"
    assert stand.hand("halt", "t1") == 0
    assert stand.text("state") == "inactive"
    assert stand.hand("start", "t1") == 0
    assert stand.hand("restore", "asked") == 0
    assert stand.files == set()
    assert not Path(stand.place.folder).exists()
    assert (stand.text("state"), stand.text("invocation")) == ("active", "inv3")
    assert not (stand.root / "timer").exists()
    assert not (stand.root / "hacked").exists()


def test_nothing_is_restarted_when_the_service_was_never_touched(stand: Stand) -> None:
    stand.arm()
    stand.hand("put", "t1", "3", stdin=b"abc")
    assert stand.hand("restore", "asked") == 0
    assert stand.text("invocation") == "inv1"
    assert stand.files == set()


def test_a_service_that_was_not_running_is_not_started(stand: Stand) -> None:
    (stand.root / "state").write_text("inactive\n")
    stand.arm()
    stand.hand("put", "t1", "3", stdin=b"abc")
    stand.hand("start", "t1")
    assert stand.hand("restore", "asked") == 0
    assert stand.text("state") == "inactive"


def test_the_deadman_waits_for_its_period(stand: Stand) -> None:
    stand.arm()
    stand.hand("put", "t1", "3", stdin=b"abc")
    stand.hand("halt", "t1")
    stand.hand("start", "t1")
    stand.age(4)
    assert stand.hand("check") == 0
    assert stand.files
    assert stand.hand("beat", "t1") == 0
    stand.age(7)
    assert stand.hand("check") == 0
    assert stand.files == set()
    assert re.search(r"silent for 6 s\), [78] s after its last sign of life", stand.said)
    assert stand.text("state") == "active"


def test_after_the_deadman_nothing_of_ours_happens(stand: Stand) -> None:
    stand.arm()
    stand.hand("put", "t1", "3", stdin=b"abc")
    stand.hand("restore", "asked")
    log = stand.text("log")
    for verb in (
        ("beat", "t1"),
        ("put", "t1", "1"),
        ("halt", "t1"),
        ("start", "t1"),
        ("kill", "t1", "INT"),
        ("commit", "t1"),
        ("restore", "x"),
    ):
        assert stand.hand(*verb, stdin=b"x") in (2, 76, 127)
    assert stand.text("log") == log
    assert stand.arm("t2") == 0
    for verb in (("put", "t1", "1"), ("halt", "t1"), ("start", "t1"), ("commit", "t1"), ("beat", "t1")):
        assert stand.hand(*verb, stdin=b"x") == 76, "another campaign's token opens nothing"


def test_one_campaign_a_service(stand: Stand) -> None:
    assert stand.arm("t1") == 0
    assert stand.arm("t2") == 77
    assert Path(stand.place.dir, "token").read_text() == "t1"


def test_half_a_file_changes_nothing(stand: Stand) -> None:
    hand = deploy.hand_text(stand.place, stand.settings).encode()
    assert stand.sh("-c", deploy.BOOTSTRAP, "sh", stand.place.dir, str(len(hand)), "t", "{}", stdin=hand[:-40]) == 74
    assert stand.files == set()
    stand.arm()
    assert stand.hand("put", "t1", "100", stdin=b"short") == 74
    assert not Path(stand.place.dropin).exists()
    assert not Path(stand.place.folder).exists()


def test_a_failed_reload_is_taken_back(stand: Stand) -> None:
    stand.arm()
    (stand.root / "no-reload").touch()
    assert stand.hand("put", "t1", "3", stdin=b"abc") == 75
    assert not Path(stand.place.dropin).exists()


def test_a_trial_that_does_not_end_is_ended_after_its_grace(stand: Stand) -> None:
    stand.arm()
    stand.hand("put", "t1", "3", stdin=b"abc")
    (stand.root / "no-stop").touch()
    begin = time.monotonic()
    assert stand.hand("halt", "t1") == 0
    assert time.monotonic() - begin >= stand.settings.stop_grace_s
    assert stand.text("log").count("kill -s KILL") == 1
    assert stand.text("state") == "inactive"


def test_the_deadman_tries_until_it_works(stand: Stand) -> None:
    stand.arm()
    stand.hand("put", "t1", "3", stdin=b"abc")
    stand.hand("halt", "t1")
    (stand.root / "no-reload").touch()
    stand.age(7)
    assert stand.hand("check") == 75
    assert not Path(stand.place.dropin).exists()
    (stand.root / "no-reload").unlink()
    (stand.root / "no-start").touch()
    assert stand.hand("check") == 75
    (stand.root / "no-start").unlink()
    assert stand.hand("check") == 0
    assert (stand.files, stand.text("state")) == (set(), "active")


def test_the_deadman_never_gives_up_on_a_reload(stand: Stand) -> None:
    """systemd 252 refuses one while /run is nearly full; the ballast makes room for it."""
    stand.arm()
    assert Path(stand.place.dir, "ballast").stat().st_size == 20 << 20
    stand.hand("put", "t1", "3", stdin=b"abc")
    (stand.root / "no-reload").touch()
    Path(stand.place.dir, "tries").write_text("29\n")
    stand.age(7)
    for _ in range(3):
        assert stand.hand("check") == 75
        assert "daemon-reload failed" in stand.said
    assert not Path(stand.place.dir, "ballast").exists()
    (stand.root / "no-reload").unlink()
    assert stand.hand("check") == 0
    assert stand.files == set()


def test_the_deadman_gives_up_in_the_end(stand: Stand) -> None:
    stand.arm()
    stand.hand("put", "t1", "3", stdin=b"abc")
    stand.hand("halt", "t1")
    (stand.root / "no-start").touch()
    Path(stand.place.dir, "tries").write_text("29\n")
    stand.age(7)
    assert stand.hand("check") == 0
    assert "did not come up" in stand.said
    assert stand.files == set()


def test_an_unreadable_sign_of_life_counts_as_none(stand: Stand) -> None:
    stand.arm()
    Path(stand.place.dir, "alive").write_text("garbage\n")
    assert stand.hand("check") == 0
    assert stand.files == set()


def test_apply_and_undo(stand: Stand) -> None:
    stand.arm()
    stand.hand("put", "t1", "3", stdin=b"abc")
    assert stand.hand("keep", "t1", "3", stdin=b"new") == 0
    assert not Path(stand.place.dropin).exists()
    assert stand.hand("commit", "t1") == 0
    assert stand.files == {"etc/x.service.d/zz-leadline.conf"}
    stand.arm("t2")
    assert stand.hand("keep", "t2", "5", stdin=b"newer") == 0
    stand.hand("commit", "t2")
    for token, left in (("t3", b"new"), ("t4", None)):
        stand.arm(token)
        assert stand.hand("undo", token) == 0
        assert Path(stand.place.lasting).exists() == (left is not None)
        assert left is None or Path(stand.place.lasting).read_bytes() == left
    assert stand.files == set()
    assert not Path(stand.place.lasting_folder).exists()


def test_a_service_that_did_not_run_before_does_not_run_afterwards(stand: Stand) -> None:
    (stand.root / "state").write_text("inactive\n")
    stand.arm()
    lasting = deploy.lasting_dropin("/bin/x", when="today", ran=False).encode()
    for verb, stdin in (("put", b"abc"), ("keep", lasting)):
        assert stand.hand(verb, "t1", str(len(stdin)), stdin=stdin) == 0
    stand.hand("start", "t1")
    stand.hand("commit", "t1")
    assert stand.text("state") == "active"
    stand.arm("t2")
    assert stand.hand("undo", "t2") == 0
    assert (stand.files, stand.text("state")) == (set(), "inactive")


def test_apply_that_is_never_committed_is_taken_back(stand: Stand) -> None:
    stand.arm()
    stand.hand("keep", "t1", "3", stdin=b"new")
    stand.hand("halt", "t1")
    stand.hand("start", "t1")
    stand.age(7)
    assert stand.hand("check") == 0
    assert stand.files == set()
    assert not Path(stand.place.lasting_folder).exists()
    (stand.root / "no-reload").touch()
    stand.arm("t2")
    assert stand.hand("keep", "t2", "3", stdin=b"new") == 75
    assert not Path(stand.place.lasting).exists()


@settings(deadline=None, max_examples=30)
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12), min_size=1, max_size=5))
def test_what_ssh_carries_arrives_word_for_word(argv: list[str]) -> None:
    done = subprocess.run(["sh", "-c", shlex.join(["printf", "%s\\0", *argv])], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == argv
