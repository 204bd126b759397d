"""Outputs against speculation off: equal, parted at a near tie, or no answers any more."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline import sameness

PROSE = "The tide comes in twice a day because the earth turns below the bulge of water that the moon raises, and there are two of them."


def test_equal_outputs() -> None:
    said = sameness.compare({"a": PROSE, "b": "x"}, {"a": PROSE, "b": "x", "c": "only here"})
    assert (said.compared, said.identical, said.failed, said.differences) == (2, 2, "", ())
    assert said.sentence == "2 of 2 outputs identical to speculation off"


def test_a_near_tie_shows_both_continuations() -> None:
    other = PROSE.replace("and there are two of them.", "of which there are two.")
    said = sameness.compare({"a": PROSE}, {"a": other})
    first = said.differences[0]
    assert (first.kind, said.failed) == ("near_tie", "")
    assert PROSE[: first.at] == other[: first.at]
    assert first.off.startswith("and there are")
    assert first.candidate.startswith("of which")
    assert "1 part where two tokens are nearly equal" in said.sentence


@pytest.mark.parametrize(
    ("off", "candidate", "why"),
    [
        (PROSE, "", "empty"),
        (PROSE, " \n", "empty"),
        (PROSE, PROSE + " and so on" * 12, "loop of"),
        (PROSE, PROSE + "!" * 80, "loop of"),
        ('{"a": [1, 2], "b": "c"}', '{"a": [1, 2], "b": "c"}}}', "broken JSON"),
        (PROSE, PROSE[:40] + "\N{REPLACEMENT CHARACTER}" * 9, "no text"),
    ],
)
def test_degenerate_outputs_fail_the_candidate(off: str, candidate: str, why: str) -> None:
    said = sameness.compare({"a": off, "b": PROSE}, {"a": candidate, "b": PROSE})
    assert said.differences[0].kind == "degenerate"
    assert why in said.failed
    assert "1 of 2 outputs are degenerate" in said.sentence


@pytest.mark.parametrize(
    ("off", "candidate"),
    [
        ("so on and " * 20, "so on or " * 20),  # the model itself loops
        ('{"a": [1, 2', '{"a": [1, 3'),  # both cut by the token limit
        ("", ""),
        ("-" * 80, "-" * 90),
    ],
)
def test_what_off_does_as_well_is_no_fault(off: str, candidate: str) -> None:
    assert sameness.compare({"a": off}, {"a": candidate}).failed == ""


def looping(prompts: range) -> dict[str, str]:
    return {str(n): PROSE + " and so on" * 12 if n in prompts else PROSE + " That is all." for n in range(40)}


def test_a_model_that_loops_by_itself_is_no_fault_of_the_candidate() -> None:
    """As SmolLM2-135M on an H200: off alone looped on 11 to 15 of 320 prompts, n-gram drafts alone on 4 to 8 others."""
    said = sameness.compare(looping(range(15)), looping(range(12, 20)))
    assert (said.failed, said.own) == ("", 12)
    assert "5 are degenerate where off is not, 12 the other way round" in said.sentence


def test_a_candidate_that_loops_clearly_more_fails_although_off_loops_too() -> None:
    said = sameness.compare(looping(range(2)), looping(range(2, 14)))
    assert "12 of 40 outputs are degenerate" in said.failed
    assert sameness.compare(looping(range(2)), looping(range(2, 5))).failed == ""


def test_outputs_that_part_at_once_are_suspicious() -> None:
    said = sameness.compare({str(n): PROSE for n in range(6)}, {str(n): "Quite something else, " + PROSE for n in range(6)})
    assert said.failed == ""
    assert "6 of 6 outputs differ from their first words on" in said.suspicious


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=80), st.text(max_size=80))
def test_a_difference_is_where_it_says(off: str, candidate: str) -> None:
    found = sameness.difference("p", off, candidate)
    if found is None:
        assert off == candidate
        return
    assert off[: found.at] == candidate[: found.at]
    assert off[found.at : found.at + 1] != candidate[found.at : found.at + 1]


@settings(deadline=None, max_examples=60)
@given(st.text(alphabet="abc ", min_size=1, max_size=12), st.integers(1, 30))
def test_a_loop_is_found_whatever_stands_before_it(unit: str, times: int) -> None:
    text = "Once upon a time there was " + unit * times
    if len((unit * times).rstrip()) >= sameness.LOOP_LEAST + len(unit) and times > sameness.LOOP_TIMES + 1:
        assert sameness.loop(text)
