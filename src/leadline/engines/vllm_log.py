"""Reading vLLM's log: what a boot printed, how far it has come, and its periodic acceptance lines.

Formats: vllm 0.20.2, 0.25.1, 0.32.0 (recorded) and 0.33.0. Capacity stands on one line (0.32, 0.33) or two (0.20, 0.25): each half is
matched by itself. The prefix ``(EngineCore pid=1) INFO 11-29 17:15:54 [core.py:133]`` has no year and may be absent.
"""

from __future__ import annotations

import re

from ..records import Record
from . import Loading

GIB = 1 << 30


class Boot(Record, frozen=True):
    """What the last start in a log printed; ``None`` where a line is absent."""

    version: str | None = None
    model: str | None = None
    speculative: bool | None = None
    """False: the engine started without a speculative config; ``None``: no engine line."""
    method: str | None = None
    depth: int | None = None
    draft_model: str | None = None
    tokens: int | None = None
    """``KV cache size``: int(maximum concurrency x max model length), not blocks x block size."""
    concurrency: float | None = None
    """``Maximum concurrency for N tokens per request``, two decimals."""
    length: int | None = None
    available_bytes: int | None = None
    weight_bytes: int | None = None
    """``Model loading took``: the weights on one GPU, a draft's included."""
    active_limit: int | None = None
    """Running requests after ``Overriding max_num_active_seqs``."""
    asked: tuple[tuple[str, str], ...] = ()
    """``non-default args`` as printed (numbers and plain strings)."""
    needed_bytes: int | None = None
    fitting_length: int | None = None
    """``the estimated maximum model length is N`` of a start whose KV cache is below one request."""
    error: str = ""
    ready: bool = False


_ENGINE = re.compile(r"Initializing a V1 LLM engine \(v([^)]+)\) with config:")
_MODEL = re.compile(r"config: model='([^']*)'")
_SPEC = re.compile(r"speculative_config=(None|SpeculativeConfig\(([^)]*)\))")
_METHOD = re.compile(r"method='([^']*)'")
_DRAFT = re.compile(r"model='([^']*)'")
_TOKENS = re.compile(r"num_spec_tokens=(\d+)")
_SIZE = re.compile(r"KV cache size: ([\d,]+) tokens")
_CONCURRENCY = re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x")
_AVAILABLE = re.compile(r"Available KV cache memory: ([\d.]+) GiB")
_EXPLICIT = re.compile(r"Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV cache")
_WEIGHTS = re.compile(r"Model loading took ([\d.]+) GiB")
_ACTIVE = re.compile(r"Overriding max_num_(?:active_)?seqs from \d+ to (\d+)")
_ASKED = re.compile(r"non-default args: \{(.*)\}")
_PAIR = re.compile(r"'(\w+)': ('(?:[^'\\]|\\.)*'|-?[\d.]+|True|False|None)")
_NEEDED = re.compile(r"\(([\d.]+) GiB KV cache is needed")
_FITS = re.compile(r"estimated maximum model length is ([\d,]+)")
_ERROR = re.compile(r"(?:^|\] |\) )((?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception)(?:: .*|$))")
_USAGE = re.compile(r"\berror: (.*)")
_READY = ("Application startup complete", "Starting vLLM server on", "Starting vLLM API server")


