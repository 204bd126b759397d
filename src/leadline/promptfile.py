"""The user's own prompts: one JSON value a line (or one JSON array), read into prompts. Pure.

=============== =====================================================================================================
OpenAI          ``{"messages": [{"role", "content"}...], "max_tokens"?, "tools"?}``, or a batch line with that in ``body``
ShareGPT        ``{"conversations": [{"from": "human", "value"}, {"from": "gpt", "value"}...]}``: a session, one request a human turn
sglang custom   ``{"conversations": [{"content": prompt}, {"content": answer}]}``, or ``conversation``
vllm custom     ``{"prompt": text, "output_tokens"?: n}``
replay          any of them with ``"at_s"`` (or ``"timestamp"``, ms): sent at that time; lines with one ``"session"`` follow each other,
                ``"delay_s"`` after the answer before, or at their own time if that is later
=============== =====================================================================================================

In a session every request carries the *recorded* answers, never the measured ones, so that all candidates get equal prompts.
Of OpenAI messages everything is kept that the file says: tool calls and the ids of their answers, names, content in parts or none. A
conversation in which nobody asks holds no request (the other tools pass over it as well). A token limit below 1, which some servers take
for none, counts as not given.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Sequence

import msgspec

from .errors import BadWorkload
from .records import Record

RANDOM_RATIO = 0.45
"""Deflated size over size (first 32 KB): code and repeated templates stay below, dense prose and decoded random tokens (0.55) above."""
RANDOM_FUNCTION_WORDS = 0.06
"""Share of :data:`FUNCTION_WORDS`: a quarter or more in prose, about 1 % in decoded random tokens."""
RANDOM_LEAST_WORDS = 300
FUNCTION_WORDS = frozenset(
    [
        "the",
        "of",
        "and",
        "to",
        "is",
        "that",
        "it",
        "for",
        "as",
        "with",
        "was",
        "be",
        "by",
        "this",
        "are",
        "or",
        "an",
        "at",
        "from",
        "not",
        "have",
        "you",
        "we",
        "he",
        "she",
        "they",
        "but",
        "what",
        "which",
        "can",
        "will",
        "if",
        "there",
        "their",
        "when",
        "how",
        "my",
        "your",
        "one",
        "all",
        "would",
        "make",
        "please",
        "und",
        "der",
        "die",
        "das",
        "ist",
        "nicht",
        "mit",
        "ein",
        "eine",
        "auf",
        "den",
        "dem",
        "les",
        "des",
        "est",
        "une",
        "pour",
        "dans",
        "que",
        "qui",
        "pas",
        "el",
        "los",
        "las",
        "con",
        "por",
        "para",
        "una",
        "del",
        "como",
        "di",
        "il",
        "che",
        "per",
        "non",
        "sono",
        "della",
        "return",
        "import",
        "self",
        "def",
        "class",
        "function",
        "const",
        "var",
        "true",
        "false",
        "none",
        "null",
    ]
)


class Turn(Record, frozen=True):
    """One request of a session."""

    messages: tuple[tuple[str, str], ...]
    """(role, text) pairs in order; the text of parts is put together, that of an answer that only calls tools is empty."""
    recorded: str = ""
    """JSON of the same messages as they stand in the file; empty where role and text are all that it says of them."""
    max_tokens: int | None = None
    at_s: float | None = None
    delay_s: float = 0.0
    tools: str = ""


class PromptFile(Record, frozen=True):
    """A file of prompts, as sessions in the order of the file."""

    name: str
    sha256: str
    sessions: tuple[tuple[Turn, ...], ...]

    @property
    def requests(self) -> int:
        return sum(map(len, self.sessions))

    @property
    def timed(self) -> bool:
        """Whether a session begins at a time of its own."""
        return any(session[0].at_s is not None for session in self.sessions)


def parse(name: str, text: str, *, force: bool = False) -> PromptFile:
    """Read the text of a prompt file. Raises :class:`~leadline.errors.BadWorkload`, naming the line.

    Text that looks like random tokens is refused unless ``force``: what a draft model makes of it says nothing about real traffic.
    """
    text = text.removeprefix("\ufeff")
    sessions: dict[str, list[Turn]] = {}
    for number, value in _values(name, text):
        turns, session = _turns(name, number, value)
        _check_sendable(name, number, turns)
        if turns:
            sessions.setdefault(session or f"#{number}", []).extend(turns)
    if not sessions:
        raise BadWorkload(workload=name, why="the file holds no prompt", fix="put one JSON object a line into it")
    found = PromptFile(
        name=name, sha256=hashlib.sha256(text.encode()).hexdigest()[:16], sessions=tuple(tuple(turns) for turns in sessions.values())
    )
    if not force and looks_random(content for session in found.sessions for turn in session for _, content in turn.messages):
        raise BadWorkload(
            workload=name,
            why="its text looks like random tokens, whose acceptance says nothing about real traffic",
            fix="use recorded prompts, or write !" + name + " to measure with it all the same",
        )
    return found


def untimed(source: PromptFile) -> PromptFile:
    """The same prompts without times and pauses, to be played as fast as they are answered."""
    return msgspec.structs.replace(
        source,
        sessions=tuple(tuple(msgspec.structs.replace(turn, at_s=None, delay_s=0.0) for turn in session) for session in source.sessions),
    )


def looks_random(texts: Iterable[str]) -> bool:
    """Whether the texts together look like decoded random tokens: hard to compress, and without the words that hold sentences together.

    Only text in Latin letters is judged.
    """
    sample = "\n".join(dict.fromkeys(texts))[: 32 << 10]
    words = re.findall(r"[a-z]{2,}", sample.lower())
    if len(words) < RANDOM_LEAST_WORDS or sum(map(len, words)) < len(sample) / 2:
        return False
    encoded = sample.encode("utf-8", "surrogatepass")
    joining = sum(word in FUNCTION_WORDS for word in words) / len(words)
    return joining < RANDOM_FUNCTION_WORDS and len(zlib.compress(encoded, 9)) > RANDOM_RATIO * len(encoded)


def _values(name: str, text: str) -> Iterable[tuple[int, dict[str, object]]]:
    if text.lstrip().startswith("["):
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadWorkload(
                workload=name, why=f"it begins like a JSON array but is none: {error}", fix="correct the place named"
            ) from None
        lines = list(enumerate(values, 1))
    else:
        lines = []
        for number, line in enumerate(text.split("\n"), 1):  # other line separators may stand inside a JSON string
            if line.strip():
                try:
                    lines.append((number, json.loads(line)))
                except (ValueError, RecursionError) as error:
                    raise BadWorkload(workload=name, why=f"line {number} is no JSON: {error}", fix="put one JSON object a line") from None
    for number, value in lines:
        if not isinstance(value, dict):
            raise BadWorkload(workload=name, why=f"entry {number} is no JSON object", fix="see `leadline bench --help` for the formats")
        yield number, value


def _turns(name: str, number: int, value: dict[str, object]) -> tuple[list[Turn], str]:
    """The requests of one line, and the session it belongs to (empty: its own)."""
    body = value.get("body")
    if isinstance(body, dict):
        value = {**value, **body}
    at_s = _seconds(name, number, "at_s", value.get("at_s"))
    if at_s is None and (stamp := _number(value.get("timestamp"))) is not None:
        at_s = stamp / 1000.0
    limits = (_number(value.get(key)) for key in ("max_completion_tokens", "max_tokens", "output_tokens"))
    shared = {
        "max_tokens": next((int(limit) for limit in limits if limit is not None and limit >= 1), None),
        "delay_s": _seconds(name, number, "delay_s", value.get("delay_s"), least=0.0) or 0.0,
        "tools": json.dumps(value["tools"]) if value.get("tools") else "",
    }
    session = value.get("session", value.get("session_id"))
    label = str(session) if session is not None else ""
    if isinstance(value.get("messages"), list) and value["messages"]:
        items = _list(value["messages"])
        messages = [_message(name, number, item) for item in items]
        return [Turn(messages=tuple(messages), recorded=_recorded(items, messages), at_s=at_s, **shared)], label  # type: ignore[arg-type]
    if isinstance(value.get("prompt"), str):
        return [Turn(messages=(("user", str(value["prompt"])),), at_s=at_s, **shared)], label  # type: ignore[arg-type]
    talk = value.get("conversations", value.get("conversation"))
    if isinstance(talk, list):
        messages = [_message(name, number, item, index) for index, item in enumerate(talk)]
        asked = [index for index, (role, _) in enumerate(messages) if role == "user"]
        return [
            Turn(messages=tuple(messages[: index + 1]), at_s=at_s if index == asked[0] else None, **shared)  # type: ignore[arg-type]
            for index in asked
        ], label
    raise BadWorkload(
        workload=name,
        why=f"entry {number} has neither messages, prompt nor conversations (its keys: {', '.join(sorted(value)) or 'none'})",
        fix='write for example {"messages": [{"role": "user", "content": "..."}]}',
    )


_NUMBER_LIMIT = 1e15
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "system": "system",
}


def _message(name: str, number: int, item: object, index: int = 0) -> tuple[str, str]:
    if isinstance(item, dict):
        role = item.get("role", item.get("from", "user" if index % 2 == 0 else "assistant"))
        content = item.get("content", item.get("value"))
        if isinstance(content, list):  # parts of a multimodal message: the text ones
            content = "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
        if content is None and (item.get("tool_calls") or item.get("function_call")):
            content = ""
        if isinstance(content, str) and isinstance(role, str):
            return _ROLES.get(role, role), content
    raise BadWorkload(workload=name, why=f"entry {number} has a message without text", fix="every message needs role and content")


def _recorded(items: Sequence[object], messages: Sequence[tuple[str, str]]) -> str:
    """JSON of the messages with all that the file says of them; empty where that is no more than ``messages``."""
    whole = [_whole(item, role) for item, (role, _) in zip(items, messages, strict=True) if isinstance(item, dict)]
    plain = [{"role": role, "content": text} for role, text in messages]
    return json.dumps(whole) if whole != plain else ""


def _whole(item: dict[str, object], role: str) -> dict[str, object]:
    """A message in OpenAI's words, with everything else that the file says of it."""
    told = {"content": item.get("content", item.get("value"))} if {"content", "value"} & item.keys() else {}
    return {"role": role, **told, **{key: value for key, value in item.items() if key not in ("role", "from", "content", "value")}}


