"""The life of a server as its log tells it: milestones, and where one run ends and the next begins."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import msgspec

from .lines import ENGINE, SYSTEMD, Line

# Order of a life. A later number is later in a good start.
ARGS, LOADING, POOLS, CAPTURING, WARMING, READY, SERVING = 1, 2, 3, 4, 5, 6, 7
NAMES = {
    0: "not started",
    1: "arguments",
    2: "loading",
    3: "sizing pools",
    4: "capturing graphs",
    5: "warming up",
    6: "ready",
    7: "serving",
}

_MARKS: tuple[tuple[int, str, str], ...] = (
    # (stage, engine, pattern on the message)
    (ARGS, "sglang", r"^server_args=ServerArgs\("),
    (ARGS, "vllm", r"^(?:non-default args: |vLLM API server version |args: Namespace\()"),
    (
        ARGS,
        "llamacpp",
        r"^(?:build: \d+ \(|(?:cmn\s+)?(?:common_param: )?(?:log_info|common_params_print_info): verbosity = |system_info: n_threads|main: (?:build|HTTP server))",
    ),
    (
        LOADING,
        "vllm",
        r"^Initializing a V[01] LLM engine|^Starting to load model |^Loading drafter model|rank \d+ in world size \d+ is assigned as",
    ),
    (LOADING, "sglang", r"^Init torch distributed begin|^Load weight begin|^Memory baseline taken"),
    (LOADING, "", r"^Loading (?:pt|safetensors|\w+)? ?(?:\w+ )?(?:checkpoint )?shards:"),
    (
        LOADING,
        "llamacpp",
        r"^(?:srv\s+)?(?:load_model|main|llama_server): loading (?:draft )?model|^llama_model_loader: loaded meta data|^load_tensors: ",
    ),
    (POOLS, "sglang", r"^Load weight end|^(?:Mamba|KV) Cache is allocated|^Memory pool end"),
    (POOLS, "vllm", r"^Model loading took |^Loading weights took |Available KV cache memory: |KV cache size: |Maximum concurrency for "),
    (POOLS, "llamacpp", r"^llama_kv_cache|^llama_context: "),
    (CAPTURING, "sglang", r"^Capture (?:\w+ )*(?:cuda|CUDA) graph (?:begin|bs)|^Capturing batches"),
    (CAPTURING, "vllm", r"^Capturing CUDA graph|^torch\.compile takes|^Graph capturing finished|^init engine \(profile"),
    (WARMING, "sglang", r"^max_total_num_tokens=\d+"),
    (WARMING, "llamacpp", r"warming up the model with an empty run"),
    (WARMING, "", r"^(?:INFO:\s+)?(?:Started server process|Waiting for application startup)"),
    (READY, "sglang", r"^The server is fired up and ready to roll"),
    (READY, "vllm", r"^Starting vLLM (?:API )?server on |^Application startup complete"),
    (READY, "llamacpp", r"(?:server is )?listening on (?:http|unix|\S+:\d+)|all slots are idle"),
    (READY, "", r"^Uvicorn running on "),
    (SERVING, "sglang", r"^Decode batch[,.]|^Prefill batch[,.]"),
    (SERVING, "vllm", r"^Engine \d+: Avg prompt throughput|^Avg prompt throughput: |^SpecDecoding metrics: "),
    (SERVING, "llamacpp", r"print_timing: |launch_slot_: |slot\s+release: |^slot update_slots: "),
    (SERVING, "", r'"(?:POST) /\S+ HTTP/[\d.]+" 2\d\d'),
)
_COMPILED = tuple((stage, engine, re.compile(pattern)) for stage, engine, pattern in _MARKS)
_RUN_STARTS = re.compile(
    r"^server_args=ServerArgs\(|^vLLM API server version |^non-default args: |^(?:cmn\s+)?(?:common_param: )?(?:log_info|common_params_print_info): verbosity = |^build: \d+ \("
)
_UNIT_STARTS = re.compile(r"^(?:Started|Starting) (?P<unit>\S+)")
_HINT = re.compile(
    r"server_args|args|build|log_info|verbosity|system_info|[Ll]oad|rank |Init|Memory|Mamba|KV|Maximum|Captur|torch\.compile|init engine|max_total|warming|Started|Waiting|fired|listening|idle|Uvicorn|Decode|Prefill|throughput|SpecDec|slot|timing|POST|Application|Model|llama|main|Graph"
)


class Mark(msgspec.Struct):
    stage: int
    engine: str
    line: Line


class Run(msgspec.Struct):
    """One start of the server within the text: ``lines[first:last]``."""

    first: int
    last: int
    marks: list[Mark]

    @property
    def reached(self) -> int:
        return max((mark.stage for mark in self.marks), default=0)

    def stage_at(self, index: int) -> int:
        """The furthest stage reached before a line."""
        return max((mark.stage for mark in self.marks if mark.line.index < index), default=0)

    def last_mark(self, stage: int) -> Line | None:
        return next((mark.line for mark in reversed(self.marks) if mark.stage == stage), None)

    def first_mark(self, stage: int) -> Line | None:
        return next((mark.line for mark in self.marks if mark.stage == stage), None)

    def progressed_after(self, index: int, stage: int = READY) -> bool:
        """Whether a milestone of ``stage`` or later follows a line: what stood there did not end the run."""
        return any(mark.stage >= stage and mark.line.index > index for mark in self.marks)


def mark_of(line: Line) -> Mark | None:
    if line.channel != ENGINE:
        return None
    if line.dull == "request":
        return Mark(stage=SERVING, engine="", line=line) if "POST /" in line.text else None
    if line.dull == "load":
        return _load(line)
    found = _stage(line.text)
    return Mark(stage=found[0], engine=found[1], line=line) if found else None


@functools.lru_cache(maxsize=8192)
def _stage(text: str) -> tuple[int, str] | None:
    if not _HINT.search(text):
        return None
    return next(((stage, engine) for stage, engine, pattern in _COMPILED if pattern.search(text)), None)


def _load(line: Line) -> Mark | None:
    """A line of figures; one in which no token came is no progress."""
    if "throughput: 0.0 tokens/s, Running" in line.text and "Running: 0 reqs" not in line.text:
        return None
    return Mark(stage=SERVING, engine="sglang" if "batch" in line.text[:14] else "vllm", line=line)


def runs(lines: Sequence[Line], ends: Sequence[int]) -> list[Run]:
    """Split at starts that follow an end (``ends``: indexes of lines after which a process is gone)."""
    found: list[Run] = []
    current = Run(first=0, last=len(lines), marks=[])
    pending = iter(sorted(ends))
    next_end = next(pending, None)
    ended = False
    for line in lines:
        while next_end is not None and next_end < line.index:
            ended, next_end = True, next(pending, None)
        starts = (not line.dull and (line.channel == ENGINE and bool(_RUN_STARTS.search(line.text)))) or (
            line.channel == SYSTEMD and bool(_UNIT_STARTS.search(line.text))
        )
        if starts and ended and line.index > current.first:
            current.last = line.index
            found.append(current)
            current, ended = Run(first=line.index, last=len(lines), marks=[]), False
        mark = mark_of(line)
        if mark:
            current.marks.append(mark)
    found.append(current)
    return found


def engine_of(all_runs: Sequence[Run], lines: Sequence[Line]) -> str | None:
    """Which engine wrote this, by its own milestones; by names in the text when there is none."""
    votes: dict[str, int] = {}
    for run in all_runs:
        for mark in run.marks:
            if mark.engine:
                votes[mark.engine] = votes.get(mark.engine, 0) + 1
    if votes:
        return max(votes, key=lambda name: votes[name])
    names = (
        ("sglang", re.compile(r"\bsglang\b")),
        ("vllm", re.compile(r"\bvllm\b|VLLM::|EngineCore")),
        ("llamacpp", re.compile(r"llama[_-]|ggml|\bgguf\b")),
    )
    for line in lines:
        for name, pattern in names:
            if pattern.search(line.raw):
                return name
    return None
