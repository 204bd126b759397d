"""Reading and editing an argument vector in the style in which it was written; everything else stays byte for byte.

argparse's rules hold (CPython ``argparse``): ``--flag value`` and ``--flag=value`` mean the same, the **last** occurrence wins, a unique
prefix of a long flag stands for it, and nothing after a bare ``--`` is a flag.  vLLM adds underscores for dashes and dotted
members of a JSON flag (``--speculative-config.method ngram``).

>>> steps = Flag(names=("--steps",))
>>> write(("serve", "--steps=3", "--port", "1"), steps, "5")
('serve', '--steps=5', '--port', '1')
>>> without(("serve", "--steps", "3", "--port", "1"), steps)
('serve', '--port', '1')
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from ..errors import ConfigError
from ..records import Record


class Flag(Record, frozen=True):
    """One flag of an engine, in every spelling it accepts."""

    names: tuple[str, ...]
    """Accepted spellings; the first is written when the flag is not there yet."""
    switch: bool = False
    """True when the flag takes no value."""
    shortest: str = ""
    """Shortest prefix the engine's parser accepts as an abbreviation of ``names[0]``; empty = no abbreviations."""
    underscores: bool = False
    """True when ``--a_b`` means ``--a-b``."""
    equals: bool = True
    """True when ``--flag=value`` is accepted."""

    def spelled(self, word: str) -> bool:
        """Whether ``word`` (without ``=value``) is this flag."""
        plain = word.replace("_", "-") if self.underscores and word.startswith("--") else word
        if plain in self.names:
            return True
        return bool(self.shortest) and plain.startswith(self.shortest) and self.names[0].startswith(plain)


class Found(Record, frozen=True):
    """One occurrence of a flag: ``argv[index : index + width]``."""

    index: int
    width: int
    spelling: str
    """The flag's own characters, without ``=value``; for a dotted member the whole dotted name."""
    value: str | None
    """``None`` for a switch, and where the vector ends before the value."""
    member: tuple[str, ...] = ()
    """Path behind the dots of ``--flag.a.b``."""

    @property
    def joined(self) -> bool:
        """Whether flag and value stand in one word (``--flag=value``)."""
        return self.width == 1 and self.value is not None


def find(argv: Sequence[str], flag: Flag, start: int = 0) -> tuple[Found, ...]:
    """Every occurrence of ``flag`` in ``argv[start:]``, first to last."""
    return tuple(_occurrences(argv, flag, start, dotted=False))


def find_members(argv: Sequence[str], flag: Flag, start: int = 0) -> tuple[Found, ...]:
    """Every dotted member (``--flag.key value``) of ``flag`` in ``argv[start:]``, first to last."""
    return tuple(_occurrences(argv, flag, start, dotted=True))


def _occurrences(argv: Sequence[str], flag: Flag, start: int, *, dotted: bool) -> Iterator[Found]:
    index = start
    while index < len(argv) and argv[index] != "--":
        word, equals, tail = argv[index].partition("=")
        joined = bool(equals) and flag.equals
        spelling = word if joined else argv[index]
        head, _, path = spelling.partition(".")
        hit = flag.spelled(head) and bool(path) if dotted else flag.spelled(spelling)
        if not hit or not spelling.startswith("-"):
            index += 1
            continue
        member = tuple(path.split(".")) if dotted else ()
        if joined:
            found = Found(index=index, width=1, spelling=spelling, value=tail, member=member)
        elif flag.switch or index + 1 >= len(argv):
            found = Found(index=index, width=1, spelling=spelling, value=None, member=member)
        else:
            found = Found(index=index, width=2, spelling=spelling, value=argv[index + 1], member=member)
        yield found
        index += found.width


def read(argv: Sequence[str], flag: Flag, start: int = 0) -> str | None:
    """The value that counts (the last one), or ``None`` when the flag is absent. A switch reads as ``"true"``."""
    found = find(argv, flag, start)
    if not found:
        return None
    last = found[-1].value
    return "true" if flag.switch and last is None else last


