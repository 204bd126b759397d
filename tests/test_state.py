"""State is a pure fold: split anywhere it gives the same knowledge, and it refuses what cannot have happened."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline import records as r
from leadline.state import Knowledge, fold
from stories import CANDIDATES, LEVELS, began, block, campaigns


@given(campaigns(), st.data())
@settings(deadline=None, max_examples=100)
def test_a_fold_can_be_cut_anywhere(story: list[r.AnyEvent], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(story)))
    assert fold(story[cut:], fold(story[:cut])) == fold(story)


@given(campaigns())
@settings(deadline=None, max_examples=100)
def test_nothing_measured_is_lost_and_nothing_failed_counts(story: list[r.AnyEvent]) -> None:
    known = fold(story)
    measured = [event for event in story if isinstance(event, r.Measured)]
    assert sum(len(trial.blocks) for trial in known.trials) == len(measured)
    usable = sum(len(known.blocks(c, level)) for c in CANDIDATES for level in LEVELS)
    assert usable == sum(1 for event in measured if event.result.failed == 0)
    assert known.events == len(story)
    for trial in known.trials:
        assert (trial.candidate in known.refused) >= (trial.failed is not None)
        assert not (trial.open and trial.ended)


def test_refuses_what_cannot_have_happened() -> None:
    with pytest.raises(ValueError, match="never intended"):
        fold([r.Ready(trial=1, at_s=1.0, load_s=1.0, reported=r.Reported(engine="x"))])
    with pytest.raises(ValueError, match="begins once"):
        fold([began(), began()])
    intended = r.Intended(trial=1, at_s=2.0, candidate=CANDIDATES[0], kind="baseline", why="")
    with pytest.raises(ValueError, match="twice"):
        fold([intended, intended])


def test_what_is_known_of_a_story() -> None:
    deep = CANDIDATES[1]
    acceptance = r.Acceptance(rounds=10, accepted=20)
    story: list[r.AnyEvent] = [
        began(),
        r.Inspected(at_s=1.0, frontier=(), reported=r.Reported(engine="fake")),
        r.Planned(at_s=1.0, launches=()),
        r.Decided(at_s=1.0, stop=None, next=None),
        r.Intended(trial=1, at_s=2.0, candidate=deep, kind="deep", why="deepest", boot_id="b"),
        r.Deployed(trial=1, at_s=2.0, launch=r.Launch(launch_id="l", pid=1, started_s=2.0, log="f"), argv=("x",)),
        r.Ready(trial=1, at_s=3.0, load_s=4.0, reported=r.Reported(engine="fake")),
        r.Measured(trial=1, at_s=4.0, result=block(LEVELS[0], 0)),
        r.Observed(trial=1, at_s=5.0, acceptance=((LEVELS[0], acceptance),), capacity=r.Capacity(max_running_requests=4)),
    ]
    known = fold(story)
    trial = known.trials[0]
    assert trial.open
    assert trial.served
    assert trial.acceptance(LEVELS[0]) == acceptance
    assert trial.acceptance(LEVELS[1]) is None
    assert trial.capacity.max_running_requests == 4
    assert known.load_s == 4.0
    assert known.candidates == (deep,)
    verdict = r.Verdict(sentence="s", change=False, overall=deep, found=deep, points=(), objective="peak")
    ended = fold(
        [
            r.Restored(trial=1, at_s=6.0, down_s=3.0),
            r.Concluded(at_s=7.0, verdict=verdict),
            r.Applied(at_s=8.0, candidate=deep, what="drop-in"),
        ],
        known,
    )
    assert not ended.trials[0].open
    assert ended.down_s == ended.elapsed_s == 3.0
    assert ended.launches == 1
    assert ended.verdict == verdict
    assert ended.applied is not None
    assert Knowledge().load_s is None
    assert Knowledge().verdict is None
    assert fold(story[:6]).trials[0].capacity == r.Capacity()
    assert fold(story[:6]).trials[0].acceptance(LEVELS[0]) is None
