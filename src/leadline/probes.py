"""Everything leadline reads from a host: one command and one parser each. Parsers are pure and tested with recordings.

``systemctl show`` is the interface; ``systemctl status`` is for people and is never parsed.
"""

from __future__ import annotations

import json
import re

from .records import Exit, Listener, Record

SHOW = [
    "Id",
    "LoadState",
    "LoadError",
    "ActiveState",
    "SubState",
    "Result",
    "Type",
    "NeedDaemonReload",
    "InvocationID",
    "MainPID",
    "ControlPID",
    "ExecMainPID",
    "ExecMainCode",
    "ExecMainStatus",
    "ExecMainStartTimestampMonotonic",
    "ExecMainExitTimestampMonotonic",
    "NRestarts",
    "ControlGroup",
    "CPUUsageNSec",
    "MemoryCurrent",
    "ExecStart",
    "FragmentPath",
    "DropInPaths",
    "UnitFileState",
    "Environment",
    "EnvironmentFiles",
    "PassEnvironment",
    "UnsetEnvironment",
    "WorkingDirectory",
    "User",
    "RootDirectory",
    "RootImage",
    "StandardOutput",
    "StandardError",
    "TimeoutStopUSec",
    "TimeoutStartUSec",
    "Restart",
    "KillMode",
    "OOMPolicy",
    "Transient",
]

_ABSENT = {"", "[not set]", "[no data]", "18446744073709551615", "n/a"}


class Shown(Record, frozen=True):
    """The output of ``systemctl show``: key -> its values, in order (ExecStart and EnvironmentFiles may repeat)."""

    values: tuple[tuple[str, str], ...]

    def get(self, key: str) -> str:
        return next((value for name, value in self.values if name == key), "")

    def all(self, key: str) -> list[str]:
        return [value for name, value in self.values if name == key and value]

    def number(self, key: str) -> int | None:
        text = self.get(key)
        return None if text in _ABSENT or not re.fullmatch(r"-?\d+", text) else int(text)

    @property
    def running(self) -> bool:
        """A process of the unit runs or is about to (the wait of an automatic restart is not running)."""
        return self.get("ActiveState") in ("active", "activating", "reloading", "deactivating") and self.get("SubState") != "auto-restart"

    @property
    def exec_argv(self) -> list[str]:
        """The ``argv[]`` part of each ExecStart, joined by systemd without quotes (252) or with them (later versions)."""
        found = [re.search(r"argv\[\]=(.*?) ; ignore_errors=", value, re.DOTALL) for value in self.all("ExecStart")]
        return [hit.group(1) for hit in found if hit]

    @property
    def exit(self) -> Exit | None:
        """How the main process ended; ``None`` while it runs or when none was started."""
        code, status = self.number("ExecMainCode"), self.number("ExecMainStatus")
        if not code or status is None:  # CLD_EXITED 1, CLD_KILLED 2, CLD_DUMPED 3 (waitid(2))
            return None
        return Exit(code=status, by="itself") if code == 1 else Exit(signal=status, by="itself")


def parse_show(text: str) -> Shown:
    """``Key=value`` lines. A command whose arguments hold line breaks goes on until its closing brace."""
    pairs: list[tuple[str, str]] = []
    for line in text.splitlines():
        open_command = bool(pairs) and pairs[-1][1].startswith("{ ") and not pairs[-1][1].endswith(" }")
        key, equals, value = line.partition("=")
        if open_command:
            pairs[-1] = (pairs[-1][0], f"{pairs[-1][1]}\n{line}")
        elif equals and re.fullmatch(r"[A-Za-z0-9]+", key):
            pairs.append((key, value))
    return Shown(values=tuple(pairs))


def same_command(shown: str, argv: tuple[str, ...]) -> bool:
    """Whether what systemd shows is ``argv``: quotes and backslashes aside, since versions differ in how they print them.

    A NUL in ``argv`` stands for text that only the host knows (a specifier).
    """
    plain = re.compile(r"[\"'\\\s]+")
    wanted = "".join(".*" if part == "\0" else re.escape(plain.sub("", part)) for part in argv)
    return re.fullmatch(wanted, plain.sub("", shown), re.DOTALL) is not None


def span_s(text: str) -> float | None:
    """A time span as ``systemctl show`` prints it (``1min 30s``); ``None`` for infinity."""
    if text in ("infinity", ""):
        return None
    units = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "month": 2629800.0, "y": 31557600.0}
    return sum(float(number) * units.get(unit, 0.0) for number, unit in re.findall(r"([\d.]+)(us|ms|min|month|s|h|d|w|y)", text))


def environment_files(values: list[str]) -> list[tuple[str, bool]]:
    """``EnvironmentFiles=/etc/llm.env (ignore_errors=no)`` -> path, may be missing."""
    found = [re.fullmatch(r"(.*) \(ignore_errors=(yes|no)\)", value) for value in values]
    return [(hit.group(1), hit.group(2) == "yes") for hit in found if hit]


# -- the journal -------------------------------------------------------------------------------------------------------


class Line(Record, frozen=True):
    """One entry of the journal."""

    cursor: str
    at_s: float
    text: bytes


def parse_journal(text: str) -> list[Line]:
    """``journalctl -o json --all``: one object a line; a message that is no UTF-8 comes as a list of bytes. A torn last line is left out."""
    found = []
    for raw in text.splitlines():
        try:
            entry = json.loads(raw)
        except ValueError:
            continue
        message = entry.get("MESSAGE")
        data = bytes(message) if isinstance(message, list) else str(message or "").encode()
        found.append(Line(cursor=entry.get("__CURSOR", ""), at_s=int(entry.get("__REALTIME_TIMESTAMP", "0")) / 1e6, text=data))
    return found


