"""The lab host as the tests use it: a real systemd and sshd in user-mode Linux (``lab-host``), and units to break on it."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
import time
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
        self.sh("mount -o remount,size=320M /run")  # leadline sets 20 MiB aside for each of up to eleven units

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

    def original(self, names: list[str]) -> list[str]:
        """Those units that are active, run the command of their unit file, and have nothing of leadline's on them."""
        if not names:
            return []
        text = self.sh(
            'systemctl show -p Id,ActiveState,MainPID,DropInPaths,NeedDaemonReload -- "$@"; echo; echo "Held=$(ls /run/leadline 2>/dev/null | tr "\\n" " ")"; '
            'for p in $(systemctl show -p MainPID --value -- "$@"); do printf "Process%s=" "$p"; tr "\\0" " " <"/proc/$p/cmdline" 2>/dev/null; echo; done',
            *names,
        )
        every = parse_show(text)
        held = every.get("Held").split()
        found = []
        for part in text.split("\n\n"):
            one = parse_show(part)
            command = every.get(f"Process{one.get('MainPID')}").rstrip()
            clean = (
                one.get("Id").removesuffix(".service") not in held and not one.get("DropInPaths") and one.get("NeedDaemonReload") == "no"
            )
            if one.get("Id") and clean and one.get("ActiveState") == "active" and command.endswith("--spec-draft-n-max 4"):
                found.append(one.get("Id"))
        return found

    def restored_at(self, since_s: float) -> dict[str, float]:
        """When the hand said of each unit that it is as found again; seconds since the epoch by the guest's clock, which is the host's."""
        said = self.sh('journalctl --no-pager -o short-unix -g "as found again" --since="@$1" || true', str(int(since_s)))
        found = re.findall(r"^([\d.]+) .*leadline: (\S+): as found again", said, re.MULTILINE)
        return {unit: float(at) for at, unit in found}

    def traces(self) -> str:
        """Everything of leadline's that stands on the host; empty when nothing does."""
        return self.sh(
            "find /run/leadline /run/systemd/transient /etc/systemd /run/systemd/system /run/user -name '*leadline*' 2>/dev/null; ls -A /run/leadline 2>/dev/null; "
            "systemctl list-units --all --no-legend --plain 'leadline*'; true"
        ).strip()

    def files(self) -> str:
        """Every file, link and folder that systemd reads units from, with its content's digest."""
        return self.sh(
            "cd / && find etc/systemd run/systemd/system run/systemd/transient usr/local -mindepth 1 2>/dev/null | sort | while read -r f; do "
            'if [ -L "$f" ]; then echo "$f -> $(readlink "$f")"; elif [ -f "$f" ]; then sha256sum "$f"; else echo "$f/"; fi; done'
        )


def _code_only(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """What the fake engine imports: no data, no compiled files of the host, no other stations."""
    parts = entry.name.split("/")
    if entry.isdir():
        return None if {"__pycache__", "data", "report", "diagnose", "frontier", "stream"} & set(parts) else entry
    return entry if entry.name.endswith((".py", ".so")) else None
