"""systemd's own text rules: unit files, command lines, specifiers, environment. Pure.

Sources: systemd.syntax(7), systemd.service(5) "Command lines", systemd.unit(5) "Specifiers", and what systemd 252 did on a
real host (tests/data/recordings/systemd).  A :class:`Word` remembers for every character of its value where it stood
in the source, so that a change can be written back in place and everything else stays byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from .errors import CannotRewrite
from .records import Record

BLANK = " \t\n\r"
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"', "'": "'", "s": " "}
_NUMERIC = {"x": (2, 16), "u": (4, 16), "U": (8, 16)}
_ESCAPE = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\"}


class Assignment(Record, frozen=True):
    """One ``Key=value`` of a unit file or drop-in, in the order in which systemd reads them."""

    section: str
    key: str
    value: str
    """Raw, continuation lines included (backslash and newline kept), comments between them left out."""
    path: str = ""


class Char(Record, frozen=True):
    """One character of a word's value and its place in the source."""

    start: int
    end: int
    quote: str
    """The quote it stands in: ``'``, ``"`` or empty."""


class Word(Record, frozen=True):
    """One word of a command line: its value after unquoting, before specifiers and variables."""

    value: str
    start: int
    end: int
    """``source[start:end]`` is the word as written, quotes included."""
    chars: tuple[Char, ...]

    def quote_at(self, index: int) -> str:
        """The quote an insertion before character ``index`` stands in (of its left neighbour, else of its right one)."""
        if not self.chars:
            return ""
        return self.chars[max(index - 1, 0)].quote

    def place(self, index: int) -> int:
        """Where in the source an insertion before character ``index`` goes."""
        if not self.chars:
            return self.end
        return self.chars[index - 1].end if index > 0 else self.chars[0].start


def assignments(cat: str) -> Iterator[Assignment]:
    """Every assignment in the output of ``systemctl cat`` (or of one file), in order.

    ``systemctl cat`` heads each file with a comment that is its path; a new file begins outside of any section.
    """
    section = path = ""
    lines = iter(cat.split("\n"))
    for line in lines:
        text = line.strip(BLANK)
        if re.fullmatch(r"# /\S.*", line):
            path, section = line[2:], ""
        elif not text or text[0] in "#;":
            continue
        elif text[0] == "[" and text.endswith("]"):
            section = text[1:-1]
        else:
            whole = line
            while whole.endswith("\\"):
                follow = next((more for more in lines if not more.lstrip(BLANK).startswith(("#", ";"))), None)
                if follow is None:
                    break
                whole += "\n" + follow
            key, equals, value = whole.partition("=")
            if equals:
                yield Assignment(section=section, key=key.strip(BLANK), value=value.strip(BLANK), path=path)


def without_file(cat: str, path: str) -> str:
    """The output of ``systemctl cat`` without one of its files."""
    return re.sub(rf"^# {re.escape(path)}\n(?:(?!# /\S).*\n?)*", "", cat, flags=re.MULTILINE)


def effective(cat: str, key: str, section: str = "Service") -> list[Assignment]:
    """The assignments of a list-like key that count: an empty one clears what came before it."""
    kept: list[Assignment] = []
    for found in assignments(cat):
        if found.section == section and found.key == key:
            kept = [*kept, found] if found.value else []
    return kept


def words(source: str, where: str) -> list[Word]:
    """Split a command line as systemd does. Raises :class:`~leadline.errors.CannotRewrite` for what systemd would not load."""
    found: list[Word] = []
    at = 0
    while True:
        while at < len(source) and (source[at] in BLANK or source.startswith("\\\n", at)):
            at += 2 if source[at] == "\\" else 1
        if at >= len(source):
            return found
        word, at = _word(source, at, where)
        found.append(word)


