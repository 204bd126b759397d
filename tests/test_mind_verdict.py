"""Verdicts: objectives, ties, schedules, goodput, drift, and what is said not to be shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

import msgspec
import pytest

from leadline import objective, schedule, search, space
from leadline.compare import Board
from leadline.config import Measure, Tune
from leadline.decide import next_launch, plan
from leadline.engines import Axis
from leadline.errors import ConfigError
from leadline.recommend import recommend
from leadline.records import (
    Acceptance,
    BlockResult,
    Candidate,
    Capacity,
    FrontierRow,
    Launch,
    Level,
    Measured,
    Outcome,
    PlannedLaunch,
    Reported,
    Stop,
    TrafficSample,
    Verdict,
)
from leadline.state import Knowledge, Trial, fold
from replay import OFF, Noise, Player, Surface, campaign, counts, depth_curve, rename
from surfaces import eagle

LEVELS = tuple(Level(workload="chat", concurrency=c) for c in (1, 4, 16))
STOP = Stop(rule="resolved", why="enough")
QUIET = Noise(block=0.005, launch=0.002, liking=0.0, content=0.05)


def surface(
    rows: Mapping[Candidate, tuple[float, ...]], *, found: Candidate = OFF, levels: tuple[Level, ...] = LEVELS, engine: str = "fake"
) -> Surface:
    depths = tuple(sorted({c.depth for c in rows if not c.off and not c.settings}))
    return Surface(
        name="verdict",
        axes=(Axis(algorithm="EAGLE", depths=depths),),
        levels=levels,
        found=found,
        tok_s={(c, level): x for c, row in rows.items() for level, x in zip(levels, row, strict=True)},
        engine=engine,
    )


def played(at: Surface, *launches: tuple[Candidate, int], noise: Noise = QUIET, seed: int = 0) -> Knowledge:
    player = Player(at, noise, seed)
    for candidate, blocks in launches:
        player.play(PlannedLaunch(candidate=candidate, why="", levels=at.levels, blocks=blocks, seconds=0.0))
    return player.knowledge


def verdict(at: Surface, known: Knowledge, tune: Tune | None = None, stop: Stop = STOP) -> Verdict:
    return recommend(known, at.axes, tune or Tune(), at.levels, at.found, lambda c: ("serve", c.label), stop)


# -- objectives --------------------------------------------------------------------------------------------------------


def test_weights_of_every_objective() -> None:
    both = (*LEVELS, *(Level(workload="copy", concurrency=c) for c in (1, 4)))
    single = dict(objective.weights(Tune(objective="single"), both))
    assert {level.label for level in single} == {"chat c=1", "copy c=1"}
    assert {level.label for level, _ in objective.weights(Tune(objective="peak"), both)} == {"chat c=16", "copy c=4"}
    assert sum(w for _, w in objective.weights(Tune(), both)) == pytest.approx(1.0)
    mix = dict(objective.weights(Tune(objective="1:0.7,4:0.2,16:0.1"), both))
    assert mix[LEVELS[0]] == pytest.approx(0.35)
    assert mix[LEVELS[2]] == pytest.approx(0.1)
    open_loop = (Level(workload="chat", concurrency=0, rate_rps=2.0), Level(workload="chat", concurrency=0, rate_rps=8.0))
    assert [level.rate_rps for level, _ in objective.weights(Tune(objective="peak"), open_loop)] == [8.0]


@pytest.mark.parametrize("text", ["fast", "1:x", "1:0", "1:0.5,1:0.5", "32:1.0", "goodput"])
def test_objectives_that_cannot_be_read_say_what_to_write(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        objective.weights(Tune(objective=text), LEVELS)
    assert "objective" in error.value.message
    assert error.value.next


def test_a_mix_is_read_from_the_requests_in_hand() -> None:
    at = [(0.0, 0), (10.0, 1), (40.0, 5), (50.0, 0), (90.0, 20), (100.0, 1)]
    samples = [TrafficSample(at_s=s, running=min(n, 4), waiting=max(0, n - 4)) for s, n in at]
    seen = objective.watched(samples, (1, 4, 16), source="planted", at_s=100.0)
    assert dict(seen.mix) == pytest.approx({1: 30 / 50, 4: 10 / 50, 16: 10 / 50})
    assert seen.seconds == ((0, 50.0), (1, 30.0), (5, 10.0), (20, 10.0))
    assert (seen.samples, seen.span_s) == (6, 100.0)
    assert objective.traffic(seen) == (
        "6 samples over 1 min 40 s of planted: busy 50 % of it, then 5.6 requests in hand on average, at most 20; "
        "as a mix 1:0.600,4:0.200,16:0.200"
    )
    assert objective.beyond(seen, (1, 4, 16)) == ""
    assert "20 % of the busy time had more than 6 in hand" in objective.beyond(seen, (1, 4))
    assert objective.parse_mix("4:1, 1:3") == ((1, 0.75), (4, 0.25))


def test_between_samples_far_apart_nothing_is_known() -> None:
    samples = [TrafficSample(at_s=s, running=n, waiting=0) for s, n in [(0.0, 1), (10.0, 4), (1000.0, 1), (1010.0, 0)]]
    seen = objective.watched(samples, (1, 4), source="planted", at_s=1010.0, longest_s=20.0)
    assert seen.seconds == ((1, 20.0), (4, 20.0))
    idle = objective.watched(samples[:1], (1, 4), source="planted", at_s=0.0)
    assert idle.mix == ()
    assert objective.traffic(idle).endswith(": idle")
    assert objective.beyond(idle, (1, 4)) == ""


def test_the_objective_observed_is_the_mix_that_was_seen() -> None:
    at = surface({OFF: (100, 300, 800), eagle(2): (120, 330, 960), eagle(6): (180, 340, 640)})
    known = played(at, (OFF, 4), (eagle(2), 4), (eagle(6), 4), (OFF, 4))
    samples = [TrafficSample(at_s=float(s), running=n, waiting=0) for s, n in [(0, 16), (80, 40), (90, 1), (100, 0)]]
    seen = objective.watched(samples, [level.concurrency for level in LEVELS], source="planted", at_s=100.0)
    known = rename(known, watched=seen)
    tune = objective.resolved(Tune(objective="observed"), seen)
    assert tune.objective == "1:0.100,16:0.900"
    said = verdict(at, known, tune)
    assert said.overall == eagle(2)
    assert said.objective == "the traffic observed (1:0.100,16:0.900)"
    assert "One configuration for the traffic observed (1:0.100,16:0.900)" in said.sentence
    assert said.readings[0].startswith("the traffic: 4 samples over 1 min 40 s of planted")
    assert any(text.startswith("the traffic beyond 16 requests at once: 10 %") for text in said.not_shown)
    other = verdict(at, known, Tune(objective="peak"))
    assert other.objective == "peak"
    assert not any("traffic" in text for text in (*other.readings, *other.not_shown))
    assert objective.resolved(Tune(objective="observed"), None).objective == "observed"
    with pytest.raises(ConfigError, match="no traffic was observed"):
        objective.weights(Tune(objective="observed"), LEVELS)


def test_the_overall_point_follows_the_traffic() -> None:
    at = surface({OFF: (100, 300, 800), eagle(2): (120, 330, 960), eagle(6): (180, 340, 640)})
    known = played(at, (OFF, 4), (eagle(2), 4), (eagle(6), 4), (OFF, 4))
    assert verdict(at, known, Tune(objective="single")).overall == eagle(6)
    assert verdict(at, known, Tune(objective="peak")).overall == eagle(2)
    assert verdict(at, known, Tune(objective="1:0.9,16:0.1")).overall == eagle(6)
    assert verdict(at, known, Tune(objective="1:0.1,16:0.9")).overall == eagle(2)
    said = verdict(at, known)
    assert said.command == ("serve", said.overall.label)
    assert {point.level.concurrency: point.candidate for point in said.points} == {1: eagle(6), 4: eagle(6), 16: eagle(2)}
    assert "keep" not in said.sentence.split(". ")[0]


def limited(ttft_ms: Callable[[Candidate, int], float], known: Knowledge) -> Knowledge:
    """The same knowledge with other TTFTs, by (candidate, prompt)."""
    replace = msgspec.structs.replace

    def block(candidate: Candidate, result: BlockResult) -> BlockResult:
        four = tuple(replace(result.requests[0], prompt_id=f"{result.block}-{i}", ttft_ms=ttft_ms(candidate, i)) for i in range(4))
        return replace(result, requests=four)

    return replace(known, trials=tuple(replace(t, blocks=tuple(block(t.candidate, b) for b in t.blocks)) for t in known.trials))


def test_goodput_counts_only_what_meets_the_limits() -> None:
    at = surface({OFF: (100, 300, 800), eagle(6): (180, 500, 1200)})
    known = played(at, (OFF, 4), (eagle(6), 4), (OFF, 4))
    # the faster one answers three of four requests too late
    slow = limited(lambda candidate, i: 900.0 if candidate != OFF and i else 100.0, known)
    tune = Tune(objective="goodput", ttft_ms=500.0)
    said = verdict(at, slow, tune)
    assert said.overall == OFF
    assert not said.change
    assert verdict(at, slow, Tune(objective="balanced")).overall == eagle(6)
    assert verdict(at, limited(lambda candidate, i: 900.0 if candidate == OFF else 100.0, known), tune).overall == eagle(6)
    assert verdict(at, slow, Tune(objective="goodput", tpot_ms=0.001)).overall == eagle(6)  # nobody meets it: throughput decides


# -- ties and nothing --------------------------------------------------------------------------------------------------


def test_the_smaller_depth_of_a_tie_wins_and_the_tie_is_reported() -> None:
    at = surface({OFF: (100, 300, 800), eagle(4): (159.5, 478, 1275), eagle(8): (160, 480, 1280)})
    said = verdict(at, played(at, (OFF, 4), (eagle(4), 4), (eagle(8), 4), noise=Noise(block=0.0, launch=0.0, liking=0.0)))
    for point in said.points:
        assert point.candidate == eagle(4)
        assert point.tied == (eagle(8),)
        assert "smaller depth" in point.why
        assert point.gain_vs_off == point.gain_vs_found
    assert said.overall == eagle(4)


def test_a_gain_below_what_was_asked_for_is_no_reason_to_change() -> None:
    at = surface({OFF: (100, 300, 800), eagle(4): (102, 306, 816)})
    known = played(at, *[(OFF, 8), (eagle(4), 8)] * 6, noise=Noise(block=0.001, launch=0.0005, liking=0.0))
    said = verdict(at, known)
    assert not said.change
    assert said.sentence.startswith("Change nothing")
    assert all("less than the 3%" in point.why or "no difference" in point.why for point in said.points)
    assert verdict(at, known, Tune(min_gain=0.01)).change


def test_the_sentence_names_the_gain_as_found_and_over_off() -> None:
    three, eight = eagle(3), eagle(8)
    played_at = ((three, 4), (OFF, 4), (eight, 4))
    quiet = Noise(block=0.0, launch=0.0, liking=0.0)
    at = surface({OFF: (100, 300, 800), three: (120, 360, 960), eight: (150, 450, 1200)}, found=three)
    assert re.search(r"\(1\.25x as found, [\d.]+-[\d.]+; 1\.50x off\)", verdict(at, played(at, *played_at, noise=quiet)).sentence)
    from_off = surface({OFF: (100, 300, 800), three: (120, 360, 960), eight: (150, 450, 1200)})
    said = verdict(from_off, played(from_off, *played_at, noise=quiet)).sentence
    assert re.search(r"\(1\.50x as found, [\d.]+-[\d.]+\)", said)


def test_speculation_that_is_not_better_than_off_is_switched_off() -> None:
    three, four = eagle(3), eagle(4)
    at = surface({OFF: (130, 390, 1040), three: (100, 300, 800), four: (131, 393, 1048)}, found=three)
    known = played(at, (three, 4), (OFF, 4), (four, 4), noise=Noise(block=0.0, launch=0.0, liking=0.0))
    said = verdict(at, known, Tune(tie=0.001))
    assert all(point.candidate == OFF for point in said.points)
    assert "speculation off gains" in said.points[0].why


def test_nothing_measured_and_half_measured() -> None:
    at = surface({OFF: (100, 300, 800), eagle(4): (160, 480, 1280)})
    empty = verdict(at, Player(at, QUIET, 0).knowledge, stop=Stop(rule="exhausted", why="nothing served"))
    assert empty.sentence == "Change nothing: nothing could be measured."
    assert empty.points == ()
    assert sum("nothing was measured" in text for text in empty.not_shown) == 3
    without = verdict(at, played(at, (eagle(4), 4)))
    assert all(not point.resolved and "no gain over it is known" in point.why for point in without.points)
    assert not without.change
    lone = surface({OFF: (100, 300, 800), eagle(4): (160, 480, 1280)})
    player = Player(lone, QUIET, 0)
    player.play(PlannedLaunch(candidate=OFF, why="", levels=LEVELS, blocks=2, seconds=0.0))
    player.play(PlannedLaunch(candidate=eagle(4), why="", levels=LEVELS[:1], blocks=2, seconds=0.0))
    said = verdict(lone, player.knowledge)
    assert any("not measured at all of them" in text for text in said.not_shown)
    assert said.overall == OFF


def test_a_service_that_does_not_start_as_found_is_not_kept() -> None:
    three = eagle(3)
    at = rename(surface({OFF: (100, 300, 800), three: (1, 1, 1), eagle(2): (140, 420, 1100)}, found=three), crashes=frozenset({three}))
    player, stop = campaign(at, noise=QUIET)
    said = verdict(at, player.knowledge, stop=stop)
    assert said.change
    assert said.overall == eagle(2)
    assert "did not serve" in said.sentence
    assert any("failed and not tried again: EAGLE 3" in text for text in said.not_shown)


def test_what_stays_open_is_said() -> None:
    eight, six = eagle(8), eagle(6)
    at = surface({OFF: (100, 300, 800), eagle(2): (140, 400, 1000), eagle(4): (160, 480, 1280), six: (1, 1, 1), eight: (1, 1, 1)})
    at = rename(at, frontier=(FrontierRow(candidate=eight, starts=False, reason="pool too small"),), crashes=frozenset({six}))
    known = played(at, (OFF, 4), (six, 4), (eagle(2), 4))
    said = verdict(at, known, stop=Stop(rule="budget", why="3 launches were allowed"))
    text = "\n".join(said.not_shown)
    assert "EAGLE 8 (pool too small)" in text
    assert "failed and not tried again: EAGLE 6" in text
    assert "predicted only, never launched: EAGLE 4" in text
    assert "the budget ended the search" in text
    assert any(not point.resolved and "EAGLE 4 is predicted" in point.why for point in said.points)


# -- honesty -----------------------------------------------------------------------------------------------------------


def test_drift_of_the_host_is_a_warning() -> None:
    at = surface({OFF: (100, 300, 800), eagle(4): (160, 480, 1280)})
    known = played(at, (OFF, 4), (eagle(4), 4), (OFF, 4))
    assert verdict(at, known).warnings == ()
    last = known.trials[-1]
    slower = tuple(
        msgspec.structs.replace(
            b,
            output_tok_s=0.8 * b.output_tok_s,
            requests=tuple(msgspec.structs.replace(r, e2e_ms=(r.e2e_ms or 0) / 0.8) for r in b.requests),
        )
        for b in last.blocks
    )
    drifted = msgspec.structs.replace(known, trials=(*known.trials[:-1], msgspec.structs.replace(last, blocks=slower)))
    assert "the host drifted" in verdict(at, drifted).warnings[0]
    once = verdict(at, played(at, (OFF, 4), (eagle(4), 4)))
    assert any("one launch only" in text for text in once.not_shown)
    assert once.noise_floor is None
    assert verdict(at, known).noise_floor is not None


def spoken(trial: Trial, text: str) -> Trial:
    """The trial with ``text`` for every answer."""

    def say(block: BlockResult) -> BlockResult:
        return msgspec.structs.replace(
            block, requests=tuple(msgspec.structs.replace(r, text=text, text_sha256=text[:4]) for r in block.requests)
        )

    return msgspec.structs.replace(trial, blocks=tuple(say(block) for block in trial.blocks))


def test_texts_that_differ_from_the_first_words_on_are_a_warning() -> None:
    at = surface({OFF: (100, 300, 800), eagle(4): (160, 480, 1280)})
    known = played(at, (OFF, 4), (eagle(4), 4))
    texts = {OFF: "An answer that a model gave.", eagle(4): "Quite something else."}
    other = msgspec.structs.replace(known, trials=tuple(spoken(t, texts[t.candidate]) for t in known.trials))
    assert any("first words" in text for text in verdict(at, other).warnings)


def test_simulated_acceptance_and_engine_defects_are_warnings() -> None:
    at = surface({OFF: (100, 300, 800), eagle(4): (160, 480, 1280)})
    lengths = depth_curve([0.8] * 4)
    fake = msgspec.structs.replace(counts(lengths, 4), simulated=True)
    known = played(rename(at, acceptance={(eagle(4), "chat"): fake}), (OFF, 4), (eagle(4), 4))
    trial = known.trials[-1]
    assert trial.observed is not None
    # what such an engine writes is nobody's answer: that it differs from that of speculation off is no finding
    texts = {OFF: "An answer that a model gave.", eagle(4): "t t t t t t t t"}
    known = msgspec.structs.replace(known, trials=tuple(spoken(t, texts[t.candidate]) for t in known.trials))
    said = verdict(at, known)
    assert any("declared to the engine, not measured" in text for text in said.warnings)
    assert not any("first words" in text for text in said.warnings)
    seen = (
        (LEVELS[0], Acceptance(rounds=2000, drafted=2000, accepted=1300)),
        (LEVELS[2], Acceptance(rounds=4000, drafted=4000, accepted=240)),
    )
    observed = msgspec.structs.replace(trial.observed, acceptance=seen)
    broken = msgspec.structs.replace(known, trials=(*known.trials[:-1], msgspec.structs.replace(trial, observed=observed)))
    assert any("suspect the engine" in text for text in verdict(at, broken).warnings)


def test_answers_are_compared_with_those_without_speculation() -> None:
    at = surface({OFF: (100, 300, 800), eagle(4): (160, 480, 1280)})
    known = played(at, (OFF, 2), (eagle(4), 2))

    def signed(block: BlockResult, last: str) -> BlockResult:
        digests = [last if i == len(block.requests) - 1 and block.block == 2 else "same" for i in range(len(block.requests))]
        requests = tuple(msgspec.structs.replace(r, text_sha256=d) for r, d in zip(block.requests, digests, strict=True))
        return msgspec.structs.replace(block, requests=requests)

    trials = tuple(
        msgspec.structs.replace(t, blocks=tuple(signed(b, "same" if t.candidate == OFF else "other") for b in t.blocks))
        for t in known.trials
    )
    said = verdict(at, msgspec.structs.replace(known, trials=trials))
    assert said.same_output == "EAGLE 4: 5 of 8 answers identical to speculation off"


def test_failed_and_cut_blocks_are_no_measurement() -> None:
    at = surface({OFF: (100, 300, 800), eagle(4): (160, 480, 1280)})
    known = played(at, (OFF, 2), (eagle(4), 2))
    trial = known.trials[-1]
    failed = tuple(
        msgspec.structs.replace(b, requests=tuple(msgspec.structs.replace(r, outcome=Outcome.RESET) for r in b.requests))
        for b in trial.blocks
    )
    broken = msgspec.structs.replace(known, trials=(known.trials[0], msgspec.structs.replace(trial, blocks=failed)))
    assert Board(broken, LEVELS, OFF).measured(LEVELS[0]) == (OFF,)
    assert not verdict(at, broken).change


def test_on_a_busy_host_the_servers_cpu_time_is_read_as_well() -> None:
    at = surface({OFF: (100, 300, 800), eagle(4): (160, 480, 640)})
    known = played(at, (OFF, 3), (eagle(4), 3), (OFF, 3), noise=Noise(block=0.3, launch=0.3))
    cost = {OFF: 0.010, eagle(4): 0.007}

    def timed(candidate: Candidate, block: BlockResult) -> BlockResult:
        tokens = sum(r.tokens_out for r in block.requests)
        slow = 2.0 if candidate != OFF and block.level.concurrency == 16 else 1.0
        seconds = tokens * cost[candidate] * slow * (1 + 0.01 * block.block)
        return msgspec.structs.replace(block, server_cpu_s=seconds, duration_s=1.2 * seconds)

    trials = tuple(msgspec.structs.replace(t, blocks=tuple(timed(t.candidate, b) for b in t.blocks)) for t in known.trials)
    said = verdict(at, msgspec.structs.replace(known, trials=trials))
    assert "the host is busy" in said.readings[0]
    assert "EAGLE 4, 1.43x" in said.readings[1]
    assert "nothing beats off" in said.readings[3]
    assert verdict(at, known).readings == ()


H200 = "32 x Xeon; NVIDIA H200, 143771 MiB, 580.159.04; NVIDIA H200, 143771 MiB, 580.159.04"


def on(known: Knowledge, hardware: str, engine: str = "vllm") -> Knowledge:
    """The same campaign on that hardware."""
    began = known.began
    assert began is not None
    return rename(known, began=rename(began, conditions=rename(began.conditions, hardware=hardware, engine=engine)))


def loading(known: Knowledge, weights: Mapping[Candidate, int], **facts: str) -> Knowledge:
    """The same campaign with what each launch loaded."""

    def told(trial: Trial) -> Trial:
        assert trial.reported is not None
        own = {"weight_bytes": str(weights[trial.candidate])} if trial.candidate in weights else {}
        return rename(trial, reported=rename(trial.reported, facts=tuple(sorted({**facts, **own}.items()))))

    return rename(known, trials=tuple(told(trial) for trial in known.trials))


def dense() -> tuple[Surface, Knowledge]:
    at = rename(
        surface({OFF: (100, 300, 800), eagle(4): (160, 480, 1280)}, engine="vllm"),
        acceptance={(eagle(4), "chat"): counts(depth_curve([0.8] * 4), 4)},
    )
    return at, played(at, (OFF, 4), (eagle(4), 4))


def test_the_roofline_is_read_where_host_and_engine_tell_their_bytes() -> None:
    at, known = dense()
    known = loading(on(known, H200), {OFF: 16 * 10**9, eagle(4): 17 * 10**9}, kv_bytes_per_token="100000", num_experts="0")
    said = verdict(at, known)
    assert len(said.readings) == 3
    # 16 GB of weights, four passes of a draft of 1 GB: 4.2 ms at 4,800 GB/s; a round of 3.36 tokens takes 21 ms
    assert said.readings[0].startswith("chat c=1: a round takes ")
    assert float(said.readings[0].split()[5]) == pytest.approx(21 / 4.2, rel=0.1), said.readings[0]
    assert not any("memory" in text for text in said.not_shown)
    stated = verdict(at, on(loading(known, {OFF: 16 * 10**9}, num_experts="0"), "64 x Xeon"), Tune(memory_gb_s=800))
    assert stated.readings[0].startswith("chat c=1: a round takes 1.0")


@pytest.mark.parametrize(
    ("hardware", "engine", "weights", "facts", "why"),
    [
        ("64 x Xeon", "vllm", {OFF: 1}, {}, "bandwidth of 64 x Xeon is not known: state it as memory_gb_s"),
        ("x; NVIDIA Unheard 9000, 1 MiB, 1", "vllm", {OFF: 1}, {}, "Unheard 9000 is not in leadline's table"),
        ("x; NVIDIA L4, 1 MiB, 1; NVIDIA T4, 1 MiB, 1", "vllm", {OFF: 1}, {}, "differ (L4, T4)"),
        ("x; NVIDIA L4, 1 MiB, 1", "llamacpp", {OFF: 1}, {}, "may keep a part of the model"),
        (H200, "vllm", {}, {}, "size of the weights is not known"),
        (H200, "vllm", {OFF: 1}, {}, "whether the model is a mixture of experts is not known"),
        (H200, "vllm", {OFF: 1}, {"num_experts": "8", "num_experts_per_tok": "2"}, "how many bytes the model's experts have"),
        (H200, "vllm", {OFF: 1}, {"num_experts": "0", "pp_size": "2"}, "take turns"),
    ],
)
def test_what_the_roofline_cannot_read_is_said_and_why(
    hardware: str, engine: str, weights: dict[Candidate, int], facts: dict[str, str], why: str
) -> None:
    at, known = dense()
    known = on(loading(known, weights, **facts), hardware)
    known = rename(known, reported=rename(known.reported or Reported(engine=engine), engine=engine))
    said = verdict(at, known)
    assert said.readings == ()
    assert [text for text in said.not_shown if text.startswith("how far a round is from the memory's limit: ") and why in text]


def test_without_a_host_nothing_is_said_of_its_memory() -> None:
    at, known = dense()
    assert not any("memory" in text for text in (*verdict(at, known).readings, *verdict(at, known).not_shown))


# -- schedules ---------------------------------------------------------------------------------------------------------


def test_ranges_are_cut_between_concurrencies_and_merged() -> None:
    mix = schedule.Mix(algorithm="EAGLE", settings=(), depths=((1, 6), (4, 6), (16, 2), (64, 0)))
    assert mix.ranges == ((1, 8, 6), (9, 32, 2), (33, schedule.LAST, 0))
    assert json.loads(mix.text("vllm")) == [[1, 8, 6], [9, 32, 2], [33, 1024, 0]]
    assert json.loads(mix.text("sglang")) == {"1": {"candidate_steps": [6]}, "9": {"candidate_steps": [2]}, "33": {"candidate_steps": [0]}}
    assert mix.text("llamacpp") == ""
    assert mix.candidate("llamacpp") == (None, "")
    for engine in ("vllm", "sglang"):
        candidate, why = mix.candidate(engine)
        assert candidate is not None
        assert (candidate.depth, why) == (6, "")
        assert schedule.scheduled(candidate) == mix.text(engine)
    tree = schedule.Mix(algorithm="EAGLE", settings=(("num_draft_tokens", "8"), ("topk", "4")), depths=((1, 6), (4, 2)))
    assert tree.text("sglang") == ""
    assert schedule.Mix(algorithm="STANDALONE", settings=(), depths=((1, 6), (4, 2))).candidate("sglang") == (None, "")


@pytest.mark.parametrize(
    ("version", "why"), [("0.5.12.post1", "one list of steps"), ("0.5.13.post1", "cannot switch drafting off"), ("0.5.14", ""), (None, "")]
)
def test_sglangs_table_is_made_where_the_release_has_one(version: str | None, why: str) -> None:
    mix = schedule.Mix(algorithm="NEXTN", settings=(("max_running_requests", "20"),), depths=((1, 6), (16, 2), (64, 0)))
    candidate, said = mix.candidate("sglang", version)
    assert (candidate is None) == bool(why)
    assert why in said
    if candidate is not None:
        assert dict(candidate.settings)["max_running_requests"] == "20"
        assert dict(candidate.settings)["speculative_adaptive"] == "true"


ROWS = {OFF: (100.0, 300.0, 800.0), eagle(2): (130.0, 390.0, 1000.0), eagle(6): (190.0, 420.0, 700.0)}


def scheduled_surface(gain: float, engine: str = "vllm") -> Surface:
    at = surface(ROWS, engine=engine)
    candidate, _ = schedule.Mix(algorithm="EAGLE", settings=(), depths=((1, 6), (4, 6), (16, 2))).candidate(engine)
    assert candidate is not None
    cells = {(candidate, level): x * gain for level, x in zip(LEVELS, (190.0, 420.0, 1000.0), strict=True)}
    return rename(at, tok_s={**at.tok_s, **cells}, load_s=60.0)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("gain", [1.0, 0.6])
def test_a_schedule_is_measured_before_it_is_recommended(gain: float, engine: str) -> None:
    at = scheduled_surface(gain, engine)
    player, stop = campaign(at, noise=QUIET)
    launched = [trial.candidate for trial in player.knowledge.trials if schedule.scheduled(trial.candidate)]
    assert len(launched) == 1
    assert "own schedule" in next(t.why for t in player.knowledge.trials if t.candidate == launched[0])
    said = verdict(at, player.knowledge, stop=stop)
    if gain == 1.0:
        assert said.schedule == schedule.scheduled(launched[0])
        assert said.overall == launched[0]
    else:
        assert said.schedule == ""
        assert any("not shown to be better" in text for text in said.readings)


def test_a_schedule_that_cannot_be_run_is_named_with_the_reason_and_not_claimed() -> None:
    at = scheduled_surface(1.0, engine="sglang")
    known = played(at, (OFF, 4), (eagle(2), 4), (eagle(6), 4), (OFF, 4))
    old = rename(known, reported=Reported(engine="sglang", version="0.5.12.post1"))
    said = verdict(at, old)
    assert said.schedule == ""
    assert any('"candidate_steps": [6]' in text and "one list of steps for all batch sizes" in text for text in said.not_shown)
    assert any('"candidate_steps": [6]' in text and text.endswith("but it was not measured") for text in verdict(at, known).not_shown)
    for version, launched in (("0.5.12.post1", False), ("0.5.17", True)):
        mix = schedule.mix(Board(known, LEVELS, OFF), {LEVELS[0]: eagle(6), LEVELS[1]: eagle(6), LEVELS[2]: eagle(2)})
        assert mix is not None
        assert (mix.candidate("sglang", version)[0] is not None) == launched


def test_a_schedule_that_did_not_serve_is_said() -> None:
    at = scheduled_surface(1.0, engine="sglang")
    candidate = next(c for c in at.candidates() if schedule.scheduled(c))
    player, stop = campaign(rename(at, crashes=frozenset({candidate})), noise=QUIET)
    said = verdict(at, player.knowledge, stop=stop)
    assert candidate in player.knowledge.refused
    assert said.schedule == ""
    assert any("if it cost nothing, but it did not serve" in text for text in said.not_shown)


def test_winners_that_cannot_be_mixed_make_no_schedule() -> None:
    gram = Candidate(algorithm="NGRAM", depth=8)
    board = Board(played(surface(ROWS), (OFF, 2)), LEVELS, OFF)
    one, four = LEVELS[0], LEVELS[1]
    copy = Level(workload="copy", concurrency=1)
    assert schedule.mix(board, {one: eagle(2), four: gram}) is None
    assert schedule.mix(board, {one: OFF, four: OFF}) is None
    assert schedule.mix(board, {one: eagle(2), four: eagle(2)}) is None
    assert schedule.mix(board, {one: eagle(2), copy: eagle(6)}) is None
    mixed = schedule.mix(board, {one: eagle(2), four: OFF})
    assert mixed is not None
    assert mixed.depths == ((1, 2), (4, 0))


# -- the space ---------------------------------------------------------------------------------------------------------


def test_labels_are_read_as_candidates() -> None:
    axes = (Axis(algorithm="ngram-simple", depths=(8,), settings=(("ngram_n", "4"),)),)
    assert space.parse("off") == OFF
    assert space.parse("EAGLE 10 max_running_requests=20") == eagle(10, max_running_requests="20")
    assert space.parse("ngram-simple 12", axes) == Candidate(algorithm="ngram-simple", depth=12, settings=(("ngram_n", "4"),))
    with pytest.raises(ValueError, match="write 'off'"):
        space.parse("deeper")


def test_a_wish_that_names_no_candidate_is_refused_before_anything_is_touched() -> None:
    at = surface({OFF: (100, 300, 800), eagle(4): (160, 480, 1280)})
    with pytest.raises(ConfigError) as error:
        plan(Player(at, QUIET, 0).knowledge, at.axes, Tune(ask=("deeper",)), Measure(), at.levels, OFF)
    assert error.value.exit_code == 10
    assert "'deeper' is no candidate" in error.value.message
    assert "EAGLE 10" in error.value.next


def test_the_middle_depth() -> None:
    assert space.middle((1, 2, 3, 5, 10), 10) == 3
    assert space.middle((1, 2, 3, 4, 6, 8, 12, 16), 16) == 4
    assert space.middle((1,), 1) is None


def test_the_space_follows_what_was_asked_and_what_failed() -> None:
    at = surface({OFF: (1, 1, 1), **{eagle(d): (1, 1, 1) for d in (1, 2, 4, 8)}})
    known = Player(at, QUIET, 0).knowledge
    grams = Axis(algorithm="NGRAM", depths=(8,), modelled=False)
    axes = (*at.axes, grams)
    assert [o.candidate.depth for o in space.options(known, axes, Tune(depths=(2, 8)))] == [2, 8, 8]
    assert [o.candidate.algorithm for o in space.options(known, axes, Tune(algorithms=("NGRAM",)))] == ["NGRAM"]
    dead = frozenset(eagle(d) for d in (2, 4, 8))
    failed = played(rename(at, crashes=dead), (eagle(8), 1), (eagle(4), 1))
    assert [o.candidate.depth for o in space.options(failed, at.axes, Tune())] == [1, 2]
    thrice = played(rename(at, crashes=dead), (eagle(8), 1), (eagle(4), 1), (eagle(2), 1))
    assert space.options(thrice, at.axes, Tune()) == ()
    impossible = eagle(8, max_running_requests="20")
    rows = (
        FrontierRow(candidate=eagle(8), starts=False, feasible_as=impossible),
        FrontierRow(candidate=impossible, starts=False),
        FrontierRow(candidate=eagle(4), starts=None, reason="no formula for this version"),
    )
    left = space.options(msgspec.structs.replace(known, frontier=rows), at.axes, Tune())
    assert [o.candidate.depth for o in left] == [1, 2, 4]
    assert left[-1].risky
    assert space.running(known, impossible) == 20


def test_a_depth_that_would_run_too_few_requests_is_replaced_by_the_one_that_runs_more() -> None:
    at = surface({OFF: (1, 1, 1), **{eagle(d): (1, 1, 1) for d in (2, 8)}})
    roomy = eagle(8, max_running_requests="23")
    rows = (
        FrontierRow(candidate=eagle(2), starts=True, capacity=Capacity(max_running_requests=30)),
        FrontierRow(candidate=eagle(8), starts=True, capacity=Capacity(max_running_requests=6), feasible_as=roomy),
        FrontierRow(candidate=roomy, starts=True, capacity=Capacity(max_running_requests=23)),
    )
    known = msgspec.structs.replace(Player(at, QUIET, 0).knowledge, frontier=rows)
    assert [(o.candidate, o.running) for o in space.options(known, at.axes, Tune())] == [(eagle(2), 30), (roomy, 23)]
    launched = msgspec.structs.replace(played(at, (eagle(8), 1)), frontier=rows)
    assert [o.candidate for o in space.options(launched, at.axes, Tune())] == [eagle(2), eagle(8), roomy]


def test_a_risky_deep_launch_says_so() -> None:
    at = surface({OFF: (100, 300, 800), **{eagle(d): (100, 300, 800) for d in (1, 2, 4)}})
    at = rename(at, frontier=(FrontierRow(candidate=eagle(4), starts=None, reason="no formula"),))
    step = next_launch(played(at, (OFF, 4)), at.axes, Tune(), Measure(), at.levels, OFF)
    assert isinstance(step, PlannedLaunch)
    assert step.kind == "deep"
    assert "not known" in step.why


def test_a_baseline_without_a_restart_tells_nothing_about_load_time() -> None:
    at = rename(surface({OFF: (100, 300, 800), eagle(4): (160, 480, 1280)}), load_s=0.5)
    known = played(at, (OFF, 4))
    running = Launch(launch_id="x", pid=1, started_s=-86400.0, log="")
    warm = msgspec.structs.replace(known, trials=(msgspec.structs.replace(known.trials[0], launch=running),))
    step, quick = (next_launch(k, at.axes, Tune(), Measure(), at.levels, OFF) for k in (warm, known))
    assert isinstance(step, PlannedLaunch)
    assert isinstance(quick, PlannedLaunch)
    assert step.seconds > quick.seconds + 80
    assert step.blocks == Measure().confirm_blocks
    assert quick.blocks == Measure().explore_blocks


def test_blocks_played_with_other_prompts_do_not_pair() -> None:
    at = surface({OFF: (100, 300, 800), eagle(4): (160, 480, 1280)})
    known = played(at, (OFF, 3), (eagle(4), 3))
    trial = known.trials[-1]
    first = trial.blocks[0]
    other = msgspec.structs.replace(first, requests=tuple(msgspec.structs.replace(r, prompt_id="other") for r in first.requests))
    changed = msgspec.structs.replace(known, trials=(known.trials[0], msgspec.structs.replace(trial, blocks=(other, *trial.blocks[1:]))))
    whole = Board(known, LEVELS, OFF).contrast(eagle(4), OFF, first.level)
    part = Board(changed, LEVELS, OFF).contrast(eagle(4), OFF, first.level)
    assert whole is not None
    assert part is not None
    assert part.n < whole.n


def test_time_between_trials_counts_when_the_clock_is_given() -> None:
    at = surface({OFF: (100, 300, 800), eagle(4): (160, 480, 1280)})
    known = played(at, (OFF, 2))
    tune = Tune(max_minutes=20)
    assert isinstance(next_launch(known, at.axes, tune, Measure(), at.levels, OFF, now_s=200.0), PlannedLaunch)
    late = next_launch(known, at.axes, tune, Measure(), at.levels, OFF, now_s=1190.0)
    assert isinstance(late, Stop)
    assert late.rule == "budget"


# -- search without a model --------------------------------------------------------------------------------------------


def trees() -> Surface:
    axes = tuple(
        Axis(algorithm="EAGLE", depths=(3, 4, 5, 6), settings=(("num_draft_tokens", n), ("topk", k)), modelled=False)
        for k, n in (("2", "8"), ("4", "16"))
    )
    tok_s = {(OFF, level): 100.0 * level.concurrency for level in LEVELS}
    for i, axis in enumerate(axes):
        for candidate in axis.candidates():
            for level in LEVELS:
                tok_s[candidate, level] = 100.0 * level.concurrency * (1.4 - 0.08 * abs(candidate.depth - 4) - 0.1 * i)
    return Surface(name="trees", axes=axes, levels=LEVELS, found=OFF, tok_s=tok_s, load_s=60.0)


def test_many_points_without_a_model_are_searched_and_the_search_can_be_replayed() -> None:
    if not search.available():
        pytest.skip("optuna is not installed")
    at = trees()
    first, stop = campaign(at, noise=QUIET)
    again, _ = campaign(at, noise=QUIET)
    assert [t.candidate for t in first.knowledge.trials] == [t.candidate for t in again.knowledge.trials]
    said = verdict(at, first.knowledge, stop=stop)
    assert at.regret(said.overall, LEVELS[0]) < 0.07


def test_the_search_asks_only_for_what_is_left() -> None:
    if not search.available():
        pytest.skip("optuna is not installed")
    points = [c for axis in trees().axes for c in axis.candidates()]
    told: dict[Candidate, float | None] = {}
    while (wanted := search.ask(points, told, seed=3)) is not None:
        assert wanted in points
        assert wanted not in told
        told[wanted] = None if wanted.depth == 6 else float(-abs(wanted.depth - 4))
    assert len(told) == len(points)


def test_a_block_seen_twice_in_the_journal_is_folded_in_order() -> None:
    at = surface({OFF: (100, 300, 800)})
    player = Player(at, QUIET, 0)
    player.play(PlannedLaunch(candidate=OFF, why="", levels=LEVELS, blocks=1, seconds=0.0))
    assert sum(isinstance(event, Measured) for event in player.events) == 3
    assert fold(player.events) == player.knowledge