def write(argv: Sequence[str], flag: Flag, value: str | None, start: int = 0, beside: Sequence[Flag] = ()) -> tuple[str, ...]:
    """``argv`` with ``flag`` set to ``value`` (``None`` for a switch): the occurrence that counts is changed where it stands.

    A flag that is not there is added behind the last of ``beside`` that is, else at the end of the options.
    """
    found = find(argv, flag, start)
    if found:
        last = found[-1]
        if last.value == value and (flag.switch or last.width == 2 or last.joined):
            return tuple(argv)
        return replace(argv, last, words(last.spelling, value, joined=last.joined))
    neighbours = [hit for other in beside for hit in find(argv, other, start)]
    nearest = max(neighbours, key=lambda hit: hit.index, default=None)
    at = nearest.index + nearest.width if nearest is not None else end_of_options(argv, start)
    new = words(flag.names[0], value, joined=nearest is not None and nearest.joined)
    return (*argv[:at], *new, *argv[at:])


def without(argv: Sequence[str], flag: Flag, start: int = 0) -> tuple[str, ...]:
    """``argv`` without any occurrence of ``flag``, dotted members included."""
    result = tuple(argv)
    for hit in sorted((*find(argv, flag, start), *find_members(argv, flag, start)), key=lambda hit: hit.index, reverse=True):
        result = replace(result, hit, ())
    return result


def replace(argv: Sequence[str], found: Found, new: Sequence[str]) -> tuple[str, ...]:
    return (*argv[: found.index], *new, *argv[found.index + found.width :])


def words(spelling: str, value: str | None, *, joined: bool) -> tuple[str, ...]:
    """The words of one flag in the style asked for."""
    if value is None:
        return (spelling,)
    return (f"{spelling}={value}",) if joined else (spelling, value)


def end_of_options(argv: Sequence[str], start: int = 0) -> int:
    """Index at which an option may be added: before a bare ``--``, else the end."""
    return next((i for i in range(start, len(argv)) if argv[i] == "--"), len(argv))


# -- a JSON object inside one word ------------------------------------------------------------------------------------


class Member(Record, frozen=True):
    """One member of a JSON object: ``text[start:end]`` from its key to the end of its value, ``text[value_start:end]`` the value."""

    key: str
    start: int
    value_start: int
    end: int


def members(text: str, where: str) -> tuple[Member, ...]:
    """The members of the JSON object ``text``, in order. Raises :class:`~leadline.errors.ConfigError` naming ``where``."""
    try:
        whole = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(place=where, what=f"not valid JSON: {error}", fix="correct the JSON, quoted as one word of the command") from None
    if not isinstance(whole, dict):
        raise ConfigError(place=where, what="not a JSON object", fix='write an object, for example {"num_speculative_tokens": 3}')
    decoder = json.JSONDecoder()
    found: list[Member] = []
    at = _blank(text, text.index("{") + 1)
    while text[at] != "}":
        key, after = decoder.raw_decode(text, at)
        value_start = _blank(text, _blank(text, after) + 1)  # past the colon
        _, end = decoder.raw_decode(text, value_start)
        found.append(Member(key=key, start=at, value_start=value_start, end=end))
        at = _blank(text, end)
        if text[at] == ",":
            at = _blank(text, at + 1)
    return tuple(found)


def write_member(text: str, key: str, value: object, where: str) -> str:
    """The JSON object ``text`` with ``key`` set; every other character is kept.

    >>> write_member('{"method":"ngram","num_speculative_tokens":3}', "num_speculative_tokens", 5, "-")
    '{"method":"ngram","num_speculative_tokens":5}'
    """
    found = members(text, where)
    new = json.dumps(value)
    hits = [member for member in found if member.key == key]
    if hits:
        return text[: hits[-1].value_start] + new + text[hits[-1].end :]
    if not found:
        return text[: text.index("{") + 1] + f"{json.dumps(key)}: {new}" + text[text.index("{") + 1 :]
    last = found[-1]
    space = " " if text[last.value_start - 1].isspace() else ""
    return f"{text[: last.end]},{space}{json.dumps(key)}:{space}{new}{text[last.end :]}"


def drop_member(text: str, key: str, where: str) -> str:
    """The JSON object ``text`` without ``key``; every other member is kept as it is written.

    >>> drop_member('{"a": 1, "b": 2}', "a", "-")
    '{"b": 2}'
    """
    while True:
        found = members(text, where)
        at = next((i for i, member in enumerate(found) if member.key == key), None)
        if at is None:
            return text
        if at + 1 < len(found):
            text = text[: found[at].start] + text[found[at + 1].start :]
        elif at:
            text = text[: found[at - 1].end] + text[found[at].end :]
        else:
            text = text[: found[at].start] + text[found[at].end :]


def _blank(text: str, at: int) -> int:
    while text[at] in " \t\n\r":
        at += 1
    return at
