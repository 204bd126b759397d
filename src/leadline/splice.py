"""Change words at their place in a text; everything else stays byte for byte. Pure."""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Callable, Sequence

from .errors import CannotRewrite
from .records import Record


class Slot(Record, frozen=True):
    """A stretch of text that yields whole arguments: mostly one word, one argument; several for an expanded ``$ARGS``."""

    values: tuple[str, ...]
    start: int
    end: int
    fixed: str = ""
    """Why it cannot be changed; empty when it can."""
    quote: str = ""
    raw: str = ""


def env_fix(raw: str) -> str:
    return f"write the arguments that {raw} holds into ExecStart, or set the variable with Environment= in the unit"


Edit = tuple[int, int, str]


def edits(
    slots: Sequence[Slot], old: Sequence[str], new: Sequence[str], text: str, write: Callable[[str, Slot | None], str], where: str
) -> list[Edit]:
    """Replacements in ``text`` that turn the arguments ``old`` of ``slots`` into ``new``."""
    if any("\0" in value for value in new):
        raise CannotRewrite(where=where, why="an argument holds a NUL character", fix="leave it out")
    kept = _kept(slots, old, new)
    edits: list[Edit] = []
    at = 0  # next slot not yet dealt with
    fresh: list[str] = []
    break_text = _line_break(slots, text)

    def flush(until: int) -> None:
        gone = slots[at:until]
        for slot in gone:
            if slot.fixed:
                raise CannotRewrite(
                    where=where,
                    why=f"{slot.raw or ' '.join(slot.values)} would have to change, but {slot.fixed}",
                    fix=env_fix(slot.raw or "it"),
                )
        if not gone and not fresh:
            return
        written = [write(value, gone[i] if i < len(gone) else None) for i, value in enumerate(fresh)]
        body = "".join(_gap(value, i, break_text) + value for i, value in enumerate(written))
        if gone and fresh:
            edits.append((gone[0].start, gone[-1].end, body.lstrip(" \\\n\t")))
        elif gone:
            before = slots[at - 1].end if at > 0 else gone[0].start
            edits.append((max(before, 0), gone[-1].end, ""))
        else:
            place = slots[at - 1].end if at > 0 else slots[0].start
            edits.append((place, place, body if body[:1] in " \\" else " " + body))

    for item in kept:
        if isinstance(item, str):
            fresh.append(item)
            continue
        flush(item)
        at, fresh = item + 1, []
    flush(len(slots))
    return edits


def _kept(slots: Sequence[Slot], old: Sequence[str], new: Sequence[str]) -> list[int | str]:
    """``new`` as a sequence of untouched slots (their index) and of literal values, in order."""
    flat: list[tuple[int, int] | str] = []  # (slot, position within it) or a new value
    owner = [(index, i) for index, slot in enumerate(slots) for i in range(len(slot.values))]
    for tag, a1, a2, b1, b2 in difflib.SequenceMatcher(a=list(old), b=list(new), autojunk=False).get_opcodes():
        if tag == "equal":
            flat.extend(owner[a1:a2])
        else:
            flat.extend(new[b1:b2])
    result: list[int | str] = []
    at = 0
    empty = [index for index, slot in enumerate(slots) if not slot.values]
    while at < len(flat):
        item = flat[at]
        if isinstance(item, str):
            result.append(item)
            at += 1
            continue
        index = item[0]
        while empty and empty[0] < index:
            result.append(empty.pop(0))
        run = flat[at : at + len(slots[index].values)]
        if run == [(index, i) for i in range(len(slots[index].values))]:
            result.append(index)
            at += len(run)
        else:
            result.append(slots[index].values[item[1]])
            at += 1
    return [*result, *empty]


def _line_break(slots: Sequence[Slot], text: str) -> str:
    """The continuation that stands most often between two arguments, where the command is written over several lines."""
    gaps = [text[a.end : b.start] for a, b in itertools.pairwise(slots) if a.start >= 0]
    broken = Counter(gap for gap in gaps if "\n" in gap)
    return broken.most_common(1)[0][0] if broken else ""


def _gap(value: str, index: int, break_text: str) -> str:
    return break_text if break_text and value.startswith("-") else " "


def apply(text: str, edits: Sequence[Edit]) -> str:
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text