def last_boot(log: str) -> Boot:
    """The last start in the log (an engine line begins a start)."""
    lines = log.splitlines()
    starts = [i for i, line in enumerate(lines) if "non-default args:" in line]
    text = "\n".join(lines[starts[-1] :]) if starts else log
    engine, spec = _ENGINE.search(text), _SPEC.search(text)
    inner = spec.group(2) or "" if spec else ""
    concurrency, asked = _CONCURRENCY.search(text), _ASKED.search(text)
    available = _first_number(_AVAILABLE, text) or _first_number(_EXPLICIT, text)
    needed = _first_number(_NEEDED, text)
    weights = _first_number(_WEIGHTS, text)
    return Boot(
        version=engine.group(1) if engine else None,
        model=_group(_MODEL, text),
        speculative=None if spec is None else spec.group(1) != "None",
        method=_group(_METHOD, inner),
        depth=_whole(_TOKENS, inner) if inner else (0 if spec else None),
        draft_model=_group(_DRAFT, inner),
        tokens=_whole(_SIZE, text),
        concurrency=float(concurrency.group(2)) if concurrency else None,
        length=int(concurrency.group(1).replace(",", "")) if concurrency else None,
        available_bytes=None if available is None else round(available * GIB),
        weight_bytes=None if weights is None else round(weights * GIB),
        active_limit=_whole(_ACTIVE, text),
        asked=tuple(sorted((name, value.strip("'")) for name, value in _PAIR.findall(asked.group(1)))) if asked else (),
        needed_bytes=None if needed is None else round(needed * GIB),
        fitting_length=_whole(_FITS, text),
        error=_first_error(text),
        ready=any(key in text for key in _READY),
    )


def _group(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found.group(1) if found else None


def _whole(pattern: re.Pattern[str], text: str) -> int | None:
    found = _group(pattern, text)
    return None if found is None else int(found.replace(",", ""))


def _first_number(pattern: re.Pattern[str], text: str) -> float | None:
    found = _group(pattern, text)
    return None if found is None else float(found)


def _first_error(text: str) -> str:
    """The first exception's last line: the root cause; what follows is fallout of other processes."""
    for line in text.splitlines():
        found = _ERROR.search(line) or _USAGE.search(line)
        if found:
            return found.group(1).strip()
    return ""


_PHASES: tuple[tuple[str, str], ...] = (
    ("Application startup complete", "serving"),
    ("Avg generation throughput", "serving"),
    ("Starting vLLM server on", "warming up"),
    ("Starting vLLM API server", "warming up"),
    ("init engine (profile", "warming up"),
    ("Graph capturing finished", "warming up"),
    ("Capturing CUDA graph", "capturing graphs"),
    ("KV cache size", "allocating"),
    ("Available KV cache memory", "allocating"),
    ("Model loading took", "allocating"),
    ("checkpoint shards", "loading weights"),
    ("to load model", "loading weights"),
    ("Loading drafter model", "loading weights"),
    ("Warming up model for the compilation", "allocating"),
    ("Initializing a V1 LLM engine", "starting"),
    ("non-default args", "starting"),
)
_SHARE = re.compile(r"(\d+)%")


def loading(tail: str) -> Loading:
    """Load progress from the last lines of the log; the last line that tells a phase counts."""
    for line in reversed(tail.splitlines()):
        for key, phase in _PHASES:
            if key in line:
                shares = _SHARE.findall(line) if phase in ("loading weights", "capturing graphs") else []
                return Loading(phase=phase, fraction=int(shares[-1]) / 100 if shares else None, line=line.strip()[:300])
    return Loading(phase="starting")


class Period(Record, frozen=True):
    """One ``SpecDecoding metrics`` line: acceptance of one logging interval (10 s)."""

    length: float
    """Mean acceptance length, bonus token included."""
    accepted: int
    drafted: int
    shares: tuple[float, ...]
    """Share of drafts whose first j tokens were all accepted, j = 1 .. depth."""


_PERIOD = re.compile(
    r"SpecDecoding metrics: Mean acceptance length: ([\d.]+|nan).*?Accepted: (\d+) tokens, Drafted: (\d+) tokens, "
    r"Per-position acceptance rate: (.*?), Avg Draft acceptance rate"
)


def periods(log: str) -> tuple[Period, ...]:
    """Every periodic acceptance line with drafts in it."""
    found = []
    for length, accepted, drafted, shares in _PERIOD.findall(log):
        if length != "nan" and int(drafted):
            split = tuple(float(share) for share in shares.split(",") if share.strip() not in ("", "nan"))
            found.append(Period(length=float(length), accepted=int(accepted), drafted=int(drafted), shares=split))
    return tuple(found)