def journal_hidden(stderr: str) -> bool:
    """Whether this account may not see the messages: journalctl says so on stderr only, with status 0."""
    return "not seeing messages from other users" in stderr or "insufficient permissions" in stderr


# -- sockets and processes ---------------------------------------------------------------------------------------------

# Listeners of TCP port $1 with their processes: `ss` lines, then for each pid its stat line and its command.
SOCKETS = """\
export LC_ALL=C; s=$(ss -Hltnp "sport = :$1") || exit 1; printf '%s\\n' "$s"
for p in $(printf '%s' "$s" | grep -o 'pid=[0-9]*' | cut -d= -f2 | sort -un); do
  printf '@ '; cat "/proc/$p/stat" 2>/dev/null || echo "$p (gone)"; printf '= '; tr '\\0\\n' '  ' <"/proc/$p/cmdline" 2>/dev/null; echo
done
"""


def parse_sockets(text: str, port: int, boot_s: float, ticks: int = 100) -> list[Listener]:
    """Output of ``SOCKETS``. A socket whose owner this account may not see has pid 0."""
    stats: dict[int, tuple[float | None, str]] = {}
    pid = 0
    for line in text.splitlines():
        if line.startswith("@ "):
            pid = int(line[2:].split()[0])
            fields = line.rpartition(") ")[2].split()
            stats[pid] = (boot_s + int(fields[19]) / ticks if len(fields) > 19 else None, "")
        elif line.startswith("= "):
            stats[pid] = (stats[pid][0], line[2:].strip())
    found: dict[int, Listener] = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 4 or fields[0] != "LISTEN" or fields[3].rpartition(":")[2] != str(port):
            continue
        owners = re.findall(r'\("([^"]*)",pid=(\d+)', line)
        for name, number in owners or [("?", "0")]:
            started, command = stats.get(int(number), (None, ""))
            found[int(number)] = Listener(port=port, pid=int(number), command=command or name, started_s=started)
    return list(found.values())


# Waits, 10 s at most, until process $1 has become the program: before that, systemd's child is called by its name in parentheses.
EXECUTED = """\
i=0; while [ "$i" -lt 100 ] && read -r name 2>/dev/null <"/proc/$1/comm"; do
  case $name in "("*) i=$((i + 1)); sleep 0.1 ;; *) exit 0 ;; esac
done
"""

# Wall clock and uptime in one look; both in seconds.
CLOCK = ("sh", "-c", "date +%s.%N; cut -d' ' -f1 /proc/uptime; getconf CLK_TCK 2>/dev/null || echo 100")


def parse_clock(text: str) -> tuple[float, int]:
    """Time of boot in seconds since the epoch, and clock ticks a second."""
    lines = text.split()
    return float(lines[0]) - float(lines[1]), int(lines[2])


# -- GPUs --------------------------------------------------------------------------------------------------------------

NO_GPU = "none\n"

# Processes on the GPUs with their cgroups, then containers that were given GPUs; `none` on a host without nvidia-smi.
GPU = """\
export LC_ALL=C; command -v nvidia-smi >/dev/null || { echo none; exit 0; }
nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits 2>/dev/null | while IFS=', ' read -r p m _; do
  case $p in *[!0-9]*|'') continue;; esac
  printf 'app %s %s %s\\n' "$p" "$m" "$(tr '\\n' ' ' <"/proc/$p/cgroup" 2>/dev/null)"
done
for c in docker podman; do
  command -v $c >/dev/null || continue
  ids=$($c ps -q 2>/dev/null) || continue
  [ -z "$ids" ] || $c inspect --format '{{.Name}} {{.Id}} {{json .HostConfig}}' $ids 2>/dev/null | grep -iE '"nvidia"|nvidia\\.com/gpu|"gpu"|/dev/nvidia' |
    while read -r n i _; do printf 'box %s %s %s\\n' "$c" "${n#/}" "$i"; done
done
exit 0
"""


class Gpu(Record, frozen=True):
    """Who uses the GPUs."""

    apps: tuple[tuple[int, str], ...] = ()
    """(pid, cgroup text)."""
    containers: tuple[str, ...] = ()
    """Names of running containers with GPUs, and of container cgroups with a process on one."""


_BOX = re.compile(r"(?:docker|libpod|crio|cri-containerd|containerd)[-/]([0-9a-f]{12,64})")


def parse_gpu(text: str) -> Gpu:
    apps, names, known = [], [], set()
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "box":
            runtime, name, ident = rest.split(" ", 2)
            names.append(f"{name} ({runtime})")
            known.add(ident)
        elif kind == "app":
            pid, _, group = rest.split(" ", 2) if rest.count(" ") >= 2 else (rest.split(" ")[0], "", "")
            apps.append((int(pid), group.strip()))
    for _, group in apps:
        hit = _BOX.search(group)
        if hit and not any(ident.startswith(hit.group(1)) for ident in known):
            known.add(hit.group(1))
            names.append(f"container {hit.group(1)[:12]}")
    return Gpu(apps=tuple(apps), containers=tuple(names))


def systemd_release(text: str) -> int | None:
    """From ``systemctl --version``.

    >>> systemd_release("systemd 252 (252.39-1~deb12u1)\\n+PAM")
    252
    """
    found = re.match(r"systemd (\d+)", text)
    return int(found.group(1)) if found else None
