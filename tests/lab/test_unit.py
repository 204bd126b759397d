"""One unit on a real host: rights, locks, read-back, neighbours, hostile arguments, a user's own unit."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leadline import hold
from leadline.config import Deploy
from leadline.errors import (
    CannotRewrite,
    HostInUse,
    HostKeyRefused,
    HostUnreachable,
    LaunchFailed,
    NeedsRights,
    NeighboursAtRisk,
    ReadBackDiffers,
    UnitNotFound,
)
from leadline.records import LaunchFile
from leadline.ssh import SshTarget
from leadline.systemd import SystemdSupervisor

from .host import Lab

UNIT = "one.service"


@pytest.fixture(scope="module")
def unit(lab: Lab) -> Iterator[str]:
    lab.install([UNIT], first_port=8090)
    yield UNIT
    lab.remove([UNIT])


@pytest.fixture
def service(lab: Lab, unit: str) -> Iterator[SystemdSupervisor]:
    """As root. The host is the same before and after, whatever the test did."""
    before = lab.files()
    supervisor = open_unit(lab, "root")
    yield supervisor
    supervisor.restore(force=True)
    supervisor.close()
    assert lab.traces() == ""
    assert lab.files() == before
    assert lab.original([UNIT]) == [UNIT]


def open_unit(lab: Lab, account: str, unit: str = UNIT, *, allow: bool = False, user_unit: bool = False) -> SystemdSupervisor:
    wanted = Deploy(deadman_s=60, stop_grace_s=2, free_timeout_s=5, allow_gpu_neighbours=allow)
    target = SshTarget(f"{account}@lab", ssh=lab.ssh)
    return SystemdSupervisor(target, unit, target_name=f"ssh://{account}@lab/{unit}", settings=wanted, user_unit=user_unit)


def with_depth(service: SystemdSupervisor, depth: str) -> list[str]:
    return [*service.service().command.argv[:-1], depth]


def test_an_account_without_rights_may_look_and_is_told_what_is_missing(lab: Lab, unit: str) -> None:
    before = lab.files()
    viewer = open_unit(lab, "viewer")
    found = viewer.service()
    assert found.running
    assert found.command.argv[2] == "/models/two words.gguf"
    with pytest.raises(NeedsRights) as caught:
        viewer.start(with_depth(viewer, "6"))
    assert "viewer ALL=(root) NOPASSWD: ALL" in caught.value.next
    viewer.close()
    assert (lab.files(), lab.traces()) == (before, "")


def test_sudo_is_enough(lab: Lab, service: SystemdSupervisor) -> None:
    ops = open_unit(lab, "ops")
    launch = ops.start(with_depth(ops, "6"))
    assert ops.status(launch).running
    (listener,) = wait_for_listener(ops, 8090)
    assert b"loading model /models/two words.gguf" in ops.log(launch)
    assert ops.owns(launch, listener.pid)
    assert not ops.owns(launch, 1)
    assert listener.started_s is not None
    assert abs(listener.started_s - launch.started_s) < 5.0
    ended = ops.stop(launch)
    assert (ended.code, ended.by) == (0, "leadline")
    assert "runs as found" in ops.restore()
    ops.close()


def wait_for_listener(service: SystemdSupervisor, port: int) -> tuple[object, ...]:
    for _ in range(100):
        found = service.listeners(port)
        if found:
            return found
        time.sleep(0.3)
    raise AssertionError(f"nobody listens on {port}")


def test_hostile_arguments_reach_the_process_as_they_are(lab: Lab, service: SystemdSupervisor) -> None:
    hostile = [
        "two words",
        'it\'s "quoted"',
        "$HOME ${PATH} $$",
        "100% %n %%",
        "a;b ; c",
        "line1\nline2",
        "\\x41 \\",
        "`id` $(id)",
        "#x",
        "é",
        "",
    ]
    launch = service.start([*service.service().command.argv, *hostile])
    wait_for_listener(service, 8090)  # the process that systemd forked has become the engine
    seen = lab.root.read(f"/proc/{launch.pid}/cmdline").split(b"\0")[:-1]
    assert [part.decode() for part in seen[-len(hostile) :]] == hostile


def test_a_file_of_a_launch_is_a_credential_of_its_unit(lab: Lab, service: SystemdSupervisor) -> None:
    note = LaunchFile(name="leadline-schedule-1.json", text='{"1": {"candidate_steps": [5]}, "32": {"candidate_steps": [1]}}')
    path = f"/run/credentials/{UNIT}/{note.name}"
    argv = [*service.service().command.argv, "--table", note.name]
    assert path in service.plan(argv, files=[note])
    launch = service.start(argv, files=[note])
    wait_for_listener(service, 8090)
    assert lab.root.read(f"/proc/{launch.pid}/cmdline").split(b"\0")[-2].decode() == path
    assert lab.root.read(f"/proc/{launch.pid}/root{path}").decode() == note.text
    service.restore()
    service.apply(argv, files=[note])
    applied = service.service().launch
    assert applied is not None
    assert lab.root.read(f"/proc/{applied.pid}/root{path}").decode() == note.text
    assert "runs as it did before" in service.undo()
    with pytest.raises(FileNotFoundError):
        lab.root.read(path)


def test_one_campaign_a_service(lab: Lab, service: SystemdSupervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    service.start(with_depth(service, "6"))
    monkeypatch.setattr(hold.socket, "gethostname", lambda: "another-machine")
    other = open_unit(lab, "root")
    assert any("held by another campaign" in note for note in other.service().notes)
    for attempt in (other.arm, other.restore):
        with pytest.raises(HostInUse) as caught:
            attempt()
        assert "renewed" in caught.value.message
        assert "--force" in caught.value.next
    assert "runs as found" in other.restore(force=True)
    other.close()


def test_what_a_later_drop_in_undoes_is_noticed_and_taken_back(lab: Lab, unit: str) -> None:
    later = f"/etc/systemd/system/{unit}.d/zzz-later.conf"
    lab.root.write(
        later, b'[Service]\nExecStart=\nExecStart=/opt/lab/llama-server -m "/models/two words.gguf" --port 8090 --spec-draft-n-max 4\n'
    )
    lab.sh("systemctl daemon-reload && systemctl restart one.service")
    before, service = lab.files(), open_unit(lab, "root")
    try:
        with pytest.raises(ReadBackDiffers, match="zz-leadline"):
            service.start(with_depth(service, "6"))
        assert (lab.files(), lab.traces()) == (before, "")
    finally:
        service.close()
        lab.sh('rm -r "/etc/systemd/system/$1.d"; systemctl daemon-reload; systemctl restart "$1"', unit)


def test_an_applied_setting_that_does_not_come_up_is_rolled_back(lab: Lab, service: SystemdSupervisor) -> None:
    with pytest.raises(LaunchFailed) as caught:
        service.apply(with_depth(service, "9"))
    assert caught.value.fields["rolled_back"] == "true"
    assert lab.traces() == ""
    assert lab.original([UNIT]) == [UNIT]


def test_a_pending_change_of_the_unit_is_refused(lab: Lab, service: SystemdSupervisor) -> None:
    lab.sh('cp "/etc/systemd/system/$1" /tmp/kept; echo "# note" >>"/etc/systemd/system/$1"; sleep 1; touch "/etc/systemd/system/$1"', UNIT)
    try:
        with pytest.raises(CannotRewrite, match="changed after systemd read"):
            service.start(with_depth(service, "6"))
    finally:
        lab.sh('cp /tmp/kept "/etc/systemd/system/$1"; systemctl daemon-reload', UNIT)


NVIDIA_SMI = b"""#!/bin/sh
for p in $(cat /sys/fs/cgroup/system.slice/docker-0123456789abcdef.scope/cgroup.procs 2>/dev/null); do echo "$p, 500"; done
"""


def test_containers_with_gpus_next_door_stop_the_first_reload(lab: Lab, service: SystemdSupervisor) -> None:
    lab.root.write("/usr/local/sbin/nvidia-smi", NVIDIA_SMI, mode=0o755)
    lab.root.write("/usr/local/bin/nvidia-smi", NVIDIA_SMI, mode=0o755)
    lab.sh("systemd-run -q --unit=docker-0123456789abcdef.scope --scope sleep 300 >/dev/null 2>&1 </dev/null & sleep 1")
    try:
        with pytest.raises(NeighboursAtRisk, match="container 0123456789ab"):
            service.start(with_depth(service, "6"))
        assert lab.traces() == ""
        allowed = open_unit(lab, "root", allow=True)
        allowed.start(with_depth(allowed, "6"))
        allowed.restore()
        allowed.close()
    finally:
        lab.sh("systemctl stop docker-0123456789abcdef.scope; rm -f /usr/local/sbin/nvidia-smi /usr/local/bin/nvidia-smi")


DOCKER = b"""#!/bin/sh
# A container engine in one container: its process lives in a scope of its own, as with the systemd cgroup driver.
id=0123456789abcdef0123456789abcdef
case $1 in
inspect) echo $id ;;
run)
    while [ "$1" != lab/llama ]; do shift; done
    shift
    systemd-run -q --scope --unit=docker-$id.scope "$@" &
    trap 'systemctl stop docker-$id.scope' TERM
    wait
    wait
    ;;
