"""The lab host as the tests use it: a real systemd and sshd in user-mode Linux (``lab-host``), and units to break on it."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

import leadline
from leadline.probes import Shown, parse_show
from leadline.ssh import SshTarget

HERE = Path(__file__).parent
SERVER = "/opt/lab/llama-server"

UNIT = """\
[Unit]
Description=a service of the lab
[Service]
ExecStart={server} -m "/models/two words.gguf" \\
    --port {port} --spec-type draft-simple -md /models/d.gguf \\
    --spec-draft-n-max 4
Restart=on-failure
TimeoutStopSec=30
Environment=LAB_LOAD_S=0.1
[Install]
WantedBy=multi-user.target
"""

ENGINE = """\
[Unit]
Description=the fake engine as a real process
[Service]
Environment=PYTHONPATH=/opt/lab/site PYTHONUNBUFFERED=1
ExecStart=/usr/bin/python3 -m leadline.fakeserver --port {port} \\
    {arguments}
Restart=on-failure
TimeoutStopSec=30
[Install]
WantedBy=multi-user.target
"""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What one unit is found to be."""

    active: bool
    command: str
    """Of its main process, as /proc has it; its arguments joined by blanks."""
    invocation: str
    started_s: float
    """Its main process; seconds since the epoch by the guest's clock, which is the host's."""
    dropins: tuple[str, ...]
    loaded: bool
    """systemd has read its files as they are."""
    held: bool
    """leadline's folder for it stands."""

    @property
    def clean(self) -> bool:
        return self.active and self.loaded and not self.held

    @property
    def original(self) -> bool:
        return self.clean and not self.dropins and self.command.endswith("--spec-draft-n-max 4")