def _word(source: str, begin: int, where: str) -> tuple[Word, int]:
    at, quote = begin, ""
    value: list[str] = []
    chars: list[Char] = []

    def take(text: str, end: int) -> None:
        value.append(text)
        chars.append(Char(start=at, end=end, quote=quote))

    if source[begin] == ";" and (begin + 1 == len(source) or source[begin + 1] in BLANK):
        raise CannotRewrite(where=where, why="it runs several commands (a bare ';')", fix="give the engine an ExecStart of its own")
    while at < len(source):
        char = source[at]
        if source.startswith("\\\n", at):  # a continued line reads as one blank
            if not quote:
                break
            take(" ", at + 2)
            at += 2
        elif char == "\\":
            text, end = _escape(source, at, where)
            take(text, end)
            at = end
        elif quote and char == quote:
            quote, at = "", at + 1
        elif not quote and char in "'\"":
            quote, at = char, at + 1
        elif not quote and char in BLANK:
            break
        else:
            take(char, at + 1)
            at += 1
    if quote:
        raise CannotRewrite(
            where=where, why=f"a quote ({quote}) is never closed", fix="close the quote; systemd does not load this line either"
        )
    return Word(value="".join(value), start=begin, end=at, chars=tuple(chars)), at


def _escape(source: str, at: int, where: str) -> tuple[str, int]:
    head = source[at + 1 : at + 2]
    if head in _SIMPLE and head:
        return _SIMPLE[head], at + 2
    if head == ";":  # systemd.service(5): the escaped separator is a literal semicolon
        return ";", at + 2
    if head in _NUMERIC and head:
        width, base = _NUMERIC[head]
        digits = source[at + 2 : at + 2 + width]
        if re.fullmatch(rf"[0-9A-Fa-f]{{{width}}}", digits):
            return chr(int(digits, base)), at + 2 + width
    octal = source[at + 1 : at + 4]
    if re.fullmatch(r"[0-3][0-7]{2}", octal):
        return chr(int(octal, 8)), at + 4
    raise CannotRewrite(
        where=where,
        why=f"{source[at : at + 4]!r} is no escape that systemd knows",
        fix="write a backslash as \\\\; systemd does not load this line either",
    )


# -- specifiers and variables ------------------------------------------------------------------------------------------


def specifiers(unit: str) -> dict[str, str]:
    """The specifiers that follow from a unit's name alone (systemd.unit(5)); all others depend on the host."""
    stem = unit.rpartition(".")[0]
    prefix, at, instance = stem.partition("@")
    component = prefix.rpartition("-")[2]
    return {
        "%": "%",
        "n": unit,
        "N": stem,
        "p": prefix,
        "P": unescape(prefix),
        "i": instance if at else "",
        "I": unescape(instance) if at else "",
        "j": component,
        "J": unescape(component),
    }


def unescape(name: str) -> str:
    r"""systemd's name escaping undone: ``-`` is ``/``, ``\xNN`` a byte."""
    return re.sub(r"\\x([0-9a-f]{2})", lambda hit: chr(int(hit.group(1), 16)), name.replace("-", "/"))


def expand_specifiers(value: str, known: Mapping[str, str]) -> str | None:
    """``value`` with its specifiers replaced; ``None`` when one of them is not known."""
    missing = False

    def one(hit: re.Match[str]) -> str:
        nonlocal missing
        if hit.group(1) not in known:
            missing = True
        return known.get(hit.group(1), "")

    text = re.sub(r"%(.)", one, value, flags=re.DOTALL)
    return None if missing else text


