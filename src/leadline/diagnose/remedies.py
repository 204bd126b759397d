"""Concrete next values: what to change, from what, to what, computed from the figures in the evidence."""

from __future__ import annotations

import re

from .reading import Reading, Sign

DEFAULT_SPECULATIVE_RUNNING = 48
"""SGLang resets max_running_requests to this when speculation is on and nothing was asked for (0.5.9 .. 0.5.23)."""


def _find(reading: Reading, pattern: str) -> str | None:
    compiled = re.compile(pattern)
    for line in reversed(reading.telling):
        match = compiled.search(line.text) or compiled.search(line.raw)
        if match:
            return match.group(1)
    return None


def _option(reading: Reading, *names: str) -> str | None:
    """The value of a command-line option or resolved argument, wherever the evidence shows it."""
    for name in names:
        candidate = reading.evidence.candidate
        if candidate is not None:
            for key, value in candidate.settings:
                if key == name.replace("-", "_"):
                    return value
        under = name.replace("-", "_")
        found = _find(reading, rf"(?:--{name}[ =]|\b{under}=|'{under}': |\b{under}: )'?([\w.]+)")
        if found and found not in ("None", "null"):
            return found
    return None


def for_sign(reading: Reading, sign: Sign) -> str:
    """The remedy of a failure, with numbers where the evidence holds them; the rule's own words otherwise."""
    concrete = {
        "sglang.pool_reservation": _sglang_pool,
        "vllm.kv_one_request": _vllm_length,
        "vllm.kv_asked": _kv_asked,
        "vllm.state_blocks": _state_blocks,
        "vllm.kv_none": _kv_none,
        "llama.host_alloc": _llama_kv,
    }.get(sign.rule.id)
    if concrete is not None:
        return concrete(reading, sign)
    if sign.cls in ("memory.gpu_oom_startup", "memory.gpu_oom_runtime"):
        return _gpu_oom(reading, sign) or sign.rule.remedy
    if sign.cls == "config.invalid_argument":
        return _argument(sign)
    if sign.rule.id.startswith("toolchain.") and sign.failure is not None:
        return _install(sign) or sign.rule.remedy
    return sign.rule.remedy or _BY_CLASS.get(sign.cls, "")


_BY_CLASS = {
    "config.model_or_draft_unusable": "use the draft that was trained for this target and this algorithm, and check path and files as the service's user sees them",
    "config.invalid_argument": "correct the argument that is quoted; `--help` of the installed version lists what it knows",
    "engine.internal_error": "no setting is known to cure it: keep the lines quoted, try the previous or next version or another backend, report it",
    "host.toolchain_missing": "install the package or library that is named into the engine's own environment",
}


