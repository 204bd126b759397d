"""How much text goes with a prompt, so that the server counts as many input tokens as were asked for.

Only the server knows its tokenizer and its chat template, so it is asked: a few prompts of one output token each, without that text and
with some. Two counts give tokens a character; a further one says whether they were right. Those prompts are never measured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import msgspec

from . import measure
from .config import Measure
from .errors import BadWorkload, MeasurementInvalid, NotServing
from .records import Level, Outcome

BLOCK = measure.WARM_UP_BLOCK + 1
PROBES = 4
"""Prompts a probe; their mean counts, for no two have the same length."""
ROUNDS = 6
CLOSE = 0.005
"""A mean within this share of what was asked for, or within half a token, is close enough."""
FAR = 0.05
"""The nearest that was found must be within this share, or two tokens."""
FIRST_CHARACTERS = 4
"""A token of English text, for the first try."""


def backgrounds(base_url: str, *, model: str, settings: Measure, options: measure.Options = measure.PLAIN) -> dict[str, int]:
    """Characters of text with every prompt of each workload, for ``settings.input_tokens`` by the server's count.

    Raises :class:`~leadline.errors.BadWorkload` when prompts are longer than that without any; NotServing, MeasurementInvalid.
    """

    def count(name: str, characters: int) -> float:
        return _count(base_url, name, characters, model=model, settings=settings, options=options)

    plain = {name: count(name, 0) for name in settings.workloads}
    for name, tokens in plain.items():
        if tokens > settings.input_tokens and not _close(tokens, settings.input_tokens):
            raise BadWorkload(
                workload=name,
                why=f"its prompts have {tokens:.0f} input tokens as they are, and {settings.input_tokens} were asked for",
                fix="ask for more --input-tokens (measure.input_tokens), or take a workload of shorter prompts",
            )
    return {name: _background(functools.partial(count, name), name, tokens, settings.input_tokens) for name, tokens in plain.items()}


def _background(count: Callable[[int], float], name: str, plain: float, wanted: int) -> int:
    """Characters with which ``count`` says ``wanted``, or comes nearest to it; without any it says ``plain``. Raises MeasurementInvalid."""
    tried = [(0, plain)]
    characters = round(FIRST_CHARACTERS * (wanted - plain))
    while not _close(tried[-1][1], wanted) and len(tried) <= ROUNDS:
        tried.append((characters, count(characters)))
        characters = next_try(tried, wanted)
    nearest, tokens = min(tried, key=lambda one: abs(one[1] - wanted))
    if abs(tokens - wanted) > max(2.0, FAR * wanted):
        raise MeasurementInvalid(
            level=name,
            why=f"{wanted} input tokens were asked for, and the server counts {tokens:.0f} at the nearest, with {nearest} more characters",
            fix="ask for another number of --input-tokens (measure.input_tokens), or leave it out",
        )
    return nearest


def _close(tokens: float, wanted: int) -> bool:
    return abs(tokens - wanted) <= max(0.5, CLOSE * wanted)


def next_try(tried: Sequence[tuple[int, float]], wanted: int) -> int:
    """Characters to try after pairs of (characters, tokens counted with them), of which the first is too few.

    On the line through the nearest on both sides, or as long as all are too few through the last two of these.

    >>> next_try([(0, 50.0), (400, 150.0)], 1050)
    4000
    """
    below = sorted(one for one in tried if one[1] < wanted)
    above = min((one for one in tried if one[1] >= wanted), default=None)
    (start, fewer), (end, more) = (below[-1], above) if above else (below[-2], below[-1])
    if more <= fewer:  # so little text does not show in a count
        return 2 * end
    return round(start + (wanted - fewer) * (end - start) / (more - fewer))


def _count(base_url: str, name: str, characters: int, *, model: str, settings: Measure, options: measure.Options) -> float:
    """Input tokens of a prompt with so much text, as the server counts them, on average."""
    # what stands in front of a cold prompt counts too; warm ones would be played twice for nothing
    probing = msgspec.structs.replace(settings, cache="production" if settings.cache == "warm" else settings.cache)
    asking = msgspec.structs.replace(options, keep="", salt=f"{options.salt}/{characters}")
    prompts = measure.prompts_of(name, settings, block=BLOCK, count=PROBES, max_tokens=1, background=characters)
    level = Level(workload=name, concurrency=PROBES)
    played = measure.play(base_url, level, prompts, block=BLOCK, model=model, settings=probing, options=asking)
    served = [request for request in played.requests if request.outcome in (Outcome.OK, Outcome.NO_TOKENS)]
    if len(served) < len(played.requests):
        failed = next(request for request in played.requests if request not in served)
        why = f"a prompt for {settings.input_tokens} input tokens ended with {failed.outcome.value}: {failed.detail}"
        raise NotServing(url=base_url, why=why, fix="ask for no more tokens than its context holds, or run `leadline doctor` on it")
    counts = [request.tokens_in for request in served if request.tokens_in is not None]
    if len(counts) < len(served):
        raise MeasurementInvalid(
            level=name,
            why="the server does not say how many tokens a prompt has (usage.prompt_tokens), so that none can be asked for",
            fix="leave --input-tokens (measure.input_tokens) out",
        )
    return sum(counts) / len(counts)