def _check_sendable(name: str, number: int, turns: Iterable[Turn]) -> None:
    r"""JSON can name half of a surrogate pair (``\ud83d``), as broken exports do; no request can carry it."""
    for turn in turns:
        kept = (json.dumps(json.loads(text), ensure_ascii=False) for text in (turn.tools, turn.recorded) if text)
        try:
            "".join((*kept, *(part for message in turn.messages for part in message))).encode()
        except UnicodeEncodeError as error:
            why = f"entry {number} has half of a surrogate pair, {error.object[error.start]!r}, which is no text"
            raise BadWorkload(workload=name, why=why, fix="leave the line out, or write the whole character") from None


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else []


def _seconds(name: str, number: int, key: str, value: object, least: float = -_NUMBER_LIMIT) -> float | None:
    """A time of a recorded request. What is there and cannot be kept is no file to replay: played without, it would be another load."""
    found = _number(value)
    if value is None or (found is not None and found >= least):
        return found
    raise BadWorkload(workload=name, why=f"entry {number} has {key} {value!r}", fix=f"write {key} as a number of seconds, or leave it out")


def _number(value: object) -> float | None:
    """What can be a number of seconds or tokens; ``NaN`` and ``Infinity``, which the JSON reader takes as well, are none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _NUMBER_LIMIT else None
