"""The SGLang adapter against the recordings of 0.5.12.post1 on an H200, and the rules of other releases."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.engines import Engine, Footprint, Parsed, recognise
from leadline.engines import sglang_facts as facts
from leadline.engines.releases import known, release
from leadline.engines.sglang import SGLang, from_histogram, from_meta_infos, schedule
from leadline.engines.sglang_log import boots, decodes, last_boot
from leadline.errors import CannotRewrite, UnknownKnob
from leadline.records import Acceptance, Candidate, Outcome, Reported, RequestResult

RECORDED = Path(__file__).parent / "data/recordings/sglang-0.5.12.post1-h200"
SERVE = ("python3", "-m", "sglang.launch_server", "--model-path", "/m", "--port", "30001")
OFF = Candidate(algorithm="off", depth=0)


def text(case: str, name: str = "server.log") -> str:
    return (RECORDED / case / name).read_text()


def parsed(case: str) -> Parsed:
    engine, found = recognise(shlex.split(text(case, "cmd.txt")))
    assert engine.name == "sglang"
    return found


def parse(*words: str) -> Parsed:
    found = SGLang().parse((*SERVE, *words))
    assert found is not None
    return found


def reported(case: str) -> Reported:
    return SGLang().reported(parsed(case), {"/get_server_info": json.loads(text(case, "get_server_info.json"))})


# -- command line ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "start"),
    [
        (("python3", "-m", "sglang.launch_server", "--port", "1"), 3),
        (("/opt/venv/bin/sglang", "serve", "--model-path", "/m"), 2),
        (("sglang", "serve", "/m", "--port", "1"), 2),
        (("numactl", "-N0", "python", "-m", "sglang.launch_server"), 5),
        (("python", "/src/sglang/launch_server.py", "--port", "1"), 2),
    ],
)
def test_recognises_every_way_to_start(argv: tuple[str, ...], start: int) -> None:
    found = SGLang().parse(argv)
    assert found is not None
    assert found.start == start
    assert found.candidate == OFF


@pytest.mark.parametrize("argv", [("vllm", "serve", "m"), ("python", "-m", "http.server"), ("sglang", "version"), ()])
def test_leaves_other_programs_alone(argv: tuple[str, ...]) -> None:
    assert SGLang().parse(argv) is None


def test_reads_the_recorded_commands() -> None:
    wanted = {"k0": OFF} | {f"k{k}": Candidate(algorithm="NEXTN", depth=k) for k in (1, 2, 3, 5)}
    assert {case: parsed(case).candidate for case in wanted} == wanted
    k1 = parsed("k1")
    assert (k1.port, k1.model, k1.host) == (30123, "/models/q3n", "127.0.0.1")
    assert dict(k1.knobs)["mem_fraction_static"] == "0.55"
    assert any("silently takes 48" in note for note in k1.notes)
    assert dict(parsed("k10-M20").knobs)["max_running_requests"] == "20"


def test_rendering_what_was_found_changes_nothing() -> None:
    for case in ("k0", "k1", "k2", "k3", "k5", "k10-M20", "k10-crash"):
        found = parsed(case)
        assert SGLang().render(found, found.candidate) == found.argv


def test_one_depth_becomes_another_byte_for_byte() -> None:
    k1, k3 = parsed("k1"), parsed("k3")
    assert SGLang().render(k1, k3.candidate) == k3.argv
    assert SGLang().render(k3, OFF) == parsed("k0").argv


def test_a_pinned_limit_is_written_on_both_sides() -> None:
    found = parsed("k5")
    for candidate in (Candidate(algorithm="NEXTN", depth=5), OFF):
        pinned = Candidate(algorithm=candidate.algorithm, depth=candidate.depth, settings=(("max_running_requests", "20"),))
        argv = SGLang().render(found, pinned)
        assert argv.count("--max-running-requests") == 1
        assert argv[argv.index("--max-running-requests") + 1] == "20"


def test_all_three_coupled_flags_are_written() -> None:
    argv = SGLang().render(parse("--speculative-algorithm=EAGLE3", "--speculative-num-steps=2"), Candidate(algorithm="EAGLE3", depth=4))
    assert argv[-4:] == (
        "--speculative-algorithm=EAGLE3",
        "--speculative-num-steps=4",
        "--speculative-eagle-topk=1",
        "--speculative-num-draft-tokens=5",
    )


def test_off_removes_every_speculative_flag_also_unknown_ones() -> None:
    words = [
        "--speculative-algorithm",
        "EAGLE",
        "--speculative-draft-model-path",
        "/d",
        "--speculative-novel-thing",
        "7",
        "--speculative-adaptive",
        "--x",
        "1",
    ]
    words += ["--speculative-use-rejection-sampling", "--enable-multi-layer-eagle", "--speculative-num-steps=3", "--y"]
    assert SGLang().render(parse(*words), OFF) == (*SERVE, "--x", "1", "--y")


def test_another_algorithm_takes_the_flags_of_the_first_away() -> None:
    found = parse(
        *[
            "--speculative-algorithm",
            "EAGLE",
            "--speculative-draft-model-path",
            "/d",
            "--speculative-num-steps",
            "3",
            "--speculative-eagle-topk",
            "1",
        ]
    )
    ngram = SGLang().render(found, Candidate(algorithm="NGRAM", depth=7))
    assert ngram == (*SERVE, "--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8")
    again = SGLang().render(found, Candidate(algorithm="EAGLE3", depth=2))
    assert "/d" in again
    assert again[again.index("--speculative-num-draft-tokens") + 1] == "3"


def test_trees_carry_their_shape_and_a_chain_cannot_lie_about_it() -> None:
    tree = Candidate(algorithm="EAGLE", depth=3, settings=(("num_draft_tokens", "16"), ("topk", "4")))
    argv = SGLang().render(parse("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "5"), tree)
    again = SGLang().parse(argv)
    assert again is not None
    assert again.candidate == tree
    with pytest.raises(CannotRewrite):
        SGLang().render(parse(), Candidate(algorithm="EAGLE", depth=3, settings=(("num_draft_tokens", "9"),)))


def test_an_unknown_setting_is_refused_by_name() -> None:
    with pytest.raises(UnknownKnob) as caught:
        SGLang().render(parse(), Candidate(algorithm="EAGLE", depth=3, settings=(("max_runing_requests", "9"),)))
    assert "max_runing_requests" in caught.value.message
    assert "max_running_requests" in caught.value.next


def test_automatic_choices_are_said() -> None:
    found = parse("--speculative-algorithm", "EAGLE")
    assert found.candidate.depth == 3
    assert any("num_steps is not on the command line" in note for note in found.notes)
    coupled = parse(
        *[
            "--speculative-algorithm",
            "EAGLE",
            "--speculative-num-steps",
            "3",
            "--speculative-eagle-topk",
            "1",
            "--speculative-num-draft-tokens",
            "9",
        ]
    )
    assert coupled.candidate.depth == 3
    assert any("num_draft_tokens 9 is ignored" in note for note in coupled.notes)
    assert parse("--speculative-algorithm", "NGRAM").candidate.depth == 11
    assert parse("--speculative-algorithm", "DFLASH").candidate.depth == 15
    assert any("have no effect" in note for note in parse("--speculative-num-steps", "3").notes)
    assert any("--config" in note for note in parse("--config", "a.yaml").notes)
    assert any("changes the depth by itself" in note for note in parse("--speculative-algorithm", "EAGLE", "--speculative-adaptive").notes)


def test_axes_follow_what_can_be_drafted_with() -> None:
    engine: Engine = SGLang()
    chain, ngram = engine.axes(parsed("k1"))
    assert (chain.algorithm, chain.depths[0], chain.depths[-1], chain.modelled) == ("NEXTN", 1, 10, True)
    assert (ngram.algorithm, ngram.modelled) == ("NGRAM", False)
    assert [axis.algorithm for axis in engine.axes(parsed("k0"))] == ["NGRAM"]
    assert [axis.algorithm for axis in engine.axes(parsed("k0"), ("NEXTN",))] == ["NEXTN"]
    trees = engine.axes(parsed("k1"), ("NEXTN", "tree"))[1:]
    assert all(not axis.modelled and dict(axis.settings)["topk"] != "1" for axis in trees)
    assert trees
    block = engine.axes(parse("--speculative-algorithm", "DFLASH", "--speculative-num-draft-tokens", "8"), ("DFLASH",))
    assert [(axis.depths, axis.modelled) for axis in block] == [((7,), False)]
    for axis in (chain, ngram, *trees):
        for candidate in axis.candidates():
            argv = engine.render(parsed("k1"), candidate)
            back = engine.parse(argv)
            assert back is not None
            assert back.candidate == candidate


ALGORITHMS = st.sampled_from(["EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH"])
FLAGS = st.sampled_from(
    [
        ("--speculative-algorithm", "EAGLE"),
        ("--speculative-algo=NGRAM",),
        ("--speculative-num-steps", "3"),
        ("--speculative-num-st", "2"),
        ("--speculative-eagle-topk=1",),
        ("--speculative-num-draft-tokens", "4"),
        ("--speculative-draft-model-path=/d",),
        ("--mem-fraction-static", "0.8"),
        ("--max-running-requests=32",),
        ("--tp", "4"),
        ("--trust-remote-code",),
    ]
)


@settings(deadline=None, max_examples=200)
@given(words=st.lists(FLAGS, max_size=7), algorithm=ALGORITHMS, depth=st.integers(1, 20), limit=st.none() | st.integers(1, 99))
def test_a_rendered_candidate_reads_back_and_leaves_the_rest(
    words: list[tuple[str, ...]], algorithm: str, depth: int, limit: int | None
) -> None:
    found = parse(*(word for words_ in words for word in words_))
    pins = (("max_running_requests", str(limit)),) if limit else ()
    for candidate in (Candidate(algorithm=algorithm, depth=depth, settings=pins), Candidate(algorithm="off", depth=0, settings=pins)):
        argv = SGLang().render(found, candidate)
        back = SGLang().parse(argv)
        assert back is not None
        assert (back.candidate.algorithm, back.candidate.depth) == (candidate.algorithm, candidate.depth)
        if limit:
            assert dict(back.knobs)["max_running_requests"] == str(limit)
        assert SGLang().render(back, candidate) == argv
        kept = [word for word in found.argv if not word.startswith("--spec")]
        assert argv.count("--trust-remote-code") == kept.count("--trust-remote-code")
        assert argv[: found.start + 4] == found.argv[: found.start + 4]


# -- what the server says ----------------------------------------------------------------------------------------------------------

CAPACITY = {"k0": (0, 47, 832765), "k1": (1, 38, 672421), "k2": (2, 33, 593821), "k3": (3, 29, 515221), "k5": (5, 20, 354877)}


@pytest.mark.parametrize("case", CAPACITY)
def test_identity_and_effective_capacity_of_a_good_server(case: str) -> None:
    depth, running, tokens = CAPACITY[case]
    found, told = parsed(case), reported(case)
    assert told.algorithm == ("EAGLE" if depth else "off")
    assert (told.depth, told.max_running_requests, told.max_total_num_tokens) == (depth, running, tokens)
    assert told.version == "0.5.12.post1"
    assert SGLang().mismatch(found.candidate, told, text(case)) == ""
    capacity = SGLang().capacity(told, text(case))
    assert (capacity.max_running_requests, capacity.max_total_num_tokens, capacity.context_tokens) == (running, tokens, 32768)
    assert capacity.state_slots is not None
    assert capacity.free_memory_bytes is not None
    log_only = SGLang().capacity(Reported(engine="sglang"), text(case))
    assert (log_only.max_running_requests, log_only.max_total_num_tokens) == (running, tokens)


def test_the_requested_limit_is_not_the_effective_one() -> None:
    told = reported("k1")
    assert dict(told.facts)["max_running_requests"] == "48"
    assert told.max_running_requests == 38


def test_an_older_server_that_answers_is_caught_by_what_it_says() -> None:
    case = "k10-answered-by-an-older-server"
    why = SGLang().mismatch(parsed(case).candidate, reported(case), text(case))
    assert "8 draft tokens" in why
    assert "10 were asked for" in why


def test_an_older_server_of_the_same_depth_is_caught_by_the_log() -> None:
    case = "k10-answered-by-an-older-server"
    twin = Reported(engine="sglang", algorithm="EAGLE", depth=10, max_total_num_tokens=115933)
    assert "another server answers" in SGLang().mismatch(parsed(case).candidate, twin, text(case))
    assert "another server answers" in SGLang().mismatch(
        parsed("k5").candidate, Reported(engine="sglang", max_total_num_tokens=1), text("k5")
    )


def test_other_identity_breaks_are_named() -> None:
    k3 = parsed("k3").candidate
    assert "algorithm NGRAM" in SGLang().mismatch(k3, Reported(engine="sglang", algorithm="NGRAM"), "")
    pinned = Candidate(algorithm="NEXTN", depth=3, settings=(("max_running_requests", "20"),))
    assert "max_running_requests = 48" in SGLang().mismatch(pinned, reported("k3"), "")
    assert "the log says 4 draft tokens" in SGLang().mismatch(parsed("k5").candidate, Reported(engine="sglang"), text("k3"))
    assert SGLang().mismatch(Candidate(algorithm="NEXTN", depth=3, settings=(("mem_fraction_static", "0.550"),)), reported("k3"), "") == ""


def test_an_empty_answer_reports_nothing() -> None:
    told = SGLang().reported(parsed("k1"), {})
    assert (told.algorithm, told.depth, told.max_running_requests) == (None, None, None)
    tree = {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 16}
    assert SGLang().reported(parsed("k1"), {"/server_info": tree}).depth == 3
    block = {"speculative_algorithm": "DFLASH", "speculative_num_steps": 1, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 16}
    assert SGLang().reported(parsed("k1"), {"/server_info": block}).depth == 15


# -- the log ------------------------------------------------------------------------------------------------------------------------


def test_load_progress_of_a_recorded_boot() -> None:
    lines = text("k1").splitlines()
    phases: list[str] = []
    for end in range(1, len(lines)):
        phase = SGLang().loading("\n".join(lines[max(0, end - 30) : end])).phase
        if not phases or phases[-1] != phase:
            phases.append(phase)
    order = ["starting", "loading weights", "allocating", "capturing graphs", "warming up", "serving"]
    assert [phase for i, phase in enumerate(phases) if phase not in phases[:i]] == order
    capture = "Capturing batches (bs=22 avail_mem=63.10 GB):  33%|███▎ | 7/21 [00:04<00:06,  2.23it/s]"
    assert SGLang().loading(capture).fraction == pytest.approx(1 / 3)
    shards = "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:01<00:01,  1.2it/s]"
    assert SGLang().loading(shards).fraction == 0.5


def test_a_journal_with_several_starts_keeps_them_apart() -> None:
    found = boots(text("k10-crash") + text("k1"))
    assert [boot.tokens for boot in found] == [None, 672421]
    assert found[0].pool_error.startswith("RuntimeError: Not enough memory")
    assert last_boot("").tokens is None


def test_the_cause_of_a_failed_capture_is_its_first_exception() -> None:
    boot = last_boot(text("k3-graph-capture-jit-crash"))
    assert "ninja" in boot.error
    assert boot.pool_error == ""


def test_an_untuned_expert_kernel_tells_where_rounds_step() -> None:
    for case in ("k0", "k3", "k10-M20", "../sglang-0.5.12.post1-h200-pinned/k7-M27"):
        assert SGLang().round_facts(text(case, "server.log")) == (("kernel_step_tokens", "128"),)
    line = (
        "Using default MoE kernel config. Performance might be sub-optimal! Config file not found at /x/configs/triton_3_6_0/E=160,N=384,"
    )
    assert SGLang().round_facts(line + "device_name=NVIDIA_H20,dtype=fp8_w8a8.json, you can create them with") == (
        ("kernel_step_tokens", "160"),
    )
    in_blocks = "device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128].json, you can create them with"
    for tuned in (line + in_blocks, "Using MoE kernel config from /x/configs/triton_3_6_0/E=160,N=384,device_name=NVIDIA_H20.json.", ""):
        assert SGLang().round_facts(tuned) == ()


def test_decode_lines_give_acceptance_and_round_time() -> None:
    found = decodes(text("k5"))
    lengths = [d.accept_length for d in found if d.accept_length is not None]
    assert len(lengths) == len(found) > 10
    assert 4.2 < sum(lengths) / len(lengths) < 4.7  # declared 4.463
    clean = [d.round_ms for d in found if d.running == 20 and not d.after_prefill and d.round_ms is not None]
    assert 26 < sorted(clean)[len(clean) // 2] < 31
    assert decodes(text("k0"))[1].accept_length is None


def test_acceptance_prefers_requests_then_counters_then_log() -> None:
    k3 = parsed("k3").candidate
    engine = SGLang()
    requests = [RequestResult(prompt_id="a", outcome=Outcome.OK, drafted=30, accepted=20)]
    got = engine.acceptance(k3, "", "", requests, text("k3"))
    assert got == Acceptance(rounds=10, drafted=30, accepted=20, length=3.0, source="requests")
    before = "sglang:spec_verify_calls_total 100\nsglang:generation_tokens_total 250\n"
    after = 'sglang:spec_verify_calls_total{tp_rank="0"} 300.0\nsglang:generation_tokens_total{x="a b"} 850\n'
    counted = engine.acceptance(k3, before, after, (), text("k3"))
    assert counted is not None
    assert (counted.length, counted.rounds, counted.source) == (3.0, 200, "counters")
    logged = engine.acceptance(k3, "", "", (), text("k3"))
    assert logged is not None
    assert logged.length == pytest.approx(3.336, abs=0.05)
    assert engine.acceptance(OFF, before, after, requests, text("k3")) is None


def test_a_histogram_becomes_unconditional_counts() -> None:
    got = from_histogram((10, 20, 70))
    assert (got.rounds, got.accepted, got.drafted, got.per_position) == (100, 160, 200, (90, 70))
    assert got.length == pytest.approx(2.6)
    both = from_meta_infos([{"spec_accept_histogram": [1, 2]}, {"spec_correct_drafts_histogram": [3, 4]}, {"other": 1}], depth=1)
    assert both is not None
    assert both.histogram == (4, 6)
    assert from_meta_infos([{}], depth=3) is None


@settings(deadline=None, max_examples=100)
@given(histogram=st.lists(st.integers(0, 50), min_size=2, max_size=12))
def test_histogram_and_positions_tell_the_same(histogram: list[int]) -> None:
    got = from_histogram(histogram)
    assert sum(got.per_position) == got.accepted
    assert list(got.per_position) == sorted(got.per_position, reverse=True)
    assert got.rounds == sum(histogram)


def test_recorded_histograms_are_read() -> None:
    acc = json.loads(text("k3", "result.json"))["bench"][0]["acc"]
    got = from_meta_infos([acc], depth=3)
    assert got is not None
    assert got.length == pytest.approx(acc["spec_accept_length"], rel=0.03)


# -- releases -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "regime", "limit", "draft", "bonus"),
    [
        ("0.5.9", "old", "none", False, True),
        ("0.5.10.post1", "old", "estimate", False, True),
        ("0.5.11", "old", "estimate", False, False),
        ("0.5.12.post1", "old", "estimate", False, False),
        ("0.5.13.post1", "joint", "estimate", False, False),
        ("0.5.14", "joint", "half", True, False),
        ("0.5.16", "joint", "half", True, False),
        ("0.5.17", "joint+1", "half", True, False),
        ("0.5.23", "joint+1", "half", True, False),
    ],
)
def test_rules_by_release(version: str, regime: str, limit: str, draft: bool, bonus: bool) -> None:
    ver = release(version)
    assert (facts.regime(ver), facts.requested_limit(ver)) == (regime, limit)
    assert (facts.draft_in_budget(ver), facts.rate_counts_bonus(ver)) == (draft, bonus)


def test_version_numbers() -> None:
    assert release("v0.32.0+cpu") == (0, 32, 0, 0)
    assert known("nonsense") is None
    assert known(None) is None
    with pytest.raises(ValueError, match="nonsense"):
        release("nonsense")
    assert facts.histogram_key(release("0.5.11")) == "spec_accept_histogram"
    assert facts.histogram_key(release("0.5.21")) == "spec_correct_drafts_histogram"


def test_a_schedule_becomes_a_file_of_the_launch() -> None:
    table = schedule({1: 3, 16: 1})
    candidate = Candidate(algorithm="NEXTN", depth=3, settings=(("adaptive_config", table), ("speculative_adaptive", "true")))
    (file,) = SGLang().files(candidate)
    assert file.text == table
    argv = SGLang().render(parsed("k5"), candidate)
    assert argv[argv.index("--speculative-adaptive-config") + 1] == file.name
    assert "--speculative-adaptive" in argv
    assert argv[argv.index("--speculative-num-steps") + 1] == "3"
    assert argv[argv.index("--speculative-num-draft-tokens") + 1] == "4"
    assert table not in argv
    assert SGLang().files(Candidate(algorithm="NEXTN", depth=3)) == ()
    kept = Candidate(algorithm="NEXTN", depth=3, settings=(("adaptive_config", "/etc/mine.json"), ("speculative_adaptive", "true")))
    assert SGLang().files(kept) == ()
    assert "/etc/mine.json" in SGLang().render(parsed("k5"), kept)


def test_an_adaptive_table_that_the_engine_switched_off_is_no_schedule() -> None:
    candidate = Candidate(algorithm="NEXTN", depth=3, settings=(("speculative_adaptive", "true"),))
    line = "WARNING speculative_adaptive disabled: two-batch overlap is enabled. Falling back to static speculative params.\n"
    assert "two-batch overlap is enabled" in SGLang().mismatch(candidate, Reported(engine="sglang"), line)
    told = Reported(engine="sglang", facts=(("speculative_adaptive", "False"),))
    assert "speculative_adaptive = False" in SGLang().mismatch(candidate, told, "")
    assert SGLang().mismatch(Candidate(algorithm="NEXTN", depth=3), Reported(engine="sglang"), line) == ""


def test_how_many_drafts_an_adaptive_round_had_is_not_guessed_from_requests() -> None:
    requests = [RequestResult(prompt_id="a", outcome=Outcome.OK, tokens_out=9, drafted=30, accepted=20)]
    fixed = Candidate(algorithm="EAGLE", depth=3)
    assert SGLang().acceptance(fixed, "", "", requests, "") is not None
    adaptive = Candidate(algorithm="EAGLE", depth=3, settings=(("speculative_adaptive", "true"),))
    assert SGLang().acceptance(adaptive, "", "", requests, "") is None


@pytest.mark.parametrize(("case", "gib"), [("k0", 40.33), ("k3", 40.33 + 1.98)])
def test_the_log_tells_the_weights_and_a_cached_token(case: str, gib: float) -> None:
    found = SGLang().footprint(text(case))
    assert found.weight_bytes == pytest.approx(gib * 2**30, rel=1e-3)
    assert found.kv_bytes_per_token == pytest.approx(24_576, rel=0.01)
    assert SGLang().footprint("") == Footprint()


def test_ranks_hold_a_share_each_and_are_not_added() -> None:
    line = "[2026-11-29 10:00:04 TP{}] Load weight end. elapsed=1 s, type={}, avail mem=50.0 GB, mem usage={} GB."
    log = "\n".join(line.format(rank, kind, size) for kind, size in (("A", 10.0), ("AMTP", 2.0)) for rank in (1, 0, 2, 3))
    assert SGLang().footprint(log).weight_bytes == 12 * 2**30


def test_a_schedule_is_written_only_where_the_release_has_one() -> None:
    assert json.loads(schedule({1: 5, 8: 2, 64: 0}, "0.5.17")) == {
        "1": {"candidate_steps": [5]},
        "8": {"candidate_steps": [2]},
        "64": {"candidate_steps": [0]},
    }
    with pytest.raises(CannotRewrite):
        schedule({1: 5}, "0.5.12.post1")
    with pytest.raises(CannotRewrite):
        schedule({1: 5, 64: 0}, "0.5.13.post1")