class Lab:
    """One running instance; commands go as root over an own connection."""

    def __init__(self, name: str, *, keep: bool = False) -> None:
        self.name, self.keep = name, keep
        self._tool("up", *(() if keep else ("--owner", str(os.getpid()))))
        self.config = self._tool("config").strip()
        self._connect()

    @property
    def ssh(self) -> tuple[str, ...]:
        return ("ssh", "-F", self.config)

    def _connect(self) -> None:
        self.root = SshTarget("lab", ssh=self.ssh)
        self.sh("mount -o remount,size=160M /run")  # leadline sets 20 MiB aside for each of a few units

    def _tool(self, verb: str, *options: str) -> str:
        done = subprocess.run(
            [sys.executable, HERE / "lab-host", verb, "--name", self.name, *options],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=600,
        )
        return done.stdout

    def reboot(self) -> None:
        """A power cycle: nothing of /run survives."""
        self.root.close()
        self._tool("reboot")
        self._connect()

    def down(self) -> None:
        self.root.close()
        if not self.keep:
            self._tool("down")

    def link(self, state: str) -> None:
        """Cut or mend the only cable of the guest: ``up`` or ``down``."""
        subprocess.run(["ip", "-n", f"lab-{self.name}", "link", "set", "br0", state], check=True)

    def sh(self, script: str, *args: str, timeout_s: float = 60.0) -> str:
        return self.root.run(["sh", "-c", script, "sh", *args], timeout_s=timeout_s).check("lab").text

    def install(self, names: list[str], first_port: int = 8100) -> None:
        """Units under /etc, enabled and running."""
        self.root.write(SERVER, (HERE / "llama-server").read_bytes(), mode=0o755)
        box = io.BytesIO()
        with tarfile.open(fileobj=box, mode="w") as tar:
            for number, name in enumerate(names):
                text = UNIT.format(server=SERVER, port=first_port + number).encode()
                entry = tarfile.TarInfo(name)
                entry.size = len(text)
                tar.addfile(entry, io.BytesIO(text))
        self.root.run(["tar", "-x", "-C", "/etc/systemd/system"], stdin=box.getvalue()).check("lab")
        self.sh('systemctl daemon-reload && systemctl enable -q "$@" && systemctl restart "$@"', *names, timeout_s=120.0)

    def install_engine(self, name: str, port: int, *arguments: str) -> None:
        """A unit that runs the fake engine as a real process. Takes leadline and msgspec along; the guest has only python3."""
        box = io.BytesIO()
        with tarfile.open(fileobj=box, mode="w:gz") as tar:
            for module in (leadline, msgspec):
                folder = Path(str(module.__file__)).parent
                tar.add(folder, arcname=folder.name, filter=_code_only)
        self.root.run(["sh", "-c", "mkdir -p /opt/lab/site && tar -xz -C /opt/lab/site"], stdin=box.getvalue(), timeout_s=120.0).check(
            "lab"
        )
        text = ENGINE.format(port=port, arguments=" \\\n    ".join(arguments))
        self.root.write(f"/etc/systemd/system/{name}", text.encode())
        self.sh('systemctl daemon-reload && systemctl enable -q --now "$1"', name, timeout_s=120.0)

    def wait_for_port(self, port: int, limit_s: float = 60.0) -> None:
        until = time.monotonic() + limit_s
        while "LISTEN" not in self.sh(f"ss -Hltn 'sport = :{port}'"):
            assert time.monotonic() < until, f"nobody listens on {port}"
            time.sleep(0.3)

    def remove(self, names: list[str]) -> None:
        self.sh(
            'systemctl disable -q --now "$@"; for n; do rm -rf "/etc/systemd/system/$n" "/etc/systemd/system/$n.d"; done; '
            "systemctl daemon-reload; systemctl reset-failed; true",
            *names,
        )

    def show(self, names: list[str]) -> dict[str, Shown]:
        properties = "Id,ActiveState,SubState,MainPID,InvocationID,DropInPaths,ExecStart,NeedDaemonReload,UnitFileState"
        text = self.root.run(["systemctl", "show", "-p", properties, "--", *names]).check("lab").text
        shown = (parse_show(part) for part in text.split("\n\n"))
        return {one.get("Id"): one for one in shown if one.get("Id")}

    def looks(self, names: Sequence[str]) -> dict[str, Look]:
        """Each unit as it is now, from systemd, from /proc and from leadline's folder."""
        if not names:
            return {}
        text = self.sh(
            'systemctl show -p Id,ActiveState,MainPID,ExecMainStartTimestampMonotonic,InvocationID,DropInPaths,NeedDaemonReload -- "$@" | while IFS= read -r line; do '
            'echo "$line"; case $line in MainPID=*) printf Command=; tr "\\0" " " <"/proc/${line#*=}/cmdline" 2>/dev/null; echo ;; esac; done; '
            'echo; echo "Held=$(echo /run/leadline/*)"; date +Now=%s.%N; read -r up _ </proc/uptime; echo "Up=$up"',
            *names,
        )
        every = parse_show(text)
        held = {path.rpartition("/")[2] for path in every.get("Held").split()}
        boot_s = float(every.get("Now")) - float(every.get("Up"))
        found = {}
        for part in text.split("\n\n"):
            one = parse_show(part)
            if one.get("Id"):
                found[one.get("Id")] = Look(
                    active=one.get("ActiveState") == "active",
                    command=one.get("Command").rstrip(),
                    invocation=one.get("InvocationID"),
                    started_s=boot_s + (one.number("ExecMainStartTimestampMonotonic") or 0) / 1e6,
                    dropins=tuple(one.get("DropInPaths").split()),
                    loaded=one.get("NeedDaemonReload") == "no",
                    held=one.get("Id").removesuffix(".service") in held,
                )
        return found

    def original(self, names: Sequence[str]) -> list[str]:
        """Those units that are active, run the command of their unit file, and have nothing of leadline's on them."""
        return [name for name, look in self.looks(names).items() if look.original]

    def held(self) -> set[str]:
        """Units that leadline's folder names: a glance that costs the guest next to nothing."""
        return {f"{path.rpartition('/')[2]}.service" for path in self.sh("echo /run/leadline/*").split()}

    def restored(self, since_s: float) -> dict[str, tuple[float, int]]:
        """When the dead-man said of each unit that it is as found again (seconds since the epoch by the guest's clock, which is the
        host's), and how long after leadline's last sign of life."""
        said = self.sh('journalctl --no-pager -o short-unix -g "as found again" --since="@$1" || true', str(int(since_s)))
        found = re.findall(r"^([\d.]+) .*leadline: (\S+): as found again .*, (\d+) s after its last sign of life", said, re.MULTILINE)
        return {unit: (float(at), int(silent_s)) for at, unit, silent_s in found}

    def traces(self) -> str:
        """Everything of leadline's that stands on the host; empty when nothing does."""
        return self.sh(
            "find /run/leadline /run/systemd/transient /etc/systemd /run/systemd/system /run/user -name '*leadline*' 2>/dev/null; ls -A /run/leadline 2>/dev/null; "
            "systemctl list-units --all --no-legend --plain 'leadline*'; true"
        ).strip()

    def files(self) -> str:
        """Every file, link and folder that systemd reads units from, with its content's digest."""
        return self.sh(
            "cd / && find etc/systemd run/systemd/system run/systemd/transient usr/local -mindepth 1 "
            "\\( -type l -printf '%p -> %l\\n' -o -type d -printf '%p/\\n' -o -exec sha256sum {} + \\) 2>/dev/null | sort"
        )


def _code_only(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """What the fake engine imports: no data, no compiled files of the host, no other stations."""
    parts = entry.name.split("/")
    if entry.isdir():
        return None if {"__pycache__", "data", "report", "diagnose", "frontier", "stream"} & set(parts) else entry
    return entry if entry.name.endswith((".py", ".so")) else None