def _sglang_pool(reading: Reading, sign: Sign) -> str:
    running = _option(reading, "max-running-requests")
    speculative = reading.settings.asked
    if running is None or not running.isdigit():
        running = str(DEFAULT_SPECULATIVE_RUNNING) if speculative else None
    steps: list[str] = []
    if speculative and running is not None:
        # The reservation for speculation grows with running x (depth + 1): the log does not show its share, so take less than
        # half of the running requests, which leaves at least half of the memory to the caches.
        fewer = max(1, int(int(running) * 0.45) // 4 * 4 or int(int(running) * 0.45))
        steps.append(f"--max-running-requests {fewer} (now {running}: the reservation for speculation is made per configured request)")
    asked = re.search(r"Raise --mem-fraction-static above ([\d.]+)", sign.failure.body if sign.failure else sign.text)
    fraction = reading.settings.mem_fraction
    if asked:
        steps.append(f"--mem-fraction-static {float(asked.group(1)) + 0.01:.2f}")
    elif fraction is not None:
        step = 0.10 if fraction < 0.75 else 0.02
        steps.append(f"--mem-fraction-static {fraction:.2f} -> {min(0.95, fraction + step):.2f} (watch the graphs: this eats their slack)")
    if reading.settings.depth and reading.settings.depth > 1:
        steps.append(f"a smaller depth than {reading.settings.depth}")
    return "; or ".join(steps) or "fewer --max-running-requests, a smaller depth, or a larger --mem-fraction-static"


def _vllm_length(reading: Reading, sign: Sign) -> str:
    body = sign.failure.body if sign.failure else sign.text
    fits = re.search(r"estimated maximum model length is (\d+)|stored in KV cache \((\d+)\)", body)
    length = next((g for g in fits.groups() if g), None) if fits else None
    used = _option(reading, "gpu-memory-utilization") or "0.92"
    raise_to = (
        f"--gpu-memory-utilization {used} -> {min(0.97, float(used) + 0.03):.2f}"
        if _number(used) and float(used) < 0.97
        else "more KV memory"
    )
    return f"--max-model-len {length}, or {raise_to}" if length else f"a smaller --max-model-len, or {raise_to}"


def _kv_asked(reading: Reading, sign: Sign) -> str:
    body = sign.failure.body if sign.failure else sign.text
    have = re.search(r"\(([\d.]+)/([\d.]+) GiB\)", body)
    return (
        f"ask for less KV cache than the {have.group(1)} GiB that are free (--kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE)"
        if have
        else "ask for less KV cache than is free"
    )


def _state_blocks(reading: Reading, sign: Sign) -> str:
    body = sign.failure.body if sign.failure else sign.text
    most = re.search(r"(?:at most|blocks \()\s*(\d+)", body)
    return f"--max-num-seqs {most.group(1)}" if most else "a smaller --max-num-seqs"


def _kv_none(reading: Reading, sign: Sign) -> str:
    used = _option(reading, "gpu-memory-utilization")
    now = float(used) if used and _number(used) else 0.92
    return f"--gpu-memory-utilization {now:.2f} -> {min(0.97, now + 0.03):.2f}, a smaller --max-num-seqs, or a larger tensor parallel size"


def _llama_kv(reading: Reading, sign: Sign) -> str:
    context = _find(reading, r"(?:-c|--ctx-size) (\d+)")
    return f"-c {context} -> -c {max(512, int(context) // 2)}, fewer -np, or -ctk q8_0 -ctv q8_0" if context else sign.rule.remedy


def _number(text: str) -> bool:
    return bool(re.fullmatch(r"\d+(?:\.\d+)?", text))


def _gpu_oom(reading: Reading, sign: Sign) -> str:
    body = sign.failure.body if sign.failure else sign.text
    if reading.engine == "llamacpp" or "ggml" in body or ("buffer" in body and "cuda" in body.lower() and "Tried to allocate" not in body):
        return "fewer layers on the GPU (-ngl), a smaller -c or -np, a quantised cache, or leave -fit on"
    tried, total = re.search(r"Tried to allocate ([\d.]+) ([GM])iB", body), re.search(r"total capacity of ([\d.]+) GiB", body)
    share = 0.02
    if tried and total:
        size = float(tried.group(1)) / (1024 if tried.group(2) == "M" else 1)
        share = min(0.30, max(0.02, round(size / float(total.group(1)) + 0.01, 2)))
    if reading.engine == "vllm":
        used = _option(reading, "gpu-memory-utilization")
        now = float(used) if used and _number(used) else 0.92
        return f"--gpu-memory-utilization {now:.2f} -> {now - share:.2f}, or a smaller --max-num-seqs or depth"
    fraction = reading.settings.mem_fraction
    depth = reading.settings.depth
    lower = f"--mem-fraction-static {fraction:.2f} -> {fraction - share:.2f}" if fraction else f"--mem-fraction-static lower by {share:.2f}"
    running = reading.settings.max_running
    more = f", or --max-running-requests {max(1, int(running * 0.75))}" if running else ""
    return f"{lower}{more}{f', or a smaller depth than {depth}' if depth and depth > 1 else ''}"


def _argument(sign: Sign) -> str:
    body = sign.failure.body if sign.failure else sign.text
    unknown = re.search(r"unrecognized arguments?: (.+)$", body, re.MULTILINE)
    if unknown:
        return f"remove or correct `{unknown.group(1).strip()[:120]}`: this version does not know it"
    removed = re.search(r"has been removed\.? use ([^\n]+)", body)
    if removed:
        return f"use {removed.group(1).strip()[:120]}"
    return _BY_CLASS["config.invalid_argument"]


def _install(sign: Sign) -> str:
    body = sign.failure.body if sign.failure else sign.text
    install = re.search(r"`?(pip install [\w.=\[\]<>~, -]+)`?", body)
    if install:
        return install.group(1).strip()
    module = re.search(r"No module named '([\w.]+)'", body)
    if module:
        return f"install the package that provides `{module.group(1)}` into the engine's environment"
    missing = re.search(r"(?:No such file or directory: |: )'?([\w/.+-]*(?:nvcc|gcc|g\+\+|ninja|clang|ptxas|ldconfig))'?", body)
    return f"install {missing.group(1)} where the service finds it (PATH, CUDA_HOME)" if missing else ""