esac
"""
BOX = b"""[Service]
ExecStart=/usr/local/bin/docker run --rm --name box --network host lab/llama /opt/lab/llama-server -m m.gguf --port 8096 \\
    --spec-type draft-simple -md d.gguf --spec-draft-n-max 4
"""


def test_a_containers_process_belongs_to_the_unit_that_runs_it(lab: Lab, unit: str) -> None:
    lab.root.write("/usr/local/bin/docker", DOCKER, mode=0o755)
    lab.root.write("/etc/systemd/system/box.service", BOX)
    lab.sh("systemctl daemon-reload; systemctl start box.service")
    lab.wait_for_port(8096)  # by then the scope, which is a transient unit with a file of its own, is there
    before = lab.files()
    service = open_unit(lab, "root", "box.service")
    try:
        launch = service.start(with_depth(service, "6"))
        (listener,) = wait_for_listener(service, 8096)
        group = lab.sh(f"cat /proc/{listener.pid}/cgroup")
        assert "docker-0123456789abcdef" in group, "it is outside of the unit's own cgroup"
        assert service.owns(launch, listener.pid)
        assert not service.owns(launch, 1)
        assert service.stop(launch).by == "leadline"
        assert service.listeners(8096) == ()
        assert "runs as found" in service.restore()
        lab.wait_for_port(8096)
        assert (lab.files(), lab.traces()) == (before, "")
    finally:
        service.close()
        lab.remove(["box.service"])
        lab.sh("rm -f /usr/local/bin/docker")


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12), min_size=1, max_size=5))
def test_any_words_arrive_as_they_are(lab: Lab, argv: list[str]) -> None:
    """Over the real sshd and the account's login shell."""
    assert lab.root.run(["printf", "%s\\0", *argv]).stdout.decode().split("\0")[:-1] == argv


