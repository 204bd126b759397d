"""A POSIX shell command line, read as far as it is certain. Pure.

Only what a unit file's ``bash -c`` holds in practice is understood: simple commands joined by ``;``, ``&&``, ``||``,
``|`` or newlines, with assignments before them and redirections in them.  Everything else (loops, functions, here-documents,
substitutions in the words that matter) is reported, never guessed.  Grammar: POSIX.1-2017, Shell Command Language, 2.2-2.10.
"""

from __future__ import annotations

import re

from .errors import CannotRewrite
from .records import Record

_BLANK = " \t"
_OPERATORS = ("&&", "||", ";;", "|&", ";", "|", "&", "\n")
_REDIRECT = re.compile(r"\d*(>>|>\||<>|>&|<&|&>>|&>|<<<|<<-|<<|>|<)")
KEYWORDS = frozenset(
    [
        "if",
        "then",
        "else",
        "elif",
        "fi",
        "for",
        "while",
        "until",
        "do",
        "done",
        "case",
        "esac",
        "function",
        "select",
        "{",
        "}",
        "!",
        "[[",
        "coproc",
    ]
)
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")


class ShellWord(Record, frozen=True):
    """One word: ``text[start:end]`` as written, ``value`` after quote removal."""

    value: str
    start: int
    end: int
    certain: bool = True
    """False where the shell would still change it (variables, substitutions, patterns)."""
    why: str = ""


class ShellCommand(Record, frozen=True):
    """One simple command: its words without redirections, and the operator that ends it."""

    words: tuple[ShellWord, ...]
    operator: str = ""

    @property
    def keyword(self) -> str:
        first = self.words[0] if self.words else None
        return first.value if first and first.value in KEYWORDS and first.end - first.start == len(first.value) else ""


def commands(text: str, where: str) -> list[ShellCommand]:
    """The simple commands of ``text`` in order. Raises :class:`~leadline.errors.CannotRewrite` on what is not understood."""
    found: list[ShellCommand] = []
    current: list[ShellWord] = []
    at, skip = 0, False
    while at < len(text):
        if text[at] in _BLANK or text.startswith("\\\n", at):
            at += 2 if text[at] == "\\" else 1
            continue
        if text[at] == "#":
            at = text.find("\n", at) if "\n" in text[at:] else len(text)
            continue
        redirect = _REDIRECT.match(text, at)
        if redirect:
            if redirect.group(1).startswith("<<"):
                raise _unsure(where, "it holds a here-document")
            at, skip = redirect.end(), True
            continue
        operator = next((mark for mark in _OPERATORS if text.startswith(mark, at)), "")
        if operator:
            if current:
                found.append(ShellCommand(words=tuple(current), operator=operator))
            current, skip = [], False
            at += len(operator)
            continue
        if text[at] in "()":
            raise _unsure(where, "it holds a subshell or a function")
        word = _word(text, at, where)
        at = word.end
        if not skip:
            current.append(word)
        skip = False
    if current:
        found.append(ShellCommand(words=tuple(current)))
    return found


def _word(text: str, begin: int, where: str) -> ShellWord:
    at, value, why = begin, [], ""
    while at < len(text):
        char = text[at]
        if char == "'":
            end = text.find("'", at + 1)
            if end < 0:
                raise _unsure(where, "a single quote is never closed")
            value.append(text[at + 1 : end])
            at = end + 1
        elif char == '"':
            inner, at, doubt = _double(text, at + 1, where)
            value.append(inner)
            why = why or doubt
        elif char == "\\" and at + 1 < len(text):
            if text[at + 1] != "\n":
                value.append(text[at + 1])
            at += 2
        elif char in _BLANK or char in "\n;&|()<>":
            break
        else:
            why = why or _doubt(text, at, begin)
            value.append(char)
            at += 1
    return ShellWord(value="".join(value), start=begin, end=at, certain=not why, why=why)


def _doubt(text: str, at: int, begin: int) -> str:
    """Why the unquoted character at ``at`` leaves the word open; empty when it does not."""
    char = text[at]
    if char == "`" or text.startswith("$(", at):
        return "a command substitution"
    if char == "$" and re.match(r"\$[A-Za-z_0-9{@*#?$!'\"-]", text[at:]):
        return "a shell variable"
    if char in "*?[":
        return "a file name pattern"
    if char == "~" and at == begin:
        return "a home folder"
    if char == "{" and re.match(r"\{[^}\s]*(,|\.\.)[^}\s]*\}", text[at:]):
        return "a brace expansion"
    return ""


def _double(text: str, at: int, where: str) -> tuple[str, int, str]:
    value, why = [], ""
    while at < len(text) and text[at] != '"':
        char = text[at]
        if char == "\\" and text[at + 1 : at + 2] in ("$", "`", '"', "\\", "\n"):
            if text[at + 1] != "\n":
                value.append(text[at + 1])
            at += 2
            continue
        if char == "`" or text.startswith("$(", at):
            why = why or "a command substitution"
        elif char == "$" and re.match(r"\$[A-Za-z_0-9{@*#?$!-]", text[at:]):
            why = why or "a shell variable"
        value.append(char)
        at += 1
    if at >= len(text):
        raise _unsure(where, "a double quote is never closed")
    return "".join(value), at + 1, why


def quote(value: str, prefer: str = "") -> str:
    """``value`` as one shell word; ``prefer`` is the quote to use where it can."""
    if not prefer and re.fullmatch(r"[A-Za-z0-9_@%+=:,./-]+", value):
        return value
    if prefer == '"' and not re.search(r"[!]", value):
        return '"' + re.sub(r'([$`"\\])', r"\\\1", value) + '"'
    return "'" + value.replace("'", "'\"'\"'") + "'"


def _unsure(where: str, why: str) -> CannotRewrite:
    return CannotRewrite(where=where, why=f"{why} in the shell text", fix="let ExecStart start the engine directly, without a shell")
