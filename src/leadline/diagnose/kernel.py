"""What the kernel says: OOM kills with their victim, NVIDIA's Xid reports, segfaults, denials. Parsed by key, never by position."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from .lines import FACT, UNIT, Line


class OomKill(msgspec.Struct):
    line: Line
    task: str = ""
    pid: int | None = None
    cgroup: str = ""
    """``task_memcg``, the victim's cgroup."""
    limit: bool | None = None
    """True: a cgroup's limit; False: the whole host was full; None: the text does not say."""
    rss_kb: int | None = None
    also: tuple[Line, ...] = ()


class Xid(msgspec.Struct):
    line: Line
    code: int
    device: str
    pid: int | None = None


# NVIDIA's catalogue of Xid errors, reduced to what it decides. Codes in no set are quoted, but decide nothing:
# 43 and 45 are clean-ups after something else.
HARDWARE_XIDS = {
    48: "double-bit memory error",
    61: "internal microcontroller fault",
    62: "internal microcontroller halt",
    64: "row remapping failed",
    74: "NVLink error",
    79: "fallen off the bus",
    92: "high rate of single-bit memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    110: "security fault",
    140: "unrecovered memory error",
    144: "NVLink error",
    145: "NVLink error",
    149: "NVLink error",
    171: "memory error",
    172: "memory error",
}
FAULT_XIDS = {
    8: "GPU stopped processing",
    13: "graphics engine exception",
    31: "MMU fault",
    32: "invalid push buffer",
    38: "driver firmware error",
    43: "GPU stopped processing",
    44: "graphics engine fault",
    69: "graphics engine class error",
    109: "context switch timeout",
    119: "GSP firmware timeout",
    120: "GSP firmware error",
}

_OOM_KEYED = re.compile(r"oom-kill:(?P<rest>\S.*)$")
_KILLED = re.compile(
    r"(?:Memory cgroup out of memory|Out of memory(?: \([^)]*\))?)[:.]? Kill(?:ed)? process (?P<pid>\d+)(?:,? ?UID \d+,?)? \((?P<task>[^)]*)\)(?P<rest>.*)"
)
_INVOKED = re.compile(r"^(?P<task>\S+) invoked oom-killer")
_OOMD = re.compile(r"systemd-oomd.*Killed (?P<cgroup>/\S+)|Killed (?P<cgroup2>/\S+) due to memory (?:used|pressure)")
_XID = re.compile(r"NVRM:.*?Xid \((?P<device>[^)]*)\): (?P<code>\d+)(?:, pid='?(?P<pid>\d+|<unknown>)'?)?")
SEGFAULT = re.compile(
    r"(?P<task>\S+?)\[(?P<pid>\d+)\]: segfault at |traps: (?P<task2>\S+?)\[(?P<pid2>\d+)\] (?:general protection|trap \w+)"
)
BUS_GONE = re.compile(
    r"fallen off the bus|NVRM: .*GPU .*has been (?:lost|disconnected)|AER:.*(?:Uncorrected|Uncorrectable) \(Fatal\)|pciehp.*Link Down.*nvidia"
)
AMD_FAULT = re.compile(r"amdgpu.*(?:page fault|VM_L2_PROTECTION_FAULT|ring \S+ timeout|GPU reset)")
MISMATCH = re.compile(r"NVRM: API mismatch")


def oom_kills(lines: Sequence[Line]) -> list[OomKill]:
    """Kills in order. The keyed line and the sentence about one victim are one kill."""
    kills: list[OomKill] = []
    for line in lines:
        if line.channel in (UNIT, FACT) or not ("oom" in line.text or "emory" in line.text):
            continue
        keyed = _OOM_KEYED.search(line.text)
        if keyed:
            fields = dict(part.split("=", 1) for part in keyed.group("rest").split(",") if "=" in part)
            limit = (
                False
                if "global_oom" in keyed.group("rest") or "CONSTRAINT_NONE" in keyed.group("rest")
                else True
                if "MEMCG" in keyed.group("rest")
                else None
            )
            pid = fields.get("pid", "")
            kills.append(
                OomKill(
                    line=line,
                    task=fields.get("task", ""),
                    pid=int(pid) if pid.isdigit() else None,
                    cgroup=fields.get("task_memcg", ""),
                    limit=limit,
                )
            )
            continue
        killed = _KILLED.search(line.text)
        if killed:
            pid_value = int(killed.group("pid"))
            rss = sum(int(n) for n in re.findall(r"(?:anon|file|shmem)-rss:(\d+)kB", killed.group("rest")))
            limit = True if killed.group(0).startswith("Memory cgroup") else None
            same = next((kill for kill in kills if kill.pid == pid_value and kill.rss_kb is None), None)
            if same:
                same.rss_kb, same.also = rss or 0, (*same.also, line)
                same.task = same.task or killed.group("task")
            else:
                kills.append(OomKill(line=line, task=killed.group("task"), pid=pid_value, limit=limit, rss_kb=rss or 0))
            continue
        oomd = _OOMD.search(f"{line.ident}: {line.text}" if line.ident else line.text)
        if oomd:
            cgroup = oomd.group("cgroup") or oomd.group("cgroup2")
            kills.append(OomKill(line=line, cgroup=cgroup, limit=False))
    return kills


def xids(lines: Sequence[Line]) -> list[Xid]:
    found: list[Xid] = []
    for line in lines:
        if "Xid" not in line.text:
            continue
        match = _XID.search(line.text)
        if match:
            pid = match.group("pid") or ""
            found.append(
                Xid(line=line, code=int(match.group("code")), device=match.group("device"), pid=int(pid) if pid.isdigit() else None)
            )
    return found
