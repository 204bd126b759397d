"""Whether a candidate's greedy outputs are those of speculation off. Pure.

Speculation must not change what a service says.  With greedy decoding a verified draft gives the same tokens, except where two
tokens are nearly equally likely and a batch of another shape rounds differently: then the texts part at one point and
both go on sensibly.  That is shown, not condemned.  What fails a candidate is output that is no answer any more: empty, looping, broken
JSON, or characters that no tokenizer of text yields.  A small model does such things by itself: once two texts have parted, either may end in a
loop.  So where speculation off degenerates as well, on prompts that the candidate answers, only a clear excess fails the candidate.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping

from .records import BlockResult, Outcome, Record

SHOWN = 60
"""Characters of each continuation that are shown."""
LOOP_LEAST = 60
"""A repetition counts as a loop when it covers this many characters and ..."""
LOOP_TIMES = 4
"""... its unit stands there this often in a row, at the very end."""
EARLY_SHARE = 0.5
"""When more than this share of the texts part within their first characters, near ties cannot be the reason."""
EARLY_CHARS = 8
EARLY_LEAST = 4
CHANCE = 0.05
"""Where off degenerates too, a candidate fails only if so uneven a split had less than this chance (one-sided sign test)."""


class Difference(Record, frozen=True):
    """One prompt whose outputs are not equal."""

    prompt_id: str
    kind: str
    """``near_tie`` (both go on sensibly) or ``degenerate``."""
    at: int
    """Characters that both have in common."""
    common: str
    """The end of what they have in common."""
    off: str
    """How the output of speculation off goes on."""
    candidate: str
    """How the candidate's goes on."""
    why: str = ""


class Sameness(Record, frozen=True):
    """A sample of outputs compared."""

    compared: int
    identical: int
    differences: tuple[Difference, ...]
    failed: str = ""
    """Why the candidate fails (degenerate outputs), empty when it does not."""
    own: int = 0
    """Prompts at which speculation off degenerates and the candidate does not."""
    suspicious: str = ""
    """What near ties do not explain although every output is an answer; a sampling temperature would."""

    @property
    def sentence(self) -> str:
        """For the verdict."""
        if not self.compared:
            return "not compared: no prompt was answered by both"
        parts = [f"{self.identical} of {self.compared} outputs identical to speculation off"]
        near = sum(difference.kind == "near_tie" for difference in self.differences)
        if near:
            parts.append(f"{near} part where two tokens are nearly equal")
        broken = len(self.differences) - near
        if broken and not self.failed:
            parts.append(f"{broken} are degenerate where off is not, {self.own} the other way round: the model does so by itself")
        parts += [text for text in (self.failed, self.suspicious) if text]
        return "; ".join(parts)


def compare(off: Mapping[str, str], candidate: Mapping[str, str]) -> Sameness:
    """Compare outputs by prompt id; prompts that only one side answered are left out."""
    shared = [prompt for prompt in off if prompt in candidate]
    differences = [found for prompt in shared if (found := difference(prompt, off[prompt], candidate[prompt])) is not None]
    broken = [found for found in differences if found.kind == "degenerate"]
    early = [found for found in differences if found.at < EARLY_CHARS]
    own = sum(bool(degenerate(candidate[found.prompt_id], off[found.prompt_id])) for found in differences)
    failed = suspicious = ""
    if broken and (not own or _tail(len(broken), own) < CHANCE):
        failed = f"{len(broken)} of {len(shared)} outputs are degenerate ({broken[0].prompt_id}: {broken[0].why})"
    elif len(shared) >= EARLY_LEAST and len(early) > EARLY_SHARE * len(shared):
        suspicious = (
            f"{len(early)} of {len(shared)} outputs differ from their first words on: this is another model, template or temperature"
        )
    return Sameness(
        compared=len(shared),
        identical=len(shared) - len(differences),
        differences=tuple(differences),
        failed=failed,
        own=own,
        suspicious=suspicious,
    )


def _tail(broken: int, own: int) -> float:
    """Chance of ``broken`` or more out of ``broken + own`` when both sides are equally likely."""
    n = broken + own
    return float(sum(math.comb(n, k) for k in range(broken, n + 1)) / 2**n)


def of_blocks(off: Iterable[BlockResult], candidate: Iterable[BlockResult]) -> Sameness:
    """Compare the texts of blocks that both played."""
    return compare(_texts(off), _texts(candidate))


def _texts(blocks: Iterable[BlockResult]) -> dict[str, str]:
    """Text of every served request that has one, by level, block and prompt."""
    return {
        f"{block.level.label} block {block.block} {request.prompt_id}": request.text
        for block in blocks
        for request in block.requests
        if request.outcome is Outcome.OK and request.text_sha256 and (request.text or not request.tokens_out)
    }


def difference(prompt_id: str, off: str, candidate: str) -> Difference | None:
    """How two outputs of one prompt differ; ``None`` when they are equal."""
    if off == candidate:
        return None
    at = _common(off, candidate)
    why = degenerate(off, candidate)
    return Difference(
        prompt_id=prompt_id,
        kind="degenerate" if why else "near_tie",
        at=at,
        common=off[max(0, at - SHOWN) : at],
        off=off[at : at + SHOWN],
        candidate=candidate[at : at + SHOWN],
        why=why,
    )


def degenerate(off: str, candidate: str) -> str:
    """What makes ``candidate`` no answer although ``off`` is one; empty when nothing does.

    A small model may loop or break its JSON without any speculation: what ``off`` does as well is no fault of the candidate.
    """
    if not candidate.strip():
        return "it is empty" if off.strip() else ""
    strange = _strange(candidate)
    if strange > 0.02 and strange > 2 * _strange(off):
        return f"{strange:.0%} of its characters are no text"
    unit = loop(candidate)
    if unit and not loop(off):
        return f"it ends in a loop of {unit[:40]!r}"
    if _is_json(off) and not _is_json(candidate) and len(candidate) >= len(off):
        return "it is broken JSON"
    return ""


def loop(text: str) -> str:
    """The unit that the end of ``text`` repeats; empty when it does not loop."""
    text = text.rstrip()
    for size in range(1, len(text) // LOOP_TIMES + 1):
        unit = text[-size:]
        times = 1
        while text.endswith(unit * (times + 1)):
            times += 1
        if times >= LOOP_TIMES and times * size >= LOOP_LEAST:
            return unit
    return ""


def _strange(text: str) -> float:
    """Share of characters that no text has: replacement, private use, controls."""
    if not text:
        return 0.0
    bad = sum(c == "\N{REPLACEMENT CHARACTER}" or "\ue000" <= c <= "\uf8ff" or (c < " " and c not in "\n\t\r") for c in text)
    return bad / len(text)


def _is_json(text: str) -> bool:
    body = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    if not body.startswith(("{", "[")):
        return False
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def _common(a: str, b: str) -> int:
    return next((index for index, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
