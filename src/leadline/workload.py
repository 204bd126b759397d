"""Workload and seed -> the prompts of each block. Pure: the same arguments give the same prompts on every machine.

A workload is a set of templates (``data/workloads/*.toml``, written for this project) or the user's own file.  A *block* is a fixed
set of prompts: block ``b`` is the same for every candidate, so that candidates can be compared pair by pair, and no
prompt of one block stands in another, so that no prefix cache answers for the engine.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import itertools
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from .config import Measure
from .errors import BadWorkload
from .promptfile import PromptFile, Turn
from .records import Level, Record

BUILT_IN = ("chat", "copy", "edit", "summarise", "extract")
_PLACEHOLDER = re.compile(r"\{(?:(\d+)\.\.(\d+)|([A-Za-z_]+)(?:@(\w+))?(?:\*(\d+)\.\.(\d+))?)\}")
_DEPTH_LIMIT = 8


class Prompt(Record, frozen=True):
    """One request of a block."""

    prompt_id: str
    messages: tuple[tuple[str, str], ...]
    """(role, text) pairs in order."""
    max_tokens: int
    due_s: float | None = None
    """Replay: not before so many seconds after the start of the level; ``None`` = as the level's loop says."""
    after: str = ""
    """Replay: id of the prompt (earlier turn of the session) that must have been answered."""
    delay_s: float = 0.0
    """Replay: pause between the answer to ``after`` and this request."""
    recorded: str = ""
    """JSON of the messages of a recorded request, where it says more of them than role and text: they are sent so."""
    tools: str = ""
    """JSON of the ``tools`` of a recorded request."""
    ignore_eos: bool = False
    """Ask the server to go on to ``max_tokens`` whatever it generates."""


class Template(Record, frozen=True):
    """A built-in workload."""

    name: str
    about: str
    messages: tuple[tuple[str, str, bool], ...]
    """(role, text, shared by the whole block)."""
    fill: dict[str, tuple[str, ...]]


@functools.lru_cache(4)  # they are asked for when a run is checked, and again when it is played; many long ones would fill the memory
def blocks(workload: str, *, seed: int, block: int, count: int, max_tokens: int, background: int = 0) -> tuple[Prompt, ...]:
    """The ``count`` prompts of block number ``block`` (from 0) of a built-in workload. Raises :class:`~leadline.errors.BadWorkload`.

    A smaller ``count`` gives the first prompts of a larger one. ``background`` characters of text go with each, or with what the block
    shares where it shares a context.

    >>> [p.prompt_id for p in blocks("chat", seed=1, block=2, count=2, max_tokens=8)]
    ['chat-1-2-0', 'chat-1-2-1']
    """
    template = built_in(workload)
    if count < 1 or block < 0 or max_tokens < 1:
        raise BadWorkload(
            workload=workload, why=f"block {block} of {count} prompts, {max_tokens} tokens each", fix="counts and tokens are 1 and more"
        )
    prompts: list[Prompt] = []
    seen: set[tuple[tuple[str, str], ...]] = set()
    for number in range(count):
        for attempt in range(100):  # two equal draws in one block are possible where a set is small: draw again
            messages = _messages(template, seed, block, f"{number}/{attempt}", background)
            if messages not in seen:
                break
        else:
            raise BadWorkload(workload=workload, why=f"it has no {count} different prompts", fix="ask for fewer prompts a block")
        seen.add(messages)
        prompts.append(Prompt(prompt_id=f"{workload}-{seed}-{block}-{number}", messages=messages, max_tokens=max_tokens))
    return tuple(prompts)


def _messages(template: Template, seed: int, block: int, number: str, background: int) -> tuple[tuple[str, str], ...]:
    rendered = []
    grown = next((index for index, message in enumerate(template.messages) if message[2]), len(template.messages) - 1)
    for index, (role, text, shared) in enumerate(template.messages):
        key = f"{template.name}/{seed}/{block}/{'shared' if shared else number}/{index if shared else ''}"
        said = _Drawer(template.fill, key).render(text)
        if background and index == grown:
            more = _background(key, background)
            said = f"{said}\n\n{more}" if shared else f"{more}\n\n{said}"
        rendered.append((role, said))
    return tuple(rendered)


