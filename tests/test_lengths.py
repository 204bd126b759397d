"""Input tokens by the server's count: the text that goes with a prompt, and how it is found how much."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import loadmock
from leadline import bench, lengths, measure, workload
from leadline.campaign import RealHands
from leadline.config import Measure, Settings
from leadline.errors import BadWorkload, MeasurementInvalid, NotServing
from leadline.records import Level

SETTINGS = Measure(concurrency=(2,), max_tokens=4, prompts=8, max_blocks=1, idle_timeout_s=5, input_tokens=400)


# -- the text ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", workload.BUILT_IN)
@pytest.mark.parametrize("characters", [1, 100, 5000])
def test_every_prompt_gets_so_much_text_and_keeps_its_own(name: str, characters: int) -> None:
    plain = workload.blocks(name, seed=1, block=2, count=3, max_tokens=8)
    grown = workload.blocks(name, seed=1, block=2, count=3, max_tokens=8, background=characters)
    assert grown == workload.blocks(name, seed=1, block=2, count=3, max_tokens=8, background=characters)
    texts = set()
    for before, after in zip(plain, grown, strict=True):
        assert before.prompt_id == after.prompt_id
        (changed,) = ((old, new) for (_, old), (_, new) in zip(before.messages, after.messages, strict=True) if old != new)
        old, new = changed
        assert old in new
        added = new.replace(old, "").strip("\n")
        assert characters - 20 <= len(added) <= characters
        texts.add(added)
    if characters > 1:
        assert len(texts) == (1 if name == "edit" else 3), "shared where the workload shares its context"


# -- how much ----------------------------------------------------------------------------------------------------------


@given(st.floats(5, 300), st.floats(0.5, 9), st.integers(0, 30_000), st.floats(0, 200))
def test_it_is_found_on_any_tokenizer(plain: float, density: float, more: int, waste: float) -> None:
    """``density`` characters a token; the first ``waste`` characters cost nothing, for no tokenizer is quite linear."""
    wanted = math.ceil(plain) + more
    asked: list[int] = []

    def count(characters: int) -> float:
        asked.append(characters)
        return plain + max(0.0, characters - waste) / density

    found = lengths._background(count, "chat", plain, wanted)
    assert lengths._close(plain if found == 0 else count(found), wanted) or abs(count(found) - wanted) <= 1 / density
    assert len(asked) <= lengths.ROUNDS + 2


def test_a_server_that_counts_the_same_whatever_it_is_sent_is_no_server_to_ask() -> None:
    asked: list[int] = []
    with pytest.raises(MeasurementInvalid, match="400 input tokens were asked for, and the server counts 300 at the nearest"):
        lengths._background(lambda characters: asked.append(characters) or 300.0, "chat", 300.0, 400)  # type: ignore[func-returns-value]
    assert len(asked) == lengths.ROUNDS


# -- with a server -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", ["cold", "warm", "production"])
def test_a_bench_asks_with_so_many_tokens(mock: loadmock.Mock, tmp_path: Path, cache: str) -> None:
    mock.set()
    found = bench.run(mock.url, Measure(**{**_fields(SETTINGS), "cache": cache}), out=tmp_path / "out.json")
    counted = [request.tokens_in or 0 for done in found.levels for block in done.blocks for request in block.requests]
    assert statistics.fmean(counted) == pytest.approx(400, rel=0.03)
    assert max(counted) - min(counted) < 40
    assert dict(found.backgrounds)["chat"] > 500
    assert bench.load(tmp_path / "out.json") == found
    assert "in p50/p99 4" in bench.text(found) or "in p50/p99 3" in bench.text(found)


def test_results_of_other_lengths_are_never_compared() -> None:
    others = [measure.digest(Measure(input_tokens=tokens)) for tokens in (0, 400, 401)]
    assert len(set(others)) == 3


def test_prompts_that_are_longer_already_are_refused(mock: loadmock.Mock) -> None:
    mock.set()
    with pytest.raises(BadWorkload, match=r"edit: its prompts have \d+ input tokens as they are, and 100 were asked for"):
        bench.run(mock.url, Measure(**{**_fields(SETTINGS), "workloads": ("chat", "edit"), "input_tokens": 100}))


def test_the_prompts_of_a_file_are_sent_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"prompt": "What is a keel?"}\n' * 20)
    with pytest.raises(BadWorkload, match="sent as they are"):
        bench.run("http://127.0.0.1:9", Measure(**{**_fields(SETTINGS), "workloads": (str(file),)}))


def test_a_server_that_does_not_count_cannot_be_asked(mock: loadmock.Mock) -> None:
    mock.set(usage=2)
    with pytest.raises(MeasurementInvalid, match="does not say how many tokens"):
        bench.run(mock.url, SETTINGS)


def test_a_server_that_refuses_such_a_prompt_is_quoted(mock: loadmock.Mock) -> None:
    mock.set(fault="http500", fevery=1)
    with pytest.raises(NotServing, match=r"a prompt for 400 input tokens ended with http_error"):
        bench.run(mock.url, SETTINGS, model="mock")


def test_every_candidate_of_a_campaign_gets_the_same_prompts(mock: loadmock.Mock, tmp_path: Path) -> None:
    mock.set()
    level = Level(workload="chat", concurrency=2)
    sizes = []
    for _ in range(2):  # two leadlines, as after an interruption
        hands = RealHands(supervisor=None, engine=None, parsed=None, settings=Settings(measure=SETTINGS))  # type: ignore[arg-type]
        hands.warm_up(mock.url, level, "mock")
        sizes.append(dict(hands.backgrounds))
    assert sizes[0] == sizes[1]
    assert sizes[0]["chat"] > 500


def _fields(settings: Measure) -> dict[str, object]:
    return {name: getattr(settings, name) for name in settings.__struct_fields__}
