"""The launcher takes llama-server's flags and refuses what llama-server refuses, in the same words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from leadline import launcher
from leadline.engines.llamacpp import FLAGS, LlamaCpp, generation_of
from leadline.records import OFF, Candidate

LOGS = Path(__file__).parent / "data" / "recordings" / "llamacpp"
MODEL = ["-m", "t.gguf"]


def test_defaults_are_those_of_the_executable() -> None:
    fields = launcher.read(MODEL)
    assert (fields["port"], fields["n_parallel"], fields["kv_unified"]) == (8080, 4, True)
    assert launcher.read([*MODEL, "-np", "2", "--port", "9"])["n_parallel"] == 2


def test_every_speculative_flag_lands_in_its_field() -> None:
    words = ["-md", "d.gguf", "--spec-type", "draft-simple,ngram-simple", "--spec_draft_n_max", "8", "--spec-ngram-simple-size-m", "16"]
    fields = launcher.read([*MODEL, *words, "-ctkd", "q8_0"])
    assert fields["speculative.types"] == ["draft-simple", "ngram-simple"]
    assert fields["speculative.draft.n_max"] == 8
    assert fields["speculative.ngram_simple.size_m"] == 16
    assert fields["speculative.draft.cache_type_k"] == "q8_0"
    assert fields["speculative.draft.mparams.path"] == "d.gguf"


@pytest.mark.parametrize(
    ("words", "log"),
    [
        (["--no-such-flag", "3"], "bad-flag"),
        (["--spec-type", "ngram"], "bad-spec-type"),
        (["--draft-max", "8"], "removed-flag-draft-max"),
        (["--spec-draft-n-max", "-1"], "q6-draft-nmax-neg"),
    ],
)
def test_bad_arguments_are_refused_in_the_words_of_the_recorded_server(words: list[str], log: str) -> None:
    with pytest.raises(launcher.BadArgument) as caught:
        launcher.read([*MODEL, *words])
    assert str(caught.value) == (LOGS / f"{log}.log").read_text().splitlines()[0]


@pytest.mark.parametrize("words", [["-c"], ["-c", "much"], ["-fa", "perhaps"], ["-ctk", "f64"]])
def test_bad_values_are_refused(words: list[str]) -> None:
    with pytest.raises(launcher.BadArgument, match=words[0]):
        launcher.read([*MODEL, *words])


def test_a_model_is_required() -> None:
    with pytest.raises(launcher.BadArgument, match="--model"):
        launcher.read([])


def test_everything_the_adapter_may_write_is_taken() -> None:
    engine = LlamaCpp()
    found = engine.parse(("python", "-m", "leadline.launcher", *MODEL, "-md", "d.gguf"))
    assert found is not None
    for axis in (*engine.axes(found), *engine.axes(found, ("ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"))):
        for candidate in (*axis.candidates(), Candidate(algorithm=OFF, depth=0)):
            launcher.read(list(engine.render(found, candidate)[found.start :]))
    spoken = [word for name, flag in FLAGS.items() if flag.family.startswith("ngram") for word in flag.spellings]
    assert all(word in launcher.OPTIONS for word in spoken)


def test_fields_become_the_library_s_own_values() -> None:
    xllamacpp = pytest.importorskip("xllamacpp")
    words = [
        "--spec-type",
        "ngram-simple",
        "-t",
        "3",
        "-fa",
        "off",
        "-ctk",
        "q8_0",
        "-lm",
        "mmap+mlock",
        "--alias",
        "a,b",
        "--temp",
        "0",
        "-s",
        "-1",
    ]
    made = launcher.params(launcher.read([*MODEL, *words]), xllamacpp)
    assert made.speculative.types == [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    assert (made.cpuparams.n_threads, made.n_parallel, made.port) == (3, 4, 8080)
    assert made.flash_attn_type == xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    assert made.cache_type_k == xllamacpp.ggml_type.GGML_TYPE_Q8_0
    assert made.sampling.temp == 0.0


def test_every_field_exists_in_the_library() -> None:
    made = pytest.importorskip("xllamacpp").CommonParams()
    for option in launcher.OPTIONS.values():
        node = made
        for name in option.path.split("."):
            assert hasattr(node, name), option.path
            node = getattr(node, name)


def test_the_process_ends_with_status_1_and_the_message() -> None:
    done = subprocess.run([sys.executable, "-m", "leadline.launcher", "--no-such-flag"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "error: invalid argument: --no-such-flag\n")
    done = subprocess.run([sys.executable, "-m", "leadline.launcher", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert generation_of(done.stdout) == "current"
