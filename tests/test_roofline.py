"""The roofline: bandwidths by name, the bytes of a model from its config, and the reading of campaigns that were recorded on an H200."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest

from leadline import roofline
from leadline.compare import Board
from leadline.config import Tune
from leadline.engines.sglang import SGLang
from leadline.records import AnyEvent, Reported
from leadline.state import Knowledge, fold
from leadline.survey import sized
from leadline.target import LocalTarget

DATA = Path(__file__).parent / "data"
RECORDED = DATA / "recordings/sglang-0.5.12.post1-h200"
CONFIG = json.loads((RECORDED / "config.json").read_text())


def test_bandwidth_goes_by_the_drivers_name() -> None:
    assert roofline.bandwidth("2 x EPYC; NVIDIA A100-SXM4-80GB, 81920 MiB, 550.1", "vllm") == (2.039e12, "")
    assert roofline.bandwidth("2 x EPYC; Tesla T4, 15360 MiB, 550.1", "sglang") == (3.2e11, "")
    assert roofline.bandwidth("2 x EPYC", "llamacpp")[0] is None


def test_a_mixture_of_experts_by_its_config() -> None:
    facts = roofline.model_facts(CONFIG)
    # 128 experts of three 2048 x 512 matrices in 48 layers, two bytes each: 36 GiB; 151,936 x 2048 embeddings of its own
    assert float(facts["expert_bytes"]) == pytest.approx(36 * 2**30, rel=1e-5)
    assert float(facts["embedding_bytes"]) == pytest.approx(151_936 * 2048 * 2, rel=1e-5)
    assert (facts["num_experts"], facts["num_experts_per_tok"]) == ("128", "10")
    assert roofline.model_facts({"text_config": CONFIG}) == facts


@pytest.mark.parametrize(
    ("change", "expert_bytes"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, 18 * 2**30),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, None),
        ({"torch_dtype": None, "dtype": None}, None),
        ({"mlp_only_layers": [0, 1]}, 36 * 2**30 * 46 / 48),
        ({"first_k_dense_replace": 12}, 27 * 2**30),
        ({"decoder_sparse_step": 2}, 18 * 2**30),
    ],
)
def test_what_the_config_does_not_tell_is_not_guessed(change: dict[str, object], expert_bytes: float | None) -> None:
    found = roofline.model_facts({**CONFIG, **change}).get("expert_bytes")
    assert (found is None) == (expert_bytes is None)
    if expert_bytes is not None and found is not None:
        assert float(found) == pytest.approx(expert_bytes, rel=1e-5)


def test_a_dense_model_has_no_experts_and_a_tied_head_is_read() -> None:
    assert roofline.model_facts({"hidden_size": 8, "vocab_size": 100, "torch_dtype": "float16", "tie_word_embeddings": True}) == {
        "num_experts": "0"
    }
    assert roofline.model_facts({"hidden_size": 8, "vocab_size": 100, "torch_dtype": "float32", "tie_word_embeddings": False}) == {
        "embedding_bytes": "3200",
        "num_experts": "0",
    }
    assert roofline.model_facts({}) == {"num_experts": "0"}


def metadata(**values: int) -> bytes:
    keys = b"".join(b"llama." + name.encode() + b"\x04\0\0\0" + value.to_bytes(4, "little") for name, value in values.items())
    return b"GGUF\x03\0\0\0" + keys


def test_a_gguf_file_tells_whether_it_is_a_mixture() -> None:
    tokenizer = b"tokenizer.ggml.model"
    assert roofline.gguf_facts(metadata(block_count=30) + tokenizer) == {"num_experts": "0"}
    mixed = metadata(block_count=30, expert_count=64, expert_used_count=8) + tokenizer
    assert roofline.gguf_facts(mixed) == {"num_experts": "64", "num_experts_per_tok": "8"}
    assert roofline.gguf_facts(metadata(block_count=30)) == {}, "cut before it is certain"
    assert roofline.gguf_facts(b"<html>" + tokenizer) == {}


def test_a_round_below_its_floor_is_a_contradiction_not_a_result() -> None:
    said = roofline.read(weight_bytes=1e12, kv_bytes=0, bandwidth_bytes_s=1e12, round_s=0.5, length=1.0)
    assert "does not hold here" in said.text


def test_model_files_are_weighed_on_the_host(tmp_path: Path) -> None:
    from leadline.engines.llamacpp import LlamaCpp

    model, draft = tmp_path / "m.gguf", tmp_path / "d.gguf"
    model.write_bytes(bytes(3000))
    draft.symlink_to(model)
    argv = ("llama-server", "-m", str(model), "-md", str(draft), "--spec-type", "draft-simple")
    parsed = LlamaCpp().parse(argv)
    assert parsed is not None

    def weighed(*words: str) -> str | None:
        told = sized(LlamaCpp(), parsed, Reported(engine="llamacpp"), log="", argv=words, target=LocalTarget())
        return dict(told.facts).get("weight_bytes")

    assert weighed(*argv) == "6000"
    assert weighed(*argv[:3]) == "3000"
    assert weighed("llama-server", "-m", str(tmp_path / "none.gguf")) is None


def recorded(name: str) -> Knowledge:
    """A journal of the H200, with what its launches' logs said about weights: the logs of the same server, recorded beside it."""
    lines = gzip.decompress((DATA / f"journals/{name}.jsonl.gz").read_bytes()).splitlines()
    known = fold(msgspec.json.decode(line, type=AnyEvent) for line in lines)
    logs = {off: (RECORDED / ("k0" if off else "k3") / "server.log").read_text() for off in (True, False)}
    parsed = SGLang().parse(("python3", "-m", "sglang.launch_server", "--model-path", "/srv/q3n"))
    assert parsed is not None

    def told(reported: Reported | None, log: str) -> Reported | None:
        if reported is None:
            return None
        found = sized(SGLang(), parsed, reported, log=log, argv=(), target=LocalTarget())
        facts = {**dict(found.facts), **roofline.model_facts(CONFIG)}
        return msgspec.structs.replace(found, facts=tuple(sorted(facts.items())))

    trials = [msgspec.structs.replace(t, reported=told(t.reported, logs[t.candidate.off])) for t in known.trials]
    return msgspec.structs.replace(known, trials=tuple(trials))


def test_the_recorded_campaign_reads_how_far_its_rounds_are_from_the_memorys_limit() -> None:
    known = recorded("h200-gain")
    assert known.began is not None
    assert known.verdict is not None
    board = Board(known, known.began.levels, known.began.found)
    said, missing = roofline.readings(board, known.verdict.points, Tune())
    assert missing == ()
    assert len(said) == len(known.verdict.points)
    times = {
        point.level.concurrency: float(text.split(" takes ")[1].split()[0]) for point, text in zip(known.verdict.points, said, strict=True)
    }
    # random weights in small kernels: far from the limit alone, nearer to it in company, never below the floor
    assert all(1.0 <= value < 6.0 for value in times.values()), said
    assert times[max(times)] < times[min(times)], said
