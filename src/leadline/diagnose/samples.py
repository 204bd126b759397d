"""Figures that engines print while they serve, and what was configured."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from .lines import Line


class Sample(msgspec.Struct):
    """One periodic line. ``accept_length`` counts the bonus token; ``accept_rate`` is accepted / drafted in 0..1."""

    line: Line
    running: int | None = None
    waiting: int | None = None
    usage: float | None = None
    accept_length: float | None = None
    accept_rate: float | None = None
    drafted: int | None = None
    tok_s: float | None = None
    prefill: bool = False
    cached: int | None = None


_NUM = r"(-?\d+(?:\.\d+)?|nan)"


def _get(text: str, pattern: str) -> float | None:
    match = re.search(pattern, text)
    if not match:
        return None
    value = match.group(1).replace(",", "")
    return None if value == "nan" else float(value)


def _int(value: float | None) -> int | None:
    return None if value is None else int(value)


def samples(lines: Sequence[Line]) -> list[Sample]:
    found: list[Sample] = []
    for line in lines:
        text = line.text
        if "batch" in text and text.startswith(("Decode batch", "Prefill batch")):
            found.append(
                Sample(
                    line=line,
                    running=_int(_get(text, rf"#running-req: {_NUM}")),
                    waiting=_int(_get(text, rf"#queue-req: {_NUM}")),
                    usage=_get(text, rf"(?:full )?token usage: {_NUM}"),
                    accept_length=_get(text, rf"accept len: {_NUM}"),
                    accept_rate=_get(text, rf"accept rate: {_NUM}"),
                    tok_s=_get(text, rf"gen throughput \(token/s\): {_NUM}"),
                    prefill=text.startswith("Prefill"),
                    cached=_int(_get(text, rf"#cached-token: {_NUM}")),
                )
            )
        elif "Avg prompt throughput" in text:
            found.append(
                Sample(
                    line=line,
                    running=_int(_get(text, rf"Running: {_NUM}")),
                    waiting=_int(_get(text, rf"(?:Waiting|Pending): {_NUM}")),
                    usage=(lambda u: None if u is None else u / 100)(_get(text, rf"KV cache usage: {_NUM}%")),
                    tok_s=_get(text, rf"Avg generation throughput: {_NUM}"),
                )
            )
        elif "acceptance length" in text or "Draft acceptance rate" in text:
            rate = _get(text, rf"(?:Avg )?[Dd]raft acceptance rate: {_NUM}")
            found.append(
                Sample(
                    line=line,
                    accept_length=_get(text, rf"[Mm]ean acceptance length: {_NUM}"),
                    accept_rate=None if rate is None else (rate / 100 if "%" in text or rate > 1 else rate),
                    drafted=_int(_get(text, rf"Drafted: {_NUM}")),
                )
            )
        elif "draft acceptance" in text:
            match = re.search(r"draft acceptance(?: rate)?\s*=\s*([\d.]+) \(\s*(\d+) accepted /\s*(\d+) generated\)", text)
            if match:
                found.append(
                    Sample(
                        line=line,
                        accept_rate=float(match.group(1)),
                        accept_length=_get(text, rf"mean len =\s*{_NUM}"),
                        drafted=int(match.group(3)),
                    )
                )
        elif "tokens per second" in text and "eval time" in text and "prompt eval" not in text:
            found.append(Sample(line=line, tok_s=_get(text, r"([\d.]+) tokens per second")))
        elif re.search(r"^\s*(?:Accept(?:ance)? length|spec_accept_length|acc_length|accept_length|Acceptance rate \(%\))\b", text):
            length = _get(text, rf"(?:[Aa]ccept(?:ance)?[ _]length|acc_length)\W+{_NUM}")
            rate = _get(text, rf"Acceptance rate \(%\):?\s+{_NUM}")
            found.append(Sample(line=line, accept_length=length, accept_rate=None if rate is None else rate / 100))
    return found


class Settings(msgspec.Struct):
    """What the log says was configured."""

    algorithm: str | None = None
    depth: int | None = None
    mem_fraction: float | None = None
    max_running: int | None = None
    """Effective limit of running requests."""
    asked: bool = False
    """Speculation was asked for somewhere (arguments, command line)."""
    line: Line | None = None
    draft_loaded: bool = False
    """llama.cpp loaded a draft model (which does not mean that it drafts)."""
    untyped: Line | None = None
    """A llama.cpp command with a draft model and no ``--spec-type``."""


_ARG = {
    "algorithm": re.compile(r"speculative_algorithm=(?:'([^']*)'|None)"),
    "steps": re.compile(r"speculative_num_steps=(\d+)"),
    "draft": re.compile(r"speculative_num_draft_tokens=(\d+)"),
    "mem": re.compile(r"mem_fraction_static=([\d.]+)"),
    "vllm": re.compile(
        r"'speculative_config': \{([^}]*)\}|speculative_config=SpeculativeConfig\(([^)]*)\)|--speculative-config[ =]'?(\{[^}]*\})"
    ),
    "k": re.compile(r"num_spec(?:ulative)?_tokens['\"]?\s*[:=]\s*(\d+)"),
    "method": re.compile(r"method['\"]?\s*[:=]\s*['\"](\w+)"),
}
_LLAMA_SPEC = re.compile(r"(?:^|\s)(?:-md|--model-draft|--spec-type|--draft-model|--spec-draft-model|-hfd|--hf-repo-draft)\s+(\S+)")


def settings(lines: Sequence[Line]) -> Settings:
    found = Settings()
    for line in lines:
        text = line.text
        if "speculative_algorithm" in text or "mem_fraction_static=" in text:
            algorithm = _ARG["algorithm"].search(text)
            if algorithm and algorithm.group(1):
                found.algorithm, found.asked, found.line = algorithm.group(1), True, line
            steps = _ARG["steps"].search(text)
            found.depth = int(steps.group(1)) if steps else found.depth
            mem = _ARG["mem"].search(text)
            found.mem_fraction = float(mem.group(1)) if mem else found.mem_fraction
        if "speculative_config" in text or "speculative-config" in text:
            config = _ARG["vllm"].search(text)
            if config:
                inner = next(group for group in config.groups() if group is not None)
                method, count = _ARG["method"].search(inner), _ARG["k"].search(inner)
                found.asked, found.line = True, line
                found.algorithm = method.group(1) if method else found.algorithm or "draft_model"
                found.depth = int(count.group(1)) if count else found.depth
        if "max_running_requests=" in text and text.startswith("max_total_num_tokens="):
            value = re.search(r"max_running_requests=(\d+)", text)
            found.max_running = int(value.group(1)) if value else found.max_running
        if "loading draft model" in text:
            found.asked, found.line, found.draft_loaded = True, line, True
        if "-md " in line.raw and "--spec-type" not in line.raw and "llama" in line.raw:
            found.untyped = line
        spec = None if found.draft_loaded else _LLAMA_SPEC.search(line.raw) if "llama" in line.raw or line.raw.startswith("cmd") else None
        if spec and spec.group(1) != "none":
            found.asked, found.line = True, line
    return found
