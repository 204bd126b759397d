"""The llama.cpp adapter: command lines both ways, and real logs and answers (golden files)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.engines import recognise
from leadline.engines.llamacpp import FLAGS, LlamaCpp, generation_of
from leadline.errors import CannotRewrite, ConfigError, NotAnEngine, NothingToTune, UnknownKnob
from leadline.records import OFF, Candidate, Outcome, Reported, RequestResult

DATA = Path(__file__).parent / "data" / "llamacpp"
LOGS = Path(__file__).parent / "data" / "recordings" / "llamacpp"
ENGINE = LlamaCpp()
PLAIN = ("/opt/llama-server", "-m", "t.gguf", "--port", "8081")
PAIR = ("/opt/llama-server", "-m", "t.gguf", "-md", "d.gguf", "-c", "2048", "--alias", "--odd value", "--metrics")
CLEAN_OFF = Candidate(algorithm=OFF, depth=0)


def draft(depth: int, kind: str = "draft-simple") -> Candidate:
    return Candidate(algorithm=kind, depth=depth)


def ngram(depth: int, n: int = 4) -> Candidate:
    return Candidate(algorithm="ngram-simple", depth=depth, settings=(("ngram_n", str(n)),))


def parsed(*argv: str):
    found = ENGINE.parse(argv)
    assert found is not None
    return found


def log(name: str) -> str:
    return (LOGS / f"{name}.log").read_text(errors="replace")


@pytest.mark.parametrize(
    ("argv", "start"),
    [
        (("llama-server", "-m", "x"), 1),
        (("/usr/bin/llama-server-vulkan", "-m", "x"), 1),
        (("env", "A=1", "nice", "-n", "5", "llama-server", "-m", "x"), 6),
        (("taskset", "-c", "0", "/x/llama-server", "-m", "x"), 4),
        (("/v/bin/python3.11", "/v/bin/llama-server-vulkan", "-m", "x"), 2),
        (("/v/bin/python", "-m", "leadline.launcher", "-m", "x"), 3),
        (("python3", "-I", "-m", "leadline.launcher", "-m", "x"), 4),
    ],
)
def test_recognises(argv: tuple[str, ...], start: int) -> None:
    engine, found = recognise(argv)
    assert (engine.name, found.start, found.model) == ("llamacpp", start, "x")


@pytest.mark.parametrize(
    "argv", [("grep", "llama-server"), ("python", "-m", "http.server"), ("vim", "llama-server.log"), (), ("llama-cli",)]
)
def test_other_programs_are_not_llama_server(argv: tuple[str, ...]) -> None:
    assert ENGINE.parse(argv) is None


def test_no_engine_is_an_error_with_the_command() -> None:
    with pytest.raises(NotAnEngine, match="sleep 5"):
        recognise(("sleep", "5"))


@pytest.mark.parametrize(
    ("words", "candidate"),
    [
        ((), CLEAN_OFF),
        (("--spec-type", "none"), CLEAN_OFF),
        (("-md", "d.gguf"), CLEAN_OFF),
        (("-md", "d.gguf", "--spec-type", "draft-simple"), draft(3)),
        (("-md", "d.gguf", "--spec-type", "draft-simple", "--spec_draft_n_max", "8"), draft(8)),
        (("-md", "d.gguf", "--spec-type", "draft-simple", "--spec-draft-n-max", "2", "--spec-draft-n-max", "6"), draft(6)),
        (("--spec-type", "ngram-simple"), ngram(48, 12)),
        (("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m=16"), ngram(16)),
        (("--spec-default",), Candidate(algorithm="ngram-mod", depth=64, settings=(("ngram_n", "24"),))),
        (("--spec-type", "ngram-cache"), Candidate(algorithm="ngram-cache", depth=8)),
        (("--spec-type", "draft-mtp", "--spec-draft-n-max", "2"), draft(2, "draft-mtp")),
        (("-md", "d.gguf", "--draft-max", "8"), draft(8)),
        (("-md", "d.gguf", "--spec-type", "draft-simple,ngram-simple"), draft(3, "draft-simple,ngram-simple")),
    ],
)
def test_reads_what_the_arguments_ask_for(words: tuple[str, ...], candidate: Candidate) -> None:
    found = parsed(*PLAIN, *words)
    assert found.candidate == candidate
    assert found.port == 8081
    assert ENGINE.render(found, candidate) == found.argv


def test_the_generation_of_a_build_is_in_its_help() -> None:
    assert generation_of((LOGS / "llama-server-help.txt").read_text()) == "current"
    assert generation_of("--draft-max, --draft, --draft-n N  number of tokens to draft") == "old"
    assert generation_of("usage: other") is None


def test_every_flag_of_the_recorded_help_is_spelled_as_there() -> None:
    text = (LOGS / "llama-server-help.txt").read_text()
    newer = {"--spec-synth-len", "--spec-synth-rates", "-cd", "--ctx-size-draft"}
    missing = [
        word for flag in FLAGS.values() for word in flag.spellings if word not in text.replace(",", " ").split() and word not in newer
    ]
    assert missing == []


def test_old_flags_on_a_new_build_are_refused_with_the_new_name() -> None:
    with pytest.raises(CannotRewrite) as caught:
        LlamaCpp("current").parse((*PLAIN, "-md", "d", "--draft-max", "8"))
    assert "--spec-draft-n-max 8" in caught.value.next
    with pytest.raises(CannotRewrite, match="--draft-max has been removed"):
        ENGINE.parse((*PLAIN, "-md", "d", "--draft-max", "8", "--spec-type", "draft-simple"))
    with pytest.raises(CannotRewrite) as caught:
        ENGINE.parse((*PLAIN, "--spec-ngram-size-m", "16"))
    assert "--spec-ngram-simple-size-m 16" in caught.value.next


def test_old_builds_are_written_in_their_own_spelling() -> None:
    found = parsed(*PLAIN, "-md", "d", "--draft", "8", "-v")
    assert ENGINE.render(found, draft(4)) == (*PLAIN, "-md", "d", "--draft", "4", "-v")
    assert ENGINE.render(found, CLEAN_OFF) == (*PLAIN, "-v")
    assert [axis.algorithm for axis in ENGINE.axes(found)] == ["draft-simple"]


def test_off_takes_away_everything_that_starts_or_loads_a_draft() -> None:
    found = parsed(*PAIR, "--spec-type", "draft-simple", "--spec-draft-n-max", "8", "-ctkd", "q8_0", "-ngl", "0")
    assert ENGINE.render(found, CLEAN_OFF) == (*(word for word in PAIR if word not in ("-md", "d.gguf")), "-ngl", "0")


def test_a_depth_is_changed_where_it_stands_and_a_method_is_added_beside_the_draft() -> None:
    found = parsed("llama-server", "--spec-draft-n-max=3", "-md", "d", "--spec-type", "draft-simple", "-m", "t")
    assert ENGINE.render(found, draft(8)) == ("llama-server", "--spec-draft-n-max=8", "-md", "d", "--spec-type", "draft-simple", "-m", "t")
    assert ENGINE.render(parsed(*PAIR), draft(8)) == (*PAIR[:5], "--spec-type", "draft-simple", "--spec-draft-n-max", "8", *PAIR[5:])
    assert ENGINE.render(parsed(*PAIR), ngram(16)) == (
        *PAIR[:3],
        *("--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", "16", "--spec-ngram-simple-size-n", "4"),
        *PAIR[5:],
    )


def test_settings_reach_their_flag_and_unknown_ones_are_refused() -> None:
    tuned = Candidate(algorithm="draft-simple", depth=4, settings=(("p_min", "0.5"), ("parallel", "8")))
    assert ENGINE.render(parsed(*PAIR, "-np", "2"), tuned)[-2:] == ("-np", "8")
    with pytest.raises(UnknownKnob, match="speed"):
        ENGINE.render(parsed(*PAIR), Candidate(algorithm="draft-simple", depth=4, settings=(("speed", "11"),)))
    with pytest.raises(NothingToTune, match="draft model"):
        ENGINE.render(parsed(*PLAIN), draft(4))


def test_axes_follow_from_what_the_command_has() -> None:
    assert [axis.algorithm for axis in ENGINE.axes(parsed(*PLAIN))] == ["ngram-simple", "ngram-simple"]
    axes = ENGINE.axes(parsed(*PAIR))
    assert axes[0].depths == (1, 2, 3, 4, 6, 8, 12, 16)
    assert {candidate.label for axis in axes[1:] for candidate in axis.candidates()} == {
        "ngram-simple 8 ngram_n=4",
        "ngram-simple 16 ngram_n=4",
        "ngram-simple 48 ngram_n=12",
    }
    with pytest.raises(NothingToTune, match="draft-simple needs a draft model"):
        ENGINE.axes(parsed(*PLAIN), ("draft-simple",))
    with pytest.raises(UnknownKnob, match="eagle"):
        ENGINE.axes(parsed(*PLAIN), ("eagle",))


@pytest.mark.parametrize(
    ("words", "trap"),
    [
        (("-md", "d"), "loaded and never used"),
        (("--spec-type", "draft-simple"), "without -md does not speculate"),
        (("-md", "d", "--spec-type", "draft-simple", "--spec-draft-n-max", "0"), "is not off"),
        (("--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", "3"), "never drafts"),
        (("--spec-synth-len", "3"), "makes acceptance up"),
        ((), "--cache-ram"),
        ((), "--metrics"),
        (("--reuse-port",), "two servers"),
    ],
)
def test_known_traps_are_named(words: tuple[str, ...], trap: str) -> None:
    assert any(trap in note for note in parsed(*PLAIN, *words).notes)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--port",), ConfigError),
        (("--port", "http"), ConfigError),
        (("--spec-type", "eagle"), ConfigError),
        (("--models-dir", "/m"), CannotRewrite),
        (("--host", "/run/x.sock"), CannotRewrite),
        (("--fim-qwen-7b-spec",), CannotRewrite),
    ],
)
def test_what_cannot_be_read_is_refused(words: tuple[str, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        ENGINE.parse((*PLAIN, *words))


def test_speculation_in_the_environment_is_refused() -> None:
    with pytest.raises(CannotRewrite, match="LLAMA_ARG_SPEC_TYPE"):
        ENGINE.parse(("env", "LLAMA_ARG_SPEC_TYPE=ngram-simple", "llama-server", "-m", "x"))


OTHER = st.lists(
    st.sampled_from(
        [("-c", "512"), ("--alias", "a b"), ("--no-warmup",), ("-fa", "on"), ("--temp=0",), ("-lv", "99"), ("--jinja",), ("",)]
    ),
    max_size=5,
)
SPEC = st.lists(
    st.sampled_from(
        [
            ("-md", "d"),
            ("--spec-type", "draft-simple"),
            ("--spec-draft-n-max", "5"),
            ("--spec-ngram-simple-size-n", "4"),
            ("--spec-draft-p-min=0.5",),
        ]
    ),
    max_size=4,
    unique=True,
)


@settings(deadline=None, max_examples=150)
@given(before=OTHER, spec=SPEC, after=OTHER, depth=st.integers(1, 64), kind=st.sampled_from(["off", "draft-simple", "ngram-simple"]))
def test_rendering_changes_speculation_only_and_reads_back(before, spec, after, depth, kind) -> None:
    words = [word for group in (*before, *spec, *after) for word in group]
    found = parsed("llama-server", *words)
    candidate = {"off": CLEAN_OFF, "draft-simple": draft(depth), "ngram-simple": ngram(depth)}[kind]
    if kind == "draft-simple" and ("-md", "d") not in spec and found.candidate != candidate:
        with pytest.raises(NothingToTune):
            ENGINE.render(found, candidate)
        return
    again = ENGINE.parse(ENGINE.render(found, candidate))
    assert again is not None
    assert again.candidate == candidate
    others = [word for group in (*before, *after) for word in group]
    rest = [word for word in ENGINE.render(found, candidate)[1:] if word in others or word == ""]
    assert rest == others
    assert ENGINE.render(again, candidate) == again.argv


# -- what the server prints and answers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "phase"),
    [("xll-start-default", "serving"), ("q6-plain", "serving"), ("missing-model", "loading weights"), ("bad-flag", "starting")],
)
def test_load_progress_of_real_logs(name: str, phase: str) -> None:
    assert ENGINE.loading(log(name)).phase == phase


def test_load_progress_goes_through_the_phases() -> None:
    lines = log("q6-draft-nmax0").splitlines()
    phases = [ENGINE.loading("\n".join(lines[:count])).phase for count in range(1, 10)]
    assert phases == [
        "starting",
        "starting",
        "starting",
        "loading weights",
        "allocating",
        "loading weights",
        "allocating",
        "serving",
        "serving",
    ]


def infos(slots: str = "slots-d4.json") -> dict[str, object]:
    return {"/props": json.loads((DATA / "props-d4.json").read_text()), "/slots": json.loads((DATA / slots).read_text())}


def test_what_the_server_says_about_itself() -> None:
    fresh = ENGINE.reported(parsed(*PAIR), infos())
    assert fresh.version == "b1-7e4c0a9"
    assert fresh.model == "/models/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert (fresh.max_running_requests, fresh.context_tokens, fresh.algorithm) == (2, 512, None)
    served = ENGINE.reported(parsed(*PAIR), infos("slots-d4-after.json"))
    assert served.algorithm == "draft-simple"
    assert ENGINE.mismatch(draft(4), served, "") == ""
    assert "not by ngram-simple" in ENGINE.mismatch(ngram(16), served, "")
    assert "although speculation was to be off" in ENGINE.mismatch(CLEAN_OFF, served, "")


def silent(speculative: str) -> Reported:
    return Reported(engine="llamacpp", facts=(("speculative", speculative),))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("q6-draft-simple-no-md", "without a draft model"),
        ("q6-incompatible", "vocabularies"),
        ("q6-md-without-type", "speculative = false"),
    ],
)
def test_silently_without_speculation(name: str, why: str) -> None:
    assert why in ENGINE.mismatch(draft(3), silent("false"), log(name))


def test_hidden_slots_leave_the_log_and_short_ngrams_never_draft() -> None:
    hidden = Reported(engine="llamacpp")
    assert "vocabularies" in ENGINE.mismatch(draft(3), hidden, log("incompatible-draft"))
    assert ENGINE.mismatch(draft(3), hidden, log("q6-draft-nmax0")) == ""
    assert "never drafts" in ENGINE.mismatch(ngram(3), silent("true"), "")
    assert ENGINE.mismatch(ngram(8), silent("true"), "") == ""


def test_capacity_from_the_log_and_without_it() -> None:
    reported = ENGINE.reported(parsed(*PAIR), infos())
    assert ENGINE.capacity(reported, log("sweep-F32-Q41-d4")).max_total_num_tokens == 4 * 2048
    assert ENGINE.capacity(reported, "").max_total_num_tokens == 2 * 512


def test_acceptance_per_position_from_real_counters() -> None:
    after = (LOGS / "metrics-F32-Q41-d4.txt").read_text()
    found = ENGINE.acceptance(draft(4), "", after, (), "")
    assert found is not None
    assert (found.rounds, found.drafted, found.accepted, found.per_position) == (239, 945, 901, (232, 226, 225, 218))
    assert sum(found.per_position) == found.accepted
    assert ENGINE.acceptance(draft(4), after, after, (), "") is None
    assert ENGINE.acceptance(CLEAN_OFF, "", after, (), "") is None


def test_acceptance_from_the_log_agrees_with_the_counters() -> None:
    found = ENGINE.acceptance(draft(4), "", "", (), log("sweep-F32-Q41-d4"))
    assert found is not None
    assert (found.source, found.drafted, found.accepted) == ("log", 945, 901)
    assert found.rounds == 239


def test_acceptance_from_the_requests_alone() -> None:
    one = RequestResult(prompt_id="a", outcome=Outcome.OK, tokens_out=10, drafted=12, accepted=6)
    found = ENGINE.acceptance(draft(4), "", "", (one, one), "")
    assert found is not None
    assert (found.drafted, found.accepted, found.length) == (24, 12, 2.5)
    assert ENGINE.acceptance(ngram(16), "", "", (RequestResult(prompt_id="a", outcome=Outcome.OK, tokens_out=3),), "") is None


def test_the_model_files_of_a_command() -> None:
    assert ENGINE.weight_files(PAIR) == ("t.gguf",), "nothing drafts, so no round reads the draft"
    assert ENGINE.weight_files(ENGINE.render(parsed(*PAIR), draft(4))) == ("t.gguf", "d.gguf")
    assert ENGINE.weight_files(PLAIN) == ("t.gguf",)
    split = ("/opt/llama-server", "-m", "/m/big-00001-of-00003.gguf")
    assert ENGINE.weight_files(split) == tuple(f"/m/big-0000{n}-of-00003.gguf" for n in (1, 2, 3))
    assert ENGINE.weight_files(("/opt/llama-server", "-hf", "org/repo")) == ()
    assert ENGINE.weight_files(("sleep", "1")) == ()