def _background(key: str, characters: int) -> str:
    """So much text that belongs to no question: facts of the workload ``summarise``, cut behind a word."""
    drawer = _Drawer(built_in("summarise").fill, f"{key}/background")
    sentences: list[str] = []
    length = 0
    while length < characters:
        sentences.append(drawer.render("{fact}"))
        length += len(sentences[-1]) + 1
    text = " ".join(sentences)
    cut = text.rfind(" ", 0, characters + 1)
    return text[: cut if cut > 0 and len(text) > characters else characters]


@functools.cache
def built_in(workload: str) -> Template:
    """Read a built-in workload. Raises :class:`~leadline.errors.BadWorkload`."""
    if workload not in BUILT_IN:
        raise BadWorkload(
            workload=workload,
            why="there is no built-in workload of that name",
            fix=f"take one of {', '.join(BUILT_IN)}, or the path of a .jsonl file of your own prompts",
        )
    text = importlib.resources.files("leadline").joinpath(f"data/workloads/{workload}.toml").read_text("utf-8")
    raw = tomllib.loads(text)
    return Template(
        name=workload,
        about=raw["about"],
        messages=tuple((m["role"], m["text"], m.get("shared", False)) for m in raw["messages"]),
        fill={name: tuple(values) for name, values in raw["fill"].items()},
    )


@functools.lru_cache(4096)
def _parsed(text: str) -> tuple[str | re.Match[str], ...]:
    """A text and its placeholders in turns."""
    parts: list[str | re.Match[str]] = []
    at = 0
    for match in _PLACEHOLDER.finditer(text):
        parts += [text[at : match.start()], match]
        at = match.end()
    return (*parts, text[at:])


