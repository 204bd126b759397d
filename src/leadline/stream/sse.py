"""Server-sent events, strictly by the WHATWG rules (https://html.spec.whatwg.org/multipage/server-sent-events.html, 9.2.6).

Lines end with LF, CR or CRLF; ``data`` fields of one event are joined by LF; one space after the colon belongs to the
syntax; a line that starts with a colon is a comment; an event without the blank line that ends it is not dispatched.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE_END = re.compile(rb"\r\n|\n|\r")


class SseEvent(NamedTuple):
    """One dispatched event."""

    data: bytes
    end: int
    """Offset in the stream just behind the blank line that dispatched it."""
    name: str = ""


def events(stream: bytes) -> tuple[list[SseEvent], bytes]:
    """Every dispatched event of ``stream`` and what is left behind the last one (comments left out)."""
    found: list[SseEvent] = []
    data: list[bytes] = []
    name = ""
    start = at = 3 if stream.startswith(b"\xef\xbb\xbf") else 0
    for match in _LINE_END.finditer(stream, at):
        line = stream[at : match.start()]
        at = match.end()
        if not line:
            if data:
                found.append(SseEvent(b"\n".join(data), at, name))
            data, name, start = [], "", at
            continue
        field, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if field == b"data":
            data.append(value)
        elif field == b"error":  # llama-server's own: a line "error: {...}" instead of an event
            data.append(value)
            name = "error"
        elif field == b"event":
            name = value.decode("utf-8", "replace")
    rest = stream[start:]
    return found, b"" if not data and rest.startswith(b":") else rest
