"""Raw text -> lines that know where they came from.

Every source (a server log, a journal, ``systemctl show``, the kernel's log, a pasted mixture with ``==> name <==`` headers)
becomes a list of :class:`Line`.  Prefixes that supervisors, containers, loggers and launchers put in front of a message are
taken off and kept as fields, so that rules match the message itself and interleaved processes can be told apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from ..records import Source

ENGINE, SYSTEMD, KERNEL, UNIT, FACT = "engine", "systemd", "kernel", "unit", "fact"


class Line(msgspec.Struct):
    """One line. ``number`` is 1-based in the original; ``text`` has no prefixes; ``time_s`` orders lines of one source only."""

    index: int
    source: str
    number: int
    raw: str
    text: str
    channel: str
    stream: str = ""
    """Which process wrote it (container, process tag, rank), empty when the line does not say."""
    ident: str = ""
    form: str = ""
    """The logger's own prefix (``sglang``, ``vllm``, ...), empty for a line without one: it continues what was said before."""
    level: str = ""
    time_s: float | None = None
    clock: str = ""
    section: str = ""
    dull: str = ""
    """Not empty for the periodic lines of a serving engine, which make up nearly all of a long log and never say a cause:
    ``load`` (figures of the running load) or ``request`` (a request that was answered with 2xx)."""


