"""What the supervisor says: unit properties, systemd's own lines, containers, orchestrators. Who asked for what, and how it ended."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from .lines import ENGINE, FACT, SYSTEMD, UNIT, Line


class Event(msgspec.Struct):
    kind: str
    line: Line
    detail: str = ""


# Kinds: start, stopping, stopped, start_timeout, stop_timeout, watchdog, exit, restart, start_limit, oom, exec_failed, setup_failed,
# probe_kill, reload, sandbox, bad_setting
_SYSTEMD: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("start_timeout", re.compile(r"start(?:-pre|-post)? operation timed out\.|State 'start(?:-pre|-post)?' timed out")),
    ("stop_timeout", re.compile(r"State '(?:stop|final)-[\w-]+' timed out|stop-sigterm timed out|Stopping timed out")),
    ("watchdog", re.compile(r"Watchdog timeout \(limit")),
    ("oom", re.compile(r"has been killed by the OOM killer|Failed with result 'oom-kill'")),
    ("start_limit", re.compile(r"Start request repeated too quickly|Failed with result 'start-limit-hit'")),
    ("exec_failed", re.compile(r"Failed at step EXEC spawning|Failed to locate executable|status=203/EXEC|Failed to execute (?:\S+): ")),
    (
        "sandbox",
        re.compile(
            r"Failed at step (?:NAMESPACE|SECCOMP|CAPABILITIES|APPARMOR|ADDRESS_FAMILIES|CGROUP|SMACK|SELINUX_CONTEXT)|status=(?:226/NAMESPACE|228/SECCOMP|218/CAPABILITIES|231/APPARMOR)|status=31/SYS"
        ),
    ),
    (
        "setup_failed",
        re.compile(
            r"Failed at step (?:CHDIR|USER|GROUP|CREDENTIALS|STDIN|STDOUT|STDERR|LIMITS|NICE) |status=(?:200/CHDIR|216/GROUP|217/USER|209/STDOUT|243/CREDENTIALS)|Failed to load environment files|Failed with result 'resources'"
        ),
    ),
    ("bad_setting", re.compile(r"has more than one ExecStart= setting|Refusing\.?$|bad unit file setting|lacks both ExecStart=")),
    ("exit", re.compile(r"Main process exited, code=(?P<code>\w+), status=(?P<status>\d+)")),
    ("restart", re.compile(r"Scheduled restart job, restart counter is at (?P<count>\d+)")),
    ("stopping", re.compile(r"^Stopping (?P<unit>\S.*)")),
    ("stopped", re.compile(r"^Stopped (?P<unit>\S.*)|Deactivated successfully")),
    ("start", re.compile(r"^(?:Started|Starting) (?P<unit>\S.*)")),
    ("reload", re.compile(r"^Reload(?:ing requested|ing finished|ing\.\.\.)|^Reloading(?: requested| finished|\.)")),
)

# Containers and orchestrators write in plain text that is pasted beside the log.
_PLAIN: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("oom", re.compile(r'"?OOMKilled"?\s*[:=]\s*true|[Rr]eason:?\s+OOMKilled|\bOOMKilled\b(?!"?\s*[:=])')),
    (
        "probe_kill",
        re.compile(
            r"(?:failed (?:startup|liveness) probe|(?:[Ss]tartup|[Ll]iveness) probe failed|Container \S+ failed \w+ probe|found to be unhealthy.{0,20}[Rr]estart|unhealthy.{0,40}(?:[Rr]estarting|[Kk]illing))"
        ),
    ),
    (
        "restart",
        re.compile(
            r'"?(?:RestartCount|Restart Count)"?\s*[:=]\s*"?(?P<count>\d+)|exited with code -?\d+ \(restarting\)|CrashLoopBackOff|Back-off restarting failed container'
        ),
    ),
    (
        "exit",
        re.compile(
            r'"ExitCode"\s*:\s*(?P<status>\d+)|exited with code (?P<status2>-?\d+)|Exit Code:\s+(?P<status3>\d+)|^Exited \((?P<status4>\d+)\)|\bExited \((?P<status5>\d+)\)'
        ),
    ),
)
_EXIT_NOTE = re.compile(r"(?:^|\b)(?:exit (?:status|code)|rc|return ?code|returncode|\$\?)\s*[:= ]\s*(?P<code>-?\d+)", re.IGNORECASE)

# The engine's (or a launcher's) own words that somebody asked for a stop.
STOP_WORDS = re.compile(
    r"^(?:SIGTERM received|SIGINT received|Received (?:signal )?(?:SIGTERM|SIGINT|15|2)\b|Received (?:exit )?signal|Received SIGTERM|Received signal number)"
    r"|\[shutdown\] API server: shutdown triggered|signal=SIGTERM|Sending (?:SIGTERM|SIGINT) to|KeyboardInterrupt: terminated"
    r"|^Gracefully exiting|Draining requests and shutting down|[Ee]ngine is gracefully shutting down|Received termination signal|^\^C"
    r"|received interrupt|Received second interrupt|cleaning up before exit"
    r"|\b(?:docker|podman) (?:stop|kill|restart|rm)\b|systemctl (?:stop|restart)\b|Launcher process.*received signal|^Stopping container|^Killing\b.*Stopping container|Scaled down replica set"
)
_SOFT_STOP = re.compile(r"cleaning up before exit")

UNIT_VALUE = re.compile(r"^(?P<key>[A-Z][A-Za-z0-9]+)=(?P<value>.*)$")


def properties(lines: Sequence[Line]) -> dict[str, tuple[str, Line]]:
    """Unit properties, last value wins (also from ``systemctl show`` pasted into other text)."""
    found: dict[str, tuple[str, Line]] = {}
    for line in lines:
        if line.channel not in (UNIT, FACT):
            continue
        match = UNIT_VALUE.match(line.raw.strip())
        if match and not (line.channel == FACT and match.group("key") in found):
            found[match.group("key")] = (match.group("value").strip(), line)  # what systemd says outranks what a unit file says
    return found


def events(lines: Sequence[Line]) -> list[Event]:
    found: list[Event] = []
    for line in lines:
        text = line.text
        if line.channel == SYSTEMD:
            message = re.sub(r"^[\w@.:\\-]+\.(?:service|scope|slice): ", "", text)
            for kind, pattern in _SYSTEMD:
                match = pattern.search(message)
                if match:
                    groups = match.groupdict()
                    found.append(Event(kind=kind, line=line, detail=next((str(v) for v in reversed(list(groups.values())) if v), "")))
                    break
            else:
                _plain(line, found)
        elif line.channel in (FACT, ENGINE):
            _plain(line, found)
    return found


_PLAIN_HINT = re.compile(r"OOMKilled|probe|unhealthy|[Rr]estart|CrashLoop|Back-off|[Ee]xit|return ?code|\brc[=:]")


def _plain(line: Line, found: list[Event]) -> None:
    text = line.raw if line.channel == ENGINE else line.text
    if not _PLAIN_HINT.search(text):
        return
    for kind, pattern in _PLAIN:
        match = pattern.search(text)
        if match:
            detail = next((str(v) for v in match.groupdict().values() if v), "")
            found.append(Event(kind=kind, line=line, detail=detail))
    note = _EXIT_NOTE.search(text)
    if note and line.channel in (ENGINE, FACT) and not line.level and line.time_s is None:
        found.append(Event(kind="exit", line=line, detail=note.group("code")))


def stop_requests(lines: Sequence[Line]) -> list[Event]:
    """Lines in which somebody asks for a stop; ``soft`` when the words appear at every end of that engine."""
    found: list[Event] = []
    for line in lines:
        if line.channel in (ENGINE, FACT) and (
            "top" in line.text
            or "ignal" in line.text
            or "SIG" in line.text
            or "xit" in line.text
            or "shut" in line.text
            or "nterrupt" in line.text
            or "rain" in line.text
            or "Scaled" in line.text
            or "^C" in line.text
            or "docker" in line.text
            or "systemctl" in line.text
        ):
            if STOP_WORDS.search(line.text):
                found.append(Event(kind="soft" if _SOFT_STOP.search(line.text) else "stop", line=line))
        elif line.channel == SYSTEMD and re.search(r"^Stopping \S", line.text):
            found.append(Event(kind="stop", line=line))
    return found


# -- sandbox ----------------------------------------------------------------------------------------------------------


# property -> (values that block, what the engine needs)
def sandbox_limits(props: dict[str, tuple[str, Line]]) -> list[tuple[str, Line, str]]:
    """Hardening that takes away what an engine needs: ``(property, line, what is blocked)``, the most decisive first."""
    found: list[tuple[str, Line, str]] = []

    def value(key: str) -> str:
        return props.get(key, ("", None))[0]

    def add(key: str, why: str) -> None:
        found.append((key, props[key][1], why))

    families = value("RestrictAddressFamilies")
    if families and not families.startswith("~") and families not in ("no", "[not set]") and "AF_UNIX" not in families:
        add("RestrictAddressFamilies", "local sockets (AF_UNIX) between the engine's processes")
    elif families and "AF_UNIX" in families and not families.startswith("~") and "AF_INET" not in families:
        add("RestrictAddressFamilies", "TCP sockets (AF_INET)")
    if value("PrivateDevices") == "yes":
        add("PrivateDevices", "the GPU's device files")
    if value("DevicePolicy") in ("closed", "strict") and "nvidia" not in value("DeviceAllow"):
        add("DevicePolicy", "the GPU's device files")
    if value("MemoryDenyWriteExecute") == "yes":
        add("MemoryDenyWriteExecute", "memory that is writable and executable, which compilers at run time need")
    if value("PrivateNetwork") == "yes":
        add("PrivateNetwork", "the network")
    if value("IPAddressDeny") not in ("", "[not set]") and not value("IPAddressAllow"):
        add("IPAddressDeny", "IP traffic, loopback included")
    if value("PrivateIPC") == "yes":
        add("PrivateIPC", "shared memory with other processes")
    if value("SystemCallFilter") not in ("", "[not set]"):
        add("SystemCallFilter", "system calls")
    if value("ProtectHome") in ("yes", "tmpfs", "read-only"):
        add("ProtectHome", "the caches and models under /home and /root")
    if value("ProtectSystem") in ("strict", "full", "yes"):
        add("ProtectSystem", "writing outside the allowed paths")
    return found
