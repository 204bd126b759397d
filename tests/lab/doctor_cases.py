"""Failures produced for real on the lab host, and what the doctor has to call them: used by the test and by hand.

Run by hand: ``LEADLINE_SSH="ssh -F .../ssh_config" PYTHONPATH=src python tests/lab/doctor_cases.py HOST_ALIAS``
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

DUMMY = r"""
import os, signal, socket, subprocess, sys, time
def say(text): print(text, flush=True)
def eat(limit_mb):
    kept = []
    while len(kept) < limit_mb: kept.append(bytearray(os.urandom(1) * (1 << 20)))
    time.sleep(600)
what = sys.argv[1]
say(f"INFO:     Started server process [{os.getpid()}]")
if what == "eat": say("Loading checkpoint shards:   0% Completed | 0/30"); eat(4000)
if what == "child":
    say("INFO:     Uvicorn running on http://127.0.0.1:8000 (Press CTRL+C to quit)")
    subprocess.run([sys.executable, sys.argv[0], "eat"]); time.sleep(600)
if what == "segv": say("INFO:     Uvicorn running on http://127.0.0.1:8000 (Press CTRL+C to quit)"); time.sleep(0.3); os.kill(os.getpid(), signal.SIGSEGV)
if what == "slow":
    for n in range(60): say(f"Loading checkpoint shards:  {n}% Completed | {n}/60"); time.sleep(0.5)
if what == "exit": sys.exit(1)
if what == "bind":
    holder = socket.socket(); holder.bind(("127.0.0.1", 22)); holder.listen()
if what == "kill": say("INFO:     Uvicorn running on http://127.0.0.1:8000 (Press CTRL+C to quit)"); time.sleep(0.3); os.kill(os.getpid(), signal.SIGKILL)
if what == "serve":
    listener = socket.socket(); listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); listener.bind(("127.0.0.1", 8000)); listener.listen()
    say("INFO:     Uvicorn running on http://127.0.0.1:8000 (Press CTRL+C to quit)"); time.sleep(600)
"""


@dataclass(frozen=True)
class LabCase:
    name: str
    cls: str
    service: str
    wait_s: float = 4.0
    until: str = ""
    """A word that the unit's journal or the kernel log must show before the doctor is asked."""


RUN = "ExecStart=/usr/bin/python3 /opt/llm/dummy.py "
CASES: tuple[LabCase, ...] = (
    LabCase("cgroup-oom", "memory.host_oom_kill", RUN + "eat\nMemoryMax=64M\n", 30, "OOM killer"),
    LabCase("global-oom-main", "memory.host_oom_kill", RUN + "eat\n", 60, "status=9/KILL"),
    LabCase("global-oom-child", "memory.host_oom_kill", RUN + "child\nOOMPolicy=continue\n", 60, "OOM killer"),
    LabCase("segv", "engine.internal_error", RUN + "segv\n", 15, "Failed with result"),
    LabCase(
        "start-timeout", "supervisor.killed_while_loading", "Type=notify\nTimeoutStartSec=2\n" + RUN + "slow\n", 15, "Failed with result"
    ),
    LabCase("start-limit", "supervisor.restart_loop", "Restart=on-failure\nRestartSec=0.1\n" + RUN + "exit\n", 20, "repeated too quickly"),
    LabCase("missing-binary", "host.toolchain_missing", "ExecStart=/opt/llm/venv/bin/vllm serve model\n", 10, "Failed with result"),
    LabCase("port-in-use", "network.port_in_use", RUN + "bind\n", 15, "Failed with result"),
    LabCase("killed", "unknown", RUN + "kill\n", 15, "Failed with result"),
    LabCase("healthy", "healthy", RUN + "serve\n", 10, "Uvicorn running"),
)


def on_guest(ssh: Sequence[str], script: str) -> str:
    done = subprocess.run([*ssh, "sh", "-s"], input=script, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


def prepare(ssh: Sequence[str]) -> None:
    on_guest(ssh, f"mkdir -p /opt/llm\ncat > /opt/llm/dummy.py <<'END'\n{DUMMY}\nEND\n")


def produce(ssh: Sequence[str], case: LabCase) -> str:
    """Install and start the unit, wait until its journal shows the failure; returns the unit's name."""
    unit = f"doc-{case.name}-{int(time.time()) % 100000}.service"  # a name of its own, so that no older journal answers
    limits = "StartLimitBurst=3\nStartLimitIntervalSec=60\n" if case.name == "start-limit" else ""
    text = f"[Unit]\nDescription=LLM inference (lab)\n{limits}[Service]\n{case.service}"
    on_guest(ssh, f"cat > /run/systemd/system/{unit} <<'END'\n{text}END\nsystemctl daemon-reload; systemctl --no-block start {unit}\n")
    deadline = time.monotonic() + case.wait_s
    while time.monotonic() < deadline:
        if case.until in on_guest(ssh, f"journalctl -u {unit} --no-pager -n 60"):
            break
        time.sleep(0.5)
    return unit


def clean(ssh: Sequence[str], unit: str) -> None:
    on_guest(ssh, f"systemctl stop {unit}; systemctl reset-failed {unit}; rm -f /run/systemd/system/{unit}; systemctl daemon-reload")


def main(alias: str) -> int:
    from leadline.doctor import examine
    from leadline.services import ssh_command

    ssh = [*ssh_command(), alias]
    prepare(ssh)
    wrong = 0
    for case in CASES:
        unit = produce(ssh, case)
        began = time.monotonic()
        findings = examine(f"ssh://root@{alias}/{unit}")
        took = time.monotonic() - began
        wrong += findings[0].cls != case.cls
        print(
            f"{case.name:18} {findings[0].cls:32} {'ok ' if findings[0].cls == case.cls else 'BAD'} {took:5.2f} s  {findings[0].phase}: {findings[0].summary[:100]}"
        )
        for quote in findings[0].quotes:
            print(f"    {quote.source}:{quote.line} {quote.text[:140]}")
        clean(ssh, unit)
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
