"""Exceptions as Python prints them: header, frames, last line, and chains, each process's own."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from .lines import ENGINE, Line


class Failure(msgspec.Struct):
    """One exception. ``body`` is its message with the lines that continue it."""

    line: Line
    type: str
    message: str
    body: str
    frames: tuple[str, ...] = ()
    """``file:function`` of each frame, outermost first."""
    header: str = ""
    """What the process logged right before, e.g. ``Scheduler hit an exception``."""
    chained: bool = False
    """Raised while another one, earlier in the list, was being handled."""

    @property
    def short_type(self) -> str:
        return self.type.rsplit(".", 1)[-1]


TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+(?:, in (?P<func>\S+))?')
_FINAL = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout|NotFound|OutOfMemory|Failure|Fault|Unavailable))(?:: (?P<message>.*)|:?$)"
)
_ANY_FINAL = re.compile(r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*): (?P<message>.*)$")
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_HEADED = re.compile(
    r"(?:hit an exception|failed with error|raised an exception|Initialization failed\. warmup error|error|Exception|failed to start\.?)\s*:\s*(?=(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b)"
)
_INLINE = re.compile(
    r"^(?P<head>(?:Scheduler|DetokenizerManager|TokenizerManager|WorkerProc|EngineCore)\b.*?(?:exception|error)): (?P<rest>\S.*)$"
)


class _Open(msgspec.Struct):
    start: Line
    header: str
    frames: list[str]
    chained: bool


def failures(lines: Sequence[Line]) -> list[Failure]:
    """Every exception in the engine's text, in file order. Interleaved processes are followed separately."""
    found: list[Failure] = []
    opened: dict[str, _Open] = {}
    before: dict[str, str] = {}
    chain: dict[str, bool] = {}
    for position, line in enumerate(lines):
        if line.channel != ENGINE:
            continue
        text, stream = line.text, line.stream
        if TRACEBACK in text:
            header = text.split(TRACEBACK)[0].rstrip(": ") or before.get(stream, "")
            opened[stream] = _Open(start=line, header=header, frames=[], chained=chain.pop(stream, False))
            continue
        if text.startswith(_CHAIN):
            chain[stream] = True
            continue
        current = opened.get(stream)
        if current is not None:
            frame = _FRAME.match(text)
            if frame:
                current.frames.append(f"{frame.group('file')}:{frame.group('func') or ''}")
                continue
            final = _FINAL.match(text) or (_ANY_FINAL.match(text) if current.frames else None)
            if final and "Warning" not in final.group("type"):
                found.append(_finish(lines, position, final, current))
                opened.pop(stream, None)
                continue
            if text.strip() and not text.startswith((" ", "\t")) and line.index - current.start.index > 400:
                opened.pop(stream, None)
        elif text and not text.startswith((" ", "\t")):
            _loose(lines, position, before.get(stream, ""), found)
        if text.strip() and not text.startswith((" ", "\t")):
            before[stream] = text[:300]
    return found


def _loose(lines: Sequence[Line], position: int, before: str, found: list[Failure]) -> None:
    """An exception line without its traceback: after a fatal header, at level ERROR, or alone at the start of a line."""
    text = lines[position].text
    inline = _INLINE.match(text)
    if inline:
        before, text = inline.group("head"), inline.group("rest")
    else:
        headed = _HEADED.search(text)
        if headed:
            before, text = text[: headed.start()], text[headed.end() :]
    final = _FINAL.match(text)
    if not final or "Warning" in final.group("type") or final.group("message") is None:
        return
    found.append(_finish(lines, position, final, _Open(start=lines[position], header=before, frames=[], chained=False)))


def _finish(lines: Sequence[Line], position: int, final: re.Match[str], opened: _Open) -> Failure:
    """Close a traceback. A message may go on for some lines (pydantic, ninja, CUDA hints): they are kept up to an empty one."""
    line = lines[position]
    message = final.group("message") or ""
    body = [message]
    for following in lines[position + 1 : position + 9]:
        if following.stream != line.stream:
            continue
        if (
            not following.text.strip()
            or TRACEBACK in following.text
            or (following.time_s is not None and following.level not in ("ERROR", "E"))
        ):
            break
        body.append(following.text)
    return Failure(
        line=line,
        type=final.group("type"),
        message=message,
        body="\n".join(body),
        frames=tuple(opened.frames),
        header=opened.header,
        chained=opened.chained,
    )