class _Drawer:
    """Fills placeholders. Every draw is a hash of the key and its number, so that no generator's history matters."""

    def __init__(self, fill: dict[str, tuple[str, ...]], key: str) -> None:
        self._fill = fill
        self._key = key
        self._draws = 0
        self._bound: dict[str, str] = {}

    def render(self, text: str, depth: int = 0) -> str:
        if depth > _DEPTH_LIMIT:
            raise ValueError(f"placeholders nested deeper than {_DEPTH_LIMIT}: {text}")
        parts = _parsed(text)
        return text if len(parts) == 1 else "".join([part if isinstance(part, str) else self._one(part, depth) for part in parts])

    def _one(self, match: re.Match[str], depth: int) -> str:
        low, high, name, bound, least, most = match.groups()
        if low is not None:
            return str(int(low) + self._draw(int(high) - int(low) + 1))
        if name not in self._fill:
            return match.group(0)  # braces of the text itself, as in code
        if bound is not None:
            key = f"{name}@{bound}"
            if key not in self._bound:
                self._bound[key] = self._choose(name, depth)
            return self._bound[key]
        if least is not None:
            count = int(least) + self._draw(int(most) - int(least) + 1)
            return "\n".join(self._choose(name, depth) for _ in range(count))
        return self._choose(name, depth)

    def _choose(self, name: str, depth: int) -> str:
        options = self._fill[name]
        return self.render(options[self._draw(len(options))], depth + 1)

    def _draw(self, count: int) -> int:
        self._draws += 1
        digest = hashlib.blake2b(f"{self._key}/{self._draws}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % count


def from_file(source: PromptFile, *, seed: int, block: int, count: int, max_tokens: int, repeat: bool = True) -> tuple[Prompt, ...]:
    """The ``count`` prompts of block number ``block`` from the user's file, the turns of a session in order.

    Sessions are dealt in an order that depends on ``seed``; what is left of a session when its block is full is not played. When the file is
    used up, it begins again if ``repeat`` allows (every prompt then carries another nonce), else :class:`~leadline.errors.BadWorkload` is
    raised. A timed file is one block, the whole of it in its own order, whatever ``count`` says. All of this, ids too, follows from the
    file's content: under another name it gives the same prompts.
    """
    if source.timed:
        return _replayed(source, seed, block, max_tokens, repeat)
    order = sorted(
        range(len(source.sessions)), key=lambda index: hashlib.blake2b(f"{source.sha256}/{seed}/{index}".encode(), digest_size=8).digest()
    )
    sessions = [source.sessions[index] for index in order]
    prompts: list[Prompt] = []
    at = _first_session([len(session) for session in sessions], block, count, repeat)
    while len(prompts) < count:
        if at >= len(sessions) and not repeat:
            raise BadWorkload(
                workload=source.name,
                why=f"{source.requests} prompts are too few for block {block} of {count}, and a repeated prompt would be answered from the cache",
                fix='give a file with more prompts, fewer of them to a block (measure.prompts, waves) or fewer blocks (measure.max_blocks), or measure.cache = "cold"',
            )
        prompts.extend(_session(source, sessions[at % len(sessions)], f"{at}", seed, block, max_tokens))
        at += 1
    return tuple(prompts[:count])


def _first_session(lengths: Sequence[int], block: int, count: int, repeat: bool) -> int:
    """Position of the session that a block begins with, counted on through every round of the file.

    Where the file may repeat, a nonce makes every prompt new, so that the position follows from ``block * count`` and what stood at the end of
    one block may stand at the beginning of the next.
    """
    if repeat:
        rounds, skip = divmod(block * count, sum(lengths))
        starts = itertools.accumulate(lengths, initial=0)
        return rounds * len(lengths) + next(at for at, start in enumerate(starts) if start >= skip)
    at = 0
    for _ in range(block):
        room = count
        while room > 0 and at < len(lengths):
            room -= lengths[at]
            at += 1
    return at


def _replayed(source: PromptFile, seed: int, block: int, max_tokens: int, repeat: bool) -> tuple[Prompt, ...]:
    """The whole of a timed file; its times count from the first."""
    if block and not repeat:
        raise BadWorkload(
            workload=source.name,
            why=f"a file with times is one block, there is no block {block}, and a repeated prompt would be answered from the cache",
            fix='ask for one block (measure.max_blocks), or measure.cache = "cold"',
        )
    prompts: list[Prompt] = []
    for at, session in enumerate(source.sessions, block * len(source.sessions)):
        prompts.extend(_session(source, session, f"{at}", seed, block, max_tokens))
    first = min(prompt.due_s for prompt in prompts if prompt.due_s is not None and not prompt.after)
    return tuple(msgspec.structs.replace(prompt, due_s=prompt.due_s - first) if prompt.due_s is not None else prompt for prompt in prompts)


def _session(source: PromptFile, session: Sequence[Turn], label: str, seed: int, block: int, max_tokens: int) -> list[Prompt]:
    made: list[Prompt] = []
    for number, turn in enumerate(session):
        made.append(
            Prompt(
                prompt_id=f"{source.sha256}-{seed}-{block}-{label}.{number}",
                messages=turn.messages,
                recorded=turn.recorded,
                max_tokens=min(turn.max_tokens or max_tokens, max_tokens),
                due_s=turn.at_s if source.timed else None,
                after=made[-1].prompt_id if made else "",
                delay_s=turn.delay_s,
                tools=turn.tools,
            )
        )
    return made


def slug(level: Level) -> str:
    """A level as part of a file name."""
    return re.sub(r"[^A-Za-z0-9.=_-]+", "-", level.label.replace("/s", "-per-s").rpartition("/")[2])


def digest(workloads: Iterable[str], measure: Measure, files: Mapping[str, PromptFile] = MappingProxyType({})) -> str:
    """Fingerprint of everything about the prompts that two measurements must share to be compared (16 hex digits).

    A built-in workload enters by its templates, a file by its content (``files``: those that were read, by workload).
    """
    grown = [measure.input_tokens] if measure.input_tokens else []
    said: list[object] = [*grown, measure.max_tokens, measure.prompts, measure.waves, measure.seed, measure.cache, measure.temperature]
    for workload in workloads:
        template = built_in(workload) if workload in BUILT_IN else None
        file = files.get(workload)
        said.append(file.sha256 if file else [workload, [template.messages, sorted(template.fill.items())] if template else None])
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]