SET_BY_SYSTEMD = frozenset(
    [
        "PATH",
        "LANG",
        "USER",
        "LOGNAME",
        "HOME",
        "SHELL",
        "INVOCATION_ID",
        "XDG_RUNTIME_DIR",
        "RUNTIME_DIRECTORY",
        "STATE_DIRECTORY",
        "CACHE_DIRECTORY",
        "LOGS_DIRECTORY",
        "CONFIGURATION_DIRECTORY",
        "CREDENTIALS_DIRECTORY",
        "MAINPID",
        "MANAGERPID",
        "LISTEN_FDS",
        "LISTEN_PID",
        "LISTEN_FDNAMES",
        "NOTIFY_SOCKET",
        "WATCHDOG_PID",
        "WATCHDOG_USEC",
        "SYSTEMD_EXEC_PID",
        "TERM",
        "JOURNAL_STREAM",
        "PIDFILE",
        "REMOTE_ADDR",
        "REMOTE_PORT",
        "MEMORY_PRESSURE_WATCH",
        "MEMORY_PRESSURE_WRITE",
    ]
)
"""Variables whose values are decided at each start: never expanded."""

_BRACED = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def expand_variables(value: str, env: Mapping[str, str]) -> list[str] | None:
    """The arguments one word becomes (systemd.service(5)): ``$NAME`` alone is split at blanks, ``${NAME}`` stays one argument,
    a ``$NAME`` inside a word is left as it is, ``$$`` is a dollar. ``None`` when a value is not certain.

    ``env`` holds every variable that is certain; a variable that certainly is not set maps to the empty text.
    """
    alone = re.fullmatch(r"\$([A-Za-z_][A-Za-z0-9_]*)", value)
    if alone:
        held = env.get(alone.group(1))
        return None if held is None or any(char in held for char in "'\"\\") else held.split()
    missing = False

    def one(hit: re.Match[str]) -> str:
        nonlocal missing
        if hit.group(1) is None:
            return "$"
        held = env.get(hit.group(1))
        missing = missing or held is None
        return held or ""

    text = _BRACED.sub(one, value)
    return None if missing else [text]


def parse_environment(shown: str) -> dict[str, str]:
    """The ``Environment`` property of ``systemctl show``: quoted words ``NAME=value``."""
    found = {}
    for word in words(shown, "Environment="):
        name, equals, value = word.value.partition("=")
        if equals:
            found[name] = value
    return found


def parse_environment_file(text: str) -> dict[str, str] | None:
    """An ``EnvironmentFile``; ``None`` where it uses quoting beyond one plain pair around the whole value."""
    found = {}
    for line in text.split("\n"):
        line = line.strip(BLANK)
        if not line or line[0] in "#;":
            continue
        name, equals, value = line.partition("=")
        value = value.strip(BLANK)
        if not equals:
            continue
        if len(value) > 1 and value[0] in "'\"" and value.endswith(value[0]):
            value = value[1:-1]
        if any(char in value for char in "'\"\\"):
            return None
        found[name.strip(BLANK)] = value
    return found


# -- writing -----------------------------------------------------------------------------------------------------------

_PLAIN = re.compile(r"[A-Za-z0-9_@+:,./=^~!?\[\](){}*&|<>%$-]+")


def quote(value: str, *, prefer: str = "", variables: bool = True) -> str:
    """``value`` as one word of a command line, so that systemd hands exactly it to the program.

    ``prefer`` is the quote to use in any case; ``variables`` is false behind the ``:`` prefix, which switches ``$`` off.
    """
    if not prefer and _PLAIN.fullmatch(value):
        return embed(value, "", variables=variables)
    mark = prefer or ('"' if "'" in value and '"' not in value else "'")
    return mark + embed(value, mark, variables=variables) + mark


def embed(value: str, quote_mark: str, *, variables: bool = True) -> str:
    """``value`` written inside ``quote_mark`` (or outside of any quote): escapes, doubled ``%`` and ``$``."""
    out = []
    for char in value:
        if char in _ESCAPE:
            out.append(_ESCAPE[char])
        elif char == "%":
            out.append("%%")
        elif char == "$" and variables:
            out.append("$$")
        elif char == quote_mark or (not quote_mark and char in "'\""):
            out.append("\\" + char)
        elif char == " " and not quote_mark:
            out.append("\\s")
        elif char < " " or char == "\x7f":
            out.append(f"\\x{ord(char):02x}")
        else:
            out.append(char)
    return "".join(out)
