"""The doctor's shell: reading files of any kind, gathering from a host, masking, output and exit status."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leadline import doctor, logs
from leadline.diagnose import diagnose
from leadline.errors import BadTarget, ConfigError, HostCommandFailed
from leadline.mask import HIDDEN, mask
from leadline.records import Candidate, Evidence, Exit, Source
from leadline.target import Completed
from leadline.unitevidence import MARK, gather, split

DATA = Path(__file__).parent / "data"
CASES = sorted((DATA / "cases").glob("*.log"))
CRASH = DATA / "recordings/sglang-0.5.12.post1-h200/k10-crash/server.log"


def judge(text: str, symptom: str = "", **rest: object) -> str:
    return diagnose(Evidence(sources=(Source(name="log", text=text),), symptom=symptom, **rest))[0].cls  # type: ignore[arg-type]


# -- files ----------------------------------------------------------------------------------------------------------------


def test_files_are_recognised_by_what_they_hold(tmp_path: Path) -> None:
    folder = DATA / "recordings/systemd/c05-oom-delegate"
    evidence = logs.evidence_from_logs(
        [folder / name for name in ("systemctl-show.txt", "journal.json", "kernel.txt", "journal-short-iso.txt")]
    )
    kinds = [source.name.partition(":")[0] for source in evidence.sources]
    assert kinds == ["unit", "journal", "kernel", "journal"]
    assert diagnose(evidence)[0].cls == "memory.host_oom_kill"
    assert logs.kind_of("dmesg.txt", "odd text\n") == "kernel"
    assert logs.kind_of("x", "") == "log"


@pytest.mark.parametrize("form", ["gz", "utf16", "spoiled", "crlf", "torn"])
def test_a_log_in_any_state_is_read(tmp_path: Path, form: str) -> None:
    raw = CRASH.read_bytes()
    path = tmp_path / "server.log"
    match form:
        case "gz":
            path.write_bytes(gzip.compress(raw))
        case "utf16":
            path.write_bytes(raw.decode().encode("utf-16"))
        case "spoiled":
            path.write_bytes(b"\x00\xff\xfe\x80" * 50 + b"\n" + raw.replace(b"Load weight", b"Load\xff weight") + b"\x00" * 300)
        case "crlf":
            path.write_bytes(raw.replace(b"\n", b"\r\n"))
        case _:
            path.write_bytes(raw[5000:-7])
    assert diagnose(logs.evidence_from_logs([path]))[0].cls == "memory.kv_pool_too_small"


def test_a_large_log_keeps_head_tail_and_what_may_decide_with_true_line_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WHOLE_BYTES", 200_000), ("HEAD_BYTES", 40_000), ("TAIL_BYTES", 60_000), ("CHUNK_BYTES", 64_000)):
        monkeypatch.setattr(logs, name, value)
    crash = (DATA / "cases/06.log").read_text().partition("roll!\n")[2]
    filler = "[2026-09-07 14:06:49] rank 2: Connection closed by peer\n" * 8000
    text = "[2026-09-07 14:01:46] The server is fired up and ready to roll!\n" + filler + crash + filler
    path = tmp_path / "big.log"
    path.write_text(text)
    evidence = logs.evidence_from_logs([path])
    assert len(evidence.sources) > 2
    assert all(source.truncated for source in evidence.sources)
    assert sum(len(source.text) for source in evidence.sources) < 300_000
    head = diagnose(evidence)[0]
    assert head.cls == "memory.gpu_oom_runtime"
    lines = text.split("\n")
    assert all(quote.text in lines[quote.line - 1] for quote in head.quotes)


def test_a_file_without_line_ends_stays_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "WHOLE_BYTES", 100_000)
    monkeypatch.setattr(logs, "CHUNK_BYTES", 64_000)
    path = tmp_path / "one-line.log"
    path.write_bytes(b"x" * 1_000_000)
    assert diagnose(logs.evidence_from_logs([path]))[0].cls == "unknown"


def test_unreadable_files_are_errors_of_leadline(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        logs.evidence_from_logs([tmp_path / "absent.log"])
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(b"x" * 10000)[:40])
    with pytest.raises(ConfigError):
        logs.evidence_from_logs([broken])


# -- never an exception ------------------------------------------------------------------------------------------------------

JUNK = st.sampled_from(
    ["\x00", "\x1b[31m", "\ufffd", "\r", "\n\n", "Traceback (most recent call last):\n", "==> kernel <==\n", "{\"MESSAGE\": [1, 2]}\n", "[rank1]: ", "RuntimeError", ": ",
     "Result=signal\n", "oom-kill:pid=x,task=,,=\n", "NVRM: Xid (PCI:0): 79, pid=\n", "accept len: nan", "GET http://x/health -> 503\n", "During handling of the above exception\n", "|" * 50]
)  # fmt: skip


@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    first=st.sampled_from(CASES), second=st.sampled_from(CASES), cut=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    inserts=st.lists(st.tuples(st.floats(0, 1), JUNK), max_size=6), shuffle=st.randoms(use_true_random=False), symptom=st.sampled_from(["", "it dies", "slow, 3 tok/s", "is anything wrong?", "gibberish"]),
)  # fmt: skip
def test_a_thousand_mutated_logs_raise_nothing(first, second, cut, inserts, shuffle, symptom) -> None:  # type: ignore[no-untyped-def]
    """Cut, spliced, shuffled and spoiled logs: always a verdict of a known shape, never an exception."""
    a, b = first.read_text(errors="replace"), second.read_text(errors="replace")
    text = a[: int(cut[0] * len(a))] + b[int(cut[1] * len(b)) :]
    for place, junk in inserts:
        at = int(place * len(text))
        text = text[:at] + junk + text[at:]
    lines = text.split("\n")
    if shuffle.random() < 0.3:
        shuffle.shuffle(lines)
    findings = diagnose(Evidence(sources=(Source(name="log", text="\n".join(lines)),), symptom=symptom))
    assert findings
    assert findings[0].confidence in ("certain", "likely", "possible", "unknown")
    assert sum(len(finding.quotes) for finding in findings) <= 5
    json.loads(doctor.as_json(findings))
    assert doctor.as_text(findings)


# -- evidence from a host and an address ------------------------------------------------------------------------------------


class ScriptedHost:
    """A target that answers one command with prepared text, and remembers what it was asked."""

    name = "scripted"

    def __init__(self, output: str) -> None:
        self.output, self.asked = output, []  # type: ignore[var-annotated]

    def run(self, argv: Sequence[str], *, timeout_s: float = 30.0, stdin: bytes = b"", root: bool = False) -> Completed:
        self.asked.append((tuple(argv), stdin))
        return Completed(argv=tuple(argv), status=0 if self.output else 3, stdout=self.output.encode(), stderr=b"")


def test_one_round_trip_gathers_every_layer_and_masks_secrets() -> None:
    output = f"motd\n{MARK}systemctl show\nId=a.service\nEnvironment=HF_TOKEN=hf_abcdefghijkl\n\n{MARK}journal\nHint: You are currently not seeing messages from other users and the system.\n\n{MARK}cgroup\n\n{MARK}end\n"
    host = ScriptedHost(output)
    evidence = gather(host, "a.service", scope=("--user",), env=("XDG_RUNTIME_DIR=/run/user/1",), invocation="", group="", exit_=None)  # type: ignore[arg-type]
    assert len(host.asked) == 1
    assert host.asked[0][0][:3] == ("env", "XDG_RUNTIME_DIR=/run/user/1", "sh")
    assert [source.name for source in evidence.sources] == ["systemctl show", "journal"]
    assert HIDDEN in evidence.get("systemctl show")
    assert "hf_abc" not in evidence.get("systemctl show")
    assert "may not read the journal" in evidence.get("journal")
    with pytest.raises(HostCommandFailed, match="ended with 3"):
        gather(ScriptedHost(""), "a.service", scope=(), env=(), invocation="", group="", exit_=None)  # type: ignore[arg-type]
    assert split("nothing of ours") == ()


def test_this_machine_answers_the_evidence_script() -> None:
    from leadline.target import LocalTarget

    evidence = gather(LocalTarget(), "no-such-unit.service", scope=(), env=(), invocation="", group="", exit_=None)
    assert {"disk", "memory"} <= {source.name for source in evidence.sources}


def test_a_figure_of_which_only_the_point_is_left_is_none() -> None:
    judge(
        "============ Serving Benchmark Result ============\nMean TPOT (ms):   10.5\nMean ITL (ms):    .\n", "what do these figures mean?"
    )


def test_an_address_alone() -> None:
    from leadline.target import free_port

    findings = doctor.examine(f"http://127.0.0.1:{free_port()}")
    assert findings[0].cls == "unknown"
    assert "nothing answers" in findings[0].summary
    up = Evidence(sources=(Source(name="http", text="GET http://h/health -> 200\nGET http://h/v1/models -> 200 {}"),))
    assert diagnose(up)[0].cls == "healthy"
    dead = Evidence(sources=(Source(name="http", text="GET http://h/health -> 503"),))
    assert diagnose(dead)[0].cls == "unknown"
    silent = Evidence(sources=(Source(name="http", text="GET http://h/health -> 000 ReadTimeout: timed out"),))
    assert diagnose(silent)[0].cls == "engine.hang"


def test_a_unit_that_was_ready_and_does_not_answer_hangs() -> None:
    unit = Source(name="systemctl show", text="Id=a.service\nActiveState=active\nSubState=running\nResult=success\n")
    journal = Source(name="journal", text="Mar 01 11:00:00 h vllm[9]: INFO:     Uvicorn running on http://127.0.0.1:8000\n")
    http = Source(name="http", text="GET http://127.0.0.1:8000/health -> 000")
    assert diagnose(Evidence(sources=(unit, journal, http)))[0].cls == "engine.hang"
    assert diagnose(Evidence(sources=(unit, journal)))[0].cls == "healthy"


def test_targets_that_cannot_be_examined_are_refused() -> None:
    with pytest.raises(BadTarget, match=r"\(nothing\)"):
        doctor.evidence_of(None)
    with pytest.raises(BadTarget):
        doctor.evidence_of("process:sleep 5")


# -- output -------------------------------------------------------------------------------------------------------------------


def test_the_object_for_programs() -> None:
    findings = doctor.examine(None, [CRASH])
    shown = json.loads(doctor.as_json(findings))
    assert (shown["verdict"], shown["phase"]) == ("failed", "crashed")
    first = shown["findings"][0]
    assert first["class"] == "memory.kv_pool_too_small"
    assert first["evidence"][0] == {
        "source": "log",
        "line_number": 65,
        "text": "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    }
    assert first["retry"] is False
    assert doctor.exit_status(findings) == 1
    text = doctor.as_text(findings)
    assert text.startswith("FAILED: memory.kv_pool_too_small")
    assert "Next\n  --max-running-requests 20" in text
    assert len(text.splitlines()) < 40


def test_exit_status_of_healthy_and_unknown() -> None:
    healthy = diagnose(Evidence(sources=(Source(name="log", text="The server is fired up and ready to roll!"),)))
    assert doctor.exit_status(healthy) == 0
    assert doctor.exit_status(diagnose(Evidence())) == 2
    assert "UNKNOWN" in doctor.as_text(diagnose(Evidence()))


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("--api-key s3cr3tvalue --port 1", "s3cr3tvalue"),
        ("--api-key=s3cr3tvalue", "s3cr3tvalue"),
        ("api_key='s3cr3tvalue', port=1", "s3cr3tvalue"),
        ("'hf_token': 's3cr3tvalue'", "s3cr3tvalue"),
        ("Environment=HF_TOKEN=hf_abcdefghij OTHER=1", "hf_abcdefghij"),
        ("Authorization: Bearer abcdefgh12345678", "abcdefgh12345678"),
        ("https_proxy=http://user:pa55word@proxy:3128", "pa55word"),
        ("OPENAI_API_KEY=sk-abcdefghijklmnop", "sk-abcdefghijklmnop"),
        ('{"password": "hunter22"}', "hunter22"),
    ],
)
def test_secrets_are_masked(text: str, secret: str) -> None:
    assert secret not in mask(text)
    assert mask(mask(text)) == mask(text)


@pytest.mark.parametrize(
    "text",
    [
        "max_total_num_tokens=515221",
        "--max-tokens 64",
        "tokenizer_path='/models/q'",
        "token usage: 0.15",
        "--tokenizer-mode auto",
        "num_speculative_tokens: 3",
        "api_key=None",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert mask(text) == text


def test_a_quoted_secret_is_masked(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("launch_server.py: error: unrecognized arguments: --api-keys --api-key topsecretvalue\n")
    findings = doctor.examine(None, [path])
    assert "topsecretvalue" not in doctor.as_json(findings) + doctor.as_text(findings)


# -- phases, loops, campaigns ---------------------------------------------------------------------------------------------------


def test_a_young_start_after_a_crash_is_a_loop_not_health() -> None:
    unit = Source(name="systemctl show", text="Id=a.service\nActiveState=active\nSubState=running\nResult=success\nNRestarts=2\n")
    text = "\n".join(
        f"Mar 01 11:00:{n:02} h systemd[1]: {line}"
        for n, line in enumerate(["Started a.service - LLM.", "a.service: Main process exited, code=killed, status=9/KILL", "a.service: Scheduled restart job, restart counter is at 2.", "Started a.service - LLM."])
    )  # fmt: skip
    head = diagnose(Evidence(sources=(unit, Source(name="journal", text=text))))[0]
    assert head.cls != "healthy"
    assert head.phase == "restarting in a loop"


def test_an_old_crash_does_not_make_a_serving_server_ill() -> None:
    crash = (DATA / "cases/06.log").read_text()
    again = crash.replace("14:0", "16:0").partition("[2026-09-07 16:05:49 TP3]")[0]
    start = "[2026-09-07 16:00:00] server_args=ServerArgs(model_path='/m', tp_size=4)\n"
    assert judge(crash + start + again) == "healthy"
    assert judge(crash + start + again, "why did it crash?") == "memory.gpu_oom_runtime"


def test_the_candidate_tried_gives_the_remedy_its_numbers() -> None:
    candidate = Candidate(algorithm="EAGLE", depth=8, settings=(("max_running_requests", "64"),))
    text = (
        "[2026-08-02 10:00:00] server_args=ServerArgs(speculative_algorithm='EAGLE', speculative_num_steps=8, mem_fraction_static=0.8)\n"
        + (
            "[2026-08-02 10:00:32] Scheduler hit an exception: Traceback (most recent call last):\n"
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n[2026-08-02 10:00:33] Received sigquit from a child process.\n"
        )
    )
    head = diagnose(Evidence(sources=(Source(name="log", text=text),), candidate=candidate, exit=Exit(signal=9)))[0]
    assert "--max-running-requests 28 (now 64" in head.remedy
    assert "0.80 -> 0.82" in head.remedy


@pytest.mark.parametrize(
    ("properties", "error", "named"),
    [
        ("RestrictAddressFamilies=AF_UNIX\nResult=exit-code", "OSError: [Errno 97] Address family not supported by protocol", "RestrictAddressFamilies"),
        ("DevicePolicy=closed\nDeviceAllow=char-pts rw\nResult=exit-code", "RuntimeError: No CUDA GPUs are available", "DevicePolicy"),
        ("MemoryDenyWriteExecute=yes\nResult=exit-code", "OSError: failed to mmap executable memory: Operation not permitted", "MemoryDenyWriteExecute"),
        ("PrivateNetwork=yes\nResult=exit-code", "OSError: [Errno 101] Network is unreachable: Operation not permitted", "PrivateNetwork"),
        ("PrivateIPC=yes\nResult=exit-code", "PermissionError: [Errno 13] Permission denied: '/psm_1'", "PrivateIPC"),
        ("ProtectHome=yes\nResult=exit-code", "PermissionError: [Errno 13] Permission denied: '/root/.cache'", "ProtectHome"),
        ("ProtectSystem=strict\nResult=exit-code", "OSError: [Errno 30] Read-only file system: '/opt/cache'", "ProtectSystem"),
        ("IPAddressDeny=::/0 0.0.0.0/0\nIPAddressAllow=\nResult=exit-code", "RuntimeError: Engine process failed to start. See stack trace for the root cause.", "IPAddressDeny"),
    ],
)  # fmt: skip
def test_hardening_is_named_where_it_explains_the_failure(properties: str, error: str, named: str) -> None:
    text = f'Traceback (most recent call last):\n  File "/opt/x.py", line 1, in main\n    run()\n{error}\n==> systemctl show <==\n{properties}\n'
    head = diagnose(Evidence(sources=(Source(name="log", text=text),)))[0]
    assert head.cls == "supervisor.sandbox_blocked"
    assert named in head.summary or named in "".join(quote.text for quote in head.quotes)


def test_hardening_explains_nothing_where_the_engine_names_another_cause() -> None:
    text = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n==> systemctl show <==\nPrivateDevices=no\nProtectSystem=strict\nRestrictAddressFamilies=AF_INET\nResult=signal\n"
    assert judge(text) == "memory.kv_pool_too_small"