_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
HEADER = re.compile(r"^==> (.+?) <==\s*$")
_MONTHS = {name: i for i, name in enumerate(["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], 1)}

_PREFIXES: tuple[tuple[str, re.Pattern[str]], ...] = (
    # container launchers: `name-1  | text`, and the runtime's own `2026-..Z stdout F text`
    ("container", re.compile(r"^(?P<stream>[A-Za-z][\w.-]*?(?:-\d+)?)\s+\| ?")),
    ("cri", re.compile(r"^(?P<iso>\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)) (?:stdout|stderr) [FP] ")),
    # journald: short, short-iso, short-precise; with host and ident[pid]
    (
        "journal",
        re.compile(
            r"^(?:(?P<mon>[A-Z][a-z]{2}) (?P<day>[ \d]\d) (?P<hms>\d\d:\d\d:\d\d)(?:\.\d+)?|(?P<iso>\d{4}-\d\d-\d\d[T ][\d:.]+(?:Z|[+-]\d\d:?\d\d)?))"
            r" (?P<host>[\w.-]+) (?:(?P<ident>[^\s:\[\]]+)\[(?P<pid>\d+)\]|(?P<kernel>kernel)): ?"
        ),
    ),
    ("iso", re.compile(r"^(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)\s+")),
    ("dmesg", re.compile(r"^(?:<\d+>)?\[\s*(?P<uptime>\d+\.\d+)\] ")),
    ("dmesgdate", re.compile(r"^\[[A-Z][a-z]{2} (?P<mon>[A-Z][a-z]{2}) (?P<day>[ \d]\d) (?P<hms>\d\d:\d\d:\d\d) \d{4}\] ")),
    ("hms", re.compile(r"^(?P<hms>\d\d:\d\d:\d\d)(?:\.\d+)? (?=NVRM|kernel|\[)")),
    # engines
    (
        "sglang",
        re.compile(r"^\[(?P<iso>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)(?P<stream>(?: (?:DP|PP|TP|EP|CP|ATTN_TP)\d+)*)\] ?"),
    ),
    ("vllmproc", re.compile(r"^\((?P<stream>[A-Za-z_][\w. -]*? pid=\d+(?:, ip=[\d.]+)?)\) ?")),
    (
        "vllm",
        re.compile(
            r"^(?P<level>INFO|WARNING|ERROR|DEBUG|CRITICAL) (?P<md>\d\d-\d\d) (?P<hms>\d\d:\d\d:\d\d)(?:\.\d+)? (?:\[[^\]\s]+:\d+\]|[\w./-]+:\d+\]) ?"
        ),
    ),
    ("llama", re.compile(r"^(?P<rel>\d+\.\d\d\.\d\d\d\.\d\d\d) (?P<level>[IWED]) ")),
    ("rank", re.compile(r"^\[(?P<stream>[Rr]ank ?\d+)\]:? ?")),
    (
        "glog",
        re.compile(r"^\[(?P<level>[EWIF])\s?(?P<md>\d{3,4}) (?P<hms>\d\d:\d\d:\d\d)[.\d]* (?:\d+ )?[\w./]+:\d+\] ?"),
    ),
    ("glogplain", re.compile(r"^(?P<level>[EWIF])(?P<md>\d{4}) (?P<hms>\d\d:\d\d:\d\d)[.\d]*\s+\d+ [\w./]+:\d+\] ?")),
    ("trt", re.compile(r"^\[\d\d/\d\d/\d{4}-(?P<hms>\d\d:\d\d:\d\d)\] ")),
    ("trtmod", re.compile(r"^\[TRT-LLM\] (?:\[(?P<stream>RANK \d+)\] )?\[(?P<level>[EWI])\] ")),
    ("uvicorn", re.compile(r"^(?P<level>INFO|WARNING|ERROR|CRITICAL|DEBUG):\s+(?:(?=\S))")),
    ("pylog", re.compile(r"^(?P<level>INFO|WARNING|ERROR|CRITICAL|DEBUG) (?=\S+\.py:\d+)")),
)

_UNIT_LINE = re.compile(r"^[A-Z][A-Za-z0-9]+=")
_KERNEL_TEXT = re.compile(
    r"^(?:NVRM: |oom-kill:|(?:Memory cgroup out of memory|Out of memory|Killed process|oom_reaper)\b|amdgpu |\S+ invoked oom-killer|audit: |\S+\[\d+\]: segfault at )"
)


MOST_CHARACTERS = 8192
"""Longer lines are cut: no message that decides is longer, and no pattern then meets a line of megabytes."""
_SWALLOWED = re.compile(r"(?<=\])(?=\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\] )")


def split_sections(source: Source) -> Iterator[tuple[str, str, int]]:
    """``(section name, line, number)``; a header line itself belongs to no section and is left out."""
    section = source.name
    for offset, line in enumerate(source.text.split("\n")):
        header = HEADER.match(line)
        if header:
            section = header.group(1).strip()
            continue
        # a progress bar overwrites itself and swallows the next message: the last states are kept, and what follows is a line of its own
        pieces = [piece for piece in line.split("\r") if piece.strip()][-3:] or [""] if "\r" in line else [line]
        for piece in pieces:
            for part in _SWALLOWED.split(piece) if len(piece) > 60 and "it/s]" in piece else [piece]:
                yield section, part[:MOST_CHARACTERS], source.first_line + offset


def channel_of(section: str, base: str) -> str:
    """Which reader a section's lines belong to, from its name."""
    name = section.lower()
    if "systemctl show" in name or "systemctl cat" in name or name in ("unit", "unit.txt", "systemd unit"):
        return UNIT
    if name.startswith(("kernel", "dmesg", "/var/log/kern", "journalctl -k")) or "dmesg" in name:
        return KERNEL
    if any(word in name for word in ("journal", "syslog", "/var/log/messages", "systemd")):
        return SYSTEMD
    if name == base or any(
        word in name for word in ("engine", "server", ".log", "stdout", "stderr", "launcher", "client", "worker", "docker logs")
    ):
        return ENGINE
    if name in ("log", "container", "vllm", "sglang", "llama-server", "llama.cpp"):
        return ENGINE
    return FACT


def _seconds(hms: str) -> float:
    hours, minutes, seconds = hms.split(":")[:3]
    return int(hours) * 3600 + int(minutes) * 60 + float(re.sub(r"[^\d.].*$", "", seconds.replace(",", ".")) or 0)


def _day(month: int, day: int) -> float:
    return (month * 31 + day) * 86400.0


def _time(fields: dict[str, str | None]) -> tuple[float | None, str]:
    """Seconds on a scale that grows within a year (no year is known for half of the formats), and which clock it is."""
    iso, hms = fields.get("iso"), fields.get("hms")
    if iso:
        date, _, clock = iso.replace("T", " ").partition(" ")
        _, month, day = date.split("-")
        return _day(int(month), int(day)) + _seconds(re.sub(r"(?:Z|[+-]\d\d:?\d\d)$", "", clock)), "wall"
    if hms and fields.get("mon"):
        return _day(_MONTHS.get(str(fields["mon"]), 0), int(str(fields["day"]))) + _seconds(hms), "wall"
    if hms and fields.get("md"):
        md = str(fields["md"]).replace("-", "")
        return _day(int(md[:-2] or 0), int(md[-2:])) + _seconds(hms), "wall"
    if hms:
        return _seconds(hms), "day"
    if fields.get("uptime"):
        return float(str(fields["uptime"])), "uptime"
    if fields.get("rel"):
        minutes, seconds, ms, us = str(fields["rel"]).split(".")
        return int(minutes) * 60 + int(seconds) + int(ms) / 1e3 + int(us) / 1e6, "start"
    return None, ""


def _journal_object(raw: str) -> dict[str, object] | None:
    if not (raw.startswith("{") and raw.rstrip().endswith("}") and ('"MESSAGE"' in raw or '"log"' in raw)):
        return None
    try:
        value = msgspec.json.decode(raw.encode("utf-8", "replace"))
    except msgspec.DecodeError:
        return None
    return value if isinstance(value, dict) else None


def _message(value: object) -> str:
    if isinstance(value, list):  # journald prints a message that is not UTF-8 as a list of byte values
        return bytes(b for b in value if isinstance(b, int) and 0 <= b < 256).decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def _from_json(line: Line, entry: dict[str, object]) -> None:
    if "log" in entry:
        line.text = line.raw = _message(entry["log"]).rstrip("\n")
        return
    line.text = _message(entry.get("MESSAGE"))
    line.ident = str(entry.get("SYSLOG_IDENTIFIER", ""))
    line.raw = f"{line.ident}[{entry.get('_PID', '')}]: {line.text}" if line.ident else line.text
    stamp = str(entry.get("__REALTIME_TIMESTAMP", ""))
    if stamp.isdigit():
        line.time_s, line.clock = int(stamp) / 1e6, "epoch"
    line.channel = _by_ident(line.ident, ENGINE)
    if line.channel == ENGINE:
        line.stream = f"{line.ident}[{entry.get('_PID', '')}]"


def _by_ident(ident: str, default: str) -> str:
    if ident in ("systemd", "systemd-oomd", "systemd-coredump", "dockerd", "containerd", "kubelet", "podman") or ident.startswith("("):
        return SYSTEMD
    return KERNEL if ident == "kernel" else default


def _first(character: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """The prefixes that can begin with a character: a line then meets two or three patterns instead of all."""
    if character == "[":
        names: tuple[str, ...] = ("sglang", "dmesg", "dmesgdate", "rank", "glog", "trt", "trtmod")
    elif character == "(":
        names = ("vllmproc",)
    elif character == "<":
        names = ("dmesg",)
    elif character.isdigit():
        names = ("cri", "journal", "iso", "hms", "llama")
    elif character.isalpha():
        names = ("container", "journal", "vllm", "glogplain", "uvicorn", "pylog")
    else:
        names = ()
    return tuple((name, pattern) for name, pattern in _PREFIXES if name in names)


_BY_FIRST = {chr(code): _first(chr(code)) for code in range(33, 127)}


_LOAD = ("Decode batch", "Prefill batch", "Engine 0", "Avg prompt throughput", "SpecDecoding metrics")


def _dull(text: str) -> str:
    if text.startswith(_LOAD):
        return "load"
    return "request" if 'HTTP/1.1" 2' in text and ("POST /" in text or "GET /" in text) and ' - "' in text else ""


def _strip(line: Line) -> None:
    """Take the prefixes off ``line.text``; at most six, so that no pathological line costs more."""
    for _ in range(6):
        for name, pattern in _BY_FIRST.get(line.text[:1], ()):
            if name == "container" and (line.stream or "|" not in line.text[:64]):
                continue
            match = pattern.match(line.text)
            if not match or match.end() == 0:
                continue
            _take(line, name, match)
            break
        else:
            return


_LOGGERS = {"sglang", "vllmproc", "vllm", "llama", "rank", "glog", "glogplain", "trt", "trtmod", "uvicorn", "pylog"}


def _take(line: Line, name: str, match: re.Match[str]) -> None:
    fields = match.groupdict()
    stream = (fields.get("stream") or "").strip()
    if name in _LOGGERS:
        line.form = line.form or name
    if stream:
        line.stream = f"{line.stream}/{stream}" if line.stream else stream
    if fields.get("ident") or fields.get("kernel"):
        line.ident = fields.get("ident") or "kernel"
        line.channel = _by_ident(line.ident, ENGINE)
        if line.channel == ENGINE and fields.get("pid"):
            line.stream = f"{line.ident}[{fields['pid']}]"
    line.level = fields.get("level") or line.level
    if line.time_s is None or name in ("sglang", "vllm", "glog"):
        time_s, clock = _time(fields)
        if time_s is not None:
            line.time_s, line.clock = time_s, clock
    line.text = line.text[match.end() :]


def parse(sources: Sequence[Source]) -> list[Line]:
    """All lines of all sources, in the order given. Empty lines stay (they end a message)."""
    lines: list[Line] = []
    for source in sources:
        unitish = _looks_like_unit(source)
        kind = source.name.partition(":")[0]
        default = UNIT if unitish else ENGINE if kind in ("log", "stdin", "text") else channel_of(kind, "")
        carried: dict[str, str] = {}
        for section, raw, number in split_sections(source):
            raw = _CONTROL.sub("", _ANSI.sub("", raw.rstrip("\r"))) if raw.isprintable() is False else raw
            channel = default if section == source.name else channel_of(section, "")
            line = Line(
                index=len(lines),
                source=source.name,
                number=number,
                raw=raw,
                text=raw,
                channel=channel,
                section=section if section != source.name else "",
            )
            if channel in (UNIT, FACT):
                lines.append(line)
                continue
            entry = _journal_object(raw)
            if entry is not None:
                _from_json(line, entry)
            _strip(line)
            line.dull = _dull(line.text)
            if line.channel == SYSTEMD and channel == SYSTEMD and not line.ident:
                line.channel = _by_content(line.text)
            if line.channel == ENGINE and _KERNEL_TEXT.match(line.text):
                line.channel = KERNEL
            # the body of a traceback carries no logger's prefix: it belongs to the process whose header opened it
            base = line.stream.partition("/")[0] if line.ident or "/" in line.stream or not line.form else ""
            if line.form:
                carried[base] = line.stream if "Traceback" in line.text or "exception" in line.text else ""
            elif carried.get(base):
                line.stream = carried[base]
            lines.append(line)
    return lines


def _by_content(text: str) -> str:
    if _KERNEL_TEXT.match(text):
        return KERNEL
    return (
        SYSTEMD if re.match(r"^(?:[\w@.\\-]+\.service: |Started |Starting |Stopp(?:ing|ed) |Failed to start |Reloading)", text) else ENGINE
    )


def _looks_like_unit(source: Source) -> bool:
    head = [line for line in source.text[:4000].split("\n") if line.strip()][:40]
    return (
        len(head) >= 3
        and not any(HEADER.match(line) for line in head)
        and sum(bool(_UNIT_LINE.match(line)) for line in head) >= 0.7 * len(head)
    )
