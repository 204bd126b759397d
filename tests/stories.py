"""Journals to test with: event sequences a campaign could have written, made by hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from leadline import records as r

CANDIDATES = (
    r.Candidate(algorithm=r.OFF, depth=0),
    r.Candidate(algorithm="draft-simple", depth=8),
    r.Candidate(algorithm="ngram-simple", depth=16, settings=(("ngram_n", "4"),)),
)
LEVELS = (r.Level(workload="chat", concurrency=1), r.Level(workload="chat", concurrency=4))
CONDITIONS = r.Conditions(target="process:fake", engine="fake")


def began() -> r.Began:
    return r.Began(
        campaign_id="c",
        at_s=1.0,
        target="process:fake",
        command=r.Command(argv=("fake",)),
        found=CANDIDATES[0],
        levels=LEVELS,
        conditions=CONDITIONS,
    )


def block(level: r.Level, number: int, tok_s: float = 10.0, outcome: r.Outcome = r.Outcome.OK) -> r.BlockResult:
    request = r.RequestResult(
        prompt_id=f"{level.workload}-{number}", outcome=outcome, tokens_out=10, ttft_ms=10.0, tpot_ms=100.0, e2e_ms=1000.0
    )
    return r.BlockResult(level=level, block=number, duration_s=10 / tok_s, output_tok_s=tok_s, requests=(request,))


@st.composite
def trials(draw: st.DrawFn, number: int) -> list[r.AnyEvent]:
    """One trial, cut off anywhere."""
    candidate = draw(st.sampled_from(CANDIDATES))
    story: list[r.AnyEvent] = [
        r.Intended(trial=number, at_s=2.0, candidate=candidate, kind="explore", why="because"),
        r.Deployed(trial=number, at_s=3.0, launch=r.Launch(launch_id=str(number), pid=number, started_s=3.0, log="log"), argv=("fake",)),
    ]
    if draw(st.booleans()):
        story.append(r.Failed(trial=number, at_s=4.0, after_s=1.0, exit=r.Exit(signal=9), findings=()))
    else:
        story.append(r.Ready(trial=number, at_s=4.0, load_s=1.5, reported=r.Reported(engine="fake")))
        for index in range(draw(st.integers(0, 3))):
            outcome = draw(st.sampled_from((r.Outcome.OK, r.Outcome.OK, r.Outcome.RESET)))
            story.append(r.Measured(trial=number, at_s=5.0, result=block(draw(st.sampled_from(LEVELS)), index, outcome=outcome)))
        story.append(r.Observed(trial=number, at_s=6.0, acceptance=(), capacity=r.Capacity()))
    story.append(r.Restored(trial=number, at_s=7.0, down_s=5.0))
    if draw(st.integers(0, 4)) == 0:
        cut = draw(st.integers(1, len(story) - 1))
        return [*story[:cut], r.Abandoned(trial=number, at_s=8.0, retry=draw(st.booleans()), why="killed")]
    return story


@st.composite
def campaigns(draw: st.DrawFn) -> list[r.AnyEvent]:
    """A whole journal."""
    story: list[r.AnyEvent] = [began(), r.Inspected(at_s=1.5, frontier=()), r.Planned(at_s=1.6, launches=())]
    for number in range(1, draw(st.integers(0, 5)) + 1):
        story += draw(trials(number))
    return story