def test_units_and_hosts_that_are_not_there(lab: Lab, unit: str) -> None:
    nobody = open_unit(lab, "root", "nobody.service")
    with pytest.raises(UnitNotFound):
        nobody.service()
    nobody.close()
    with pytest.raises(HostUnreachable, match="Permission denied"):
        SshTarget("nosuch@lab", ssh=lab.ssh).run(["true"])
    with pytest.raises(HostKeyRefused, match="not in known_hosts"):
        SshTarget("lab", ssh=(*lab.ssh, "-o", "UserKnownHostsFile=/dev/null")).run(["true"])


def test_the_round_trip_is_measured_and_a_lost_connection_comes_back(lab: Lab, service: SystemdSupervisor) -> None:
    assert isinstance(service.target, SshTarget)
    assert 0 < service.target.round_trip_ms() < 10_000
    assert service.target._master is not None
    service.target._master.kill()
    service.target._master.wait()  # a command caught in between would rightly say that the connection was lost
    assert service.service().running


def test_a_unit_of_the_accounts_own_systemd(lab: Lab, unit: str) -> None:
    """No root anywhere: drop-in, hand and timer stand under /run/user."""
    uid = lab.sh("id -u ops").strip()
    lab.sh(
        'mkdir -p "/run/user/$1" && chown ops: "/run/user/$1" && chmod 700 "/run/user/$1"; systemctl start "user@$1.service"; systemctl is-active "user@$1.service"',
        uid,
    )
    text = "[Service]\nExecStart=/opt/lab/llama-server -m m.gguf --port 8095 --spec-type draft-simple -md d.gguf --spec-draft-n-max 4\n"
    ops = SshTarget("ops@lab", ssh=lab.ssh)
    ops.write("/home/ops/.config/systemd/user/mine.service", text.encode())
    run = ["env", f"XDG_RUNTIME_DIR=/run/user/{uid}", "systemctl", "--user"]
    ops.run([*run, "daemon-reload"]).check("lab")
    ops.run([*run, "start", "mine.service"]).check("lab")
    service = open_unit(lab, "ops", "mine.service", user_unit=True)
    launch = service.start(with_depth(service, "6"))
    assert service.status(launch).running
    assert lab.sh(f"ls /run/user/{uid}/leadline").split() == ["mine"]
    assert "runs as found" in service.restore()
    assert lab.sh(f"ls -A /run/user/{uid}").split().count("leadline") == 0
    service.close()
    ops.run([*run, "stop", "mine.service"]).check("lab")
    ops.run(["rm", "-r", "/home/ops/.config/systemd"])
    ops.close()
    lab.sh('systemctl stop "user@$1.service"', uid)
