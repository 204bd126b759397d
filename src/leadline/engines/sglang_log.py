"""Reading SGLang's log: what a boot printed, how far it has come, and the acceptance of its decode lines.

Formats: sglang 0.5.9 to 0.5.23, ``managers/scheduler.py``, ``model_executor/model_runner*.py``, ``mem_cache/*``.  Lines are matched by
key and never by position; the prefix (time, rank, journal) is not looked at.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from ..records import Record
from . import Loading
from .sglang_facts import eras

GB = 1 << 30
"""SGLang prints GiB and writes GB."""
PRINTED_HALF_BYTES = GB // 200
"""A size printed with two decimals is off by at most this much."""


class Pool(Record, frozen=True):
    """One ``KV Cache is allocated`` line: tokens and bytes (rounded to 0.01 GiB a figure)."""

    tokens: int
    size_bytes: int
    figures: int
    """How many rounded figures ``size_bytes`` is the sum of."""


class StatePool(Record, frozen=True):
    """The ``Mamba Cache is allocated`` line of a hybrid model; sizes are for ``slots`` + 1 slots."""

    slots: int
    conv_bytes: int
    ssm_bytes: int
    draft_ssm_bytes: int | None = None
    draft_conv_bytes: int | None = None


class Boot(Record, frozen=True):
    """What one start printed. A field is ``None`` where the line was not printed (or not kept)."""

    arguments: tuple[tuple[str, str], ...] = ()
    """The resolved ``ServerArgs``, as printed (strings without their quotes)."""
    free_before_bytes: int | None = None
    """Free device memory before the first weights (``Load weight begin``)."""
    free_after_bytes: int | None = None
    """Free device memory after the weights that are charged to the pools' budget."""
    weight_bytes: int | None = None
    """Weights of one rank, the draft's included (``mem usage`` of every ``Load weight end`` of the first rank)."""
    draft_loaded_first: bool = False
    state: StatePool | None = None
    pools: tuple[Pool, ...] = ()
    tokens: int | None = None
    running: int | None = None
    """Effective ``max_running_requests``."""
    context: int | None = None
    free_bytes: int | None = None
    verify_tokens: int | None = None
    """``num_tokens_per_req`` of the verify graph: the true number of draft tokens (0.5.14 and later)."""
    swa_tokens: int | None = None
    failed_slots: int | None = None
    """State slots the engine computed before it gave up (0.5.13 and later)."""
    failed_rest_bytes: int | None = None
    failed_state_bytes: int | None = None
    wanted_fraction: float | None = None
    """``Raise --mem-fraction-static above X``."""
    pool_error: str = ""
    """The line with which pool sizing ended, if it did."""
    error: str = ""
    """First exception of a scheduler (its last line), if there was one."""
    ready: bool = False
    eras: tuple[str, ...] = ()
    """First releases of the sets of rules under which this may have been printed (``sglang_facts.ERAS``)."""

    def argument(self, name: str) -> str | None:
        """A resolved argument; ``None`` where absent or printed as None."""
        value = dict(self.arguments).get(name)
        return None if value is None or value == "None" else value


_NUMBER = r"(-?[\d.]+)"
_ARGUMENTS = re.compile(r"server_args=(?:ServerArgs\()?(.*)")
_ARGUMENT = re.compile(r"(?:^|[(,{ ])'?(\w+)'?\s*[=:]\s*('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\[[^\]]*\]|\{[^}]*\}|[^,)}]+)")
_CAPACITY = re.compile(r"max_total_num_tokens=(-?\d+),.*?max_running_requests=(-?\d+)")
_CONTEXT = re.compile(r"context_len=(\d+)")
_AVAILABLE = re.compile(rf"available_(?:gpu|cpu)_mem={_NUMBER} GB")
_BEGIN = re.compile(rf"Load weight begin\. avail mem={_NUMBER} GB")
_END = re.compile(rf"Load weight end\..*?avail mem={_NUMBER} GB")
_USAGE = re.compile(rf"Load weight end\..*?mem usage={_NUMBER} GB")
_RANK = re.compile(r"\bTP([1-9]\d*)\b")
_POOL_END = re.compile(r"Memory pool end\.")
_STATE = re.compile(r"Mamba Cache is allocated\..*?max_mamba_cache_size:\s*(\d+)")
_KV = re.compile(r"KV Cache is allocated\..*?#tokens:\s*(\d+)")
_SIZE = re.compile(rf"(\w+) size:\s*{_NUMBER}\s*GB")
_VERIFY = re.compile(r"Capture target verify CUDA graph begin\..*?num_tokens_per_req=(\d+)")
_SWA = re.compile(r"swa_layer_tokens=(\d+)")
_HYBRID = re.compile(
    rf"max_mamba_cache_size=(-?\d+).*?total_rest_memory={_NUMBER} GB.*?mamba_cache_per_req={_NUMBER} MB",
    re.DOTALL,
)
_FRACTION = re.compile(rf"Raise --mem-fraction-static above {_NUMBER}")
_POOL_ERRORS = (
    "Not enough memory. Please try to increase --mem-fraction-static",
    "Not enough GPU memory for hybrid (mamba/linear-attention) state cache",
    "state cache is too small to serve any requests",
    "Loaded weights leave no GPU memory for the KV cache",
    "leaves no room for the full KV pool",
    "cannot hold even one request",
)
_EXCEPTION = re.compile(r"Scheduler hit an exception:")
_ERROR_LINE = re.compile(r"^(?:\[[^\]]*\]\s*)?([\w.]*(?:Error|Exception|Interrupt)\b.*)$")


def boots(log: str) -> tuple[Boot, ...]:
    """Every start in a log (a journal may hold several), oldest first; one empty :class:`Boot` when nothing is recognised."""
    lines = log.splitlines()
    starts = [i for i, line in enumerate(lines) if "server_args=" in line]
    cuts = [0, *starts[1:], len(lines)]
    return tuple(_boot(lines[a:b]) for a, b in itertools.pairwise(cuts))


def last_boot(log: str) -> Boot:
    """The last start in the log."""
    return boots(log)[-1]


def _boot(lines: list[str]) -> Boot:
    text = "\n".join(lines)
    begun = [float(x) for x in _BEGIN.findall(text)]
    state_at = _STATE.search(text)
    kv_at = _KV.search(text)
    pools_at = min((m.start() for m in (state_at, kv_at, _POOL_END.search(text)) if m is not None), default=len(text))
    loaded = [float(m.group(1)) for m in _END.finditer(text) if m.start() < pools_at]
    capacity = _CAPACITY.search(text)
    failed = _HYBRID.search(text)
    return Boot(
        arguments=_arguments(text),
        free_before_bytes=_bytes(begun[0]) if begun else None,
        free_after_bytes=_bytes(loaded[-1]) if loaded else None,
        weight_bytes=_weights(lines),
        draft_loaded_first=len(loaded) > 1,
        state=next(_states(lines), None),
        pools=tuple(_pools(lines)),
        tokens=int(capacity.group(1)) if capacity else None,
        running=int(capacity.group(2)) if capacity else None,
        context=_integer(_CONTEXT, capacity.string[capacity.start() :]) if capacity else None,
        free_bytes=_scaled(_AVAILABLE, text),
        verify_tokens=_integer(_VERIFY, text),
        swa_tokens=_integer(_SWA, text),
        failed_slots=int(failed.group(1)) if failed else None,
        failed_rest_bytes=_bytes(float(failed.group(2))) if failed else None,
        failed_state_bytes=round(float(failed.group(3)) * (1 << 20)) if failed else None,
        wanted_fraction=_decimal(_FRACTION, text),
        pool_error=next((line for line in lines if any(key in line for key in _POOL_ERRORS)), ""),
        error=_first_error(lines),
        ready="The server is fired up and ready to roll" in text,
        eras=eras(text),
    )


def _arguments(text: str) -> tuple[tuple[str, str], ...]:
    found = _ARGUMENTS.search(text)
    if found is None:
        return ()
    pairs: dict[str, str] = {}
    for name, value in _ARGUMENT.findall(found.group(1)):
        pairs.setdefault(name, value.strip().strip("'\""))
    return tuple(sorted(pairs.items()))


def _weights(lines: list[str]) -> int | None:
    found = [_USAGE.search(line) for line in lines if not _RANK.search(line.partition("Load weight")[0])]
    sizes = [_bytes(float(one.group(1))) for one in found if one is not None]
    return sum(sizes) if sizes else None


def _states(lines: list[str]) -> Iterator[StatePool]:
    for line in lines:
        slots = _STATE.search(line)
        if slots is None:
            continue
        sizes = {name: _bytes(float(gb)) for name, gb in _SIZE.findall(line.replace("_state", "")) if gb}
        yield StatePool(
            slots=int(slots.group(1)),
            conv_bytes=sizes.get("conv", 0),
            ssm_bytes=sizes.get("ssm", 0),
            draft_ssm_bytes=sizes.get("intermediate_ssm_cache"),
            draft_conv_bytes=sizes.get("intermediate_conv_window_cache"),
        )


def _pools(lines: list[str]) -> Iterator[Pool]:
    for line in lines:
        tokens = _KV.search(line)
        if tokens is None:
            continue
        sizes = [float(gb) for name, gb in _SIZE.findall(line) if name in ("K", "V", "KV")]
        yield Pool(tokens=int(tokens.group(1)), size_bytes=sum(_bytes(gb) for gb in sizes), figures=len(sizes))


def _first_error(lines: list[str]) -> str:
    start = next((i for i, line in enumerate(lines) if _EXCEPTION.search(line)), None)
    if start is None:
        return ""
    for line in lines[start + 1 :]:
        found = _ERROR_LINE.match(line.strip())
        if found:
            return found.group(1)
    return lines[start].strip()


def _bytes(gb: float) -> int:
    return round(gb * GB)


def _integer(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(found.group(1)) if found else None


def _decimal(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return float(found.group(1)) if found else None


def _scaled(pattern: re.Pattern[str], text: str) -> int | None:
    found = _decimal(pattern, text)
    return None if found is None else _bytes(found)


_UNTUNED = re.compile(r"Using default MoE kernel config\..*? not found at \S*?/E=(\d+),N=\d+,[^/\s]*\.json")


def kernel_step_tokens(log: str) -> int | None:
    """Tokens of a round above which the experts' kernel changes to its large tiles; ``None`` where no line says so.

    Without a tuned file for this GPU and shape, ``get_default_config`` (``moe_runner/triton_utils/fused_moe_triton_config.py``) takes
    tiles of 16 tokens up to as many tokens as there are experts, and of 64 beyond; not for weights quantised in blocks.
    """
    found = _UNTUNED.search(log)
    return int(found.group(1)) if found and "block_shape=" not in found.group(0) else None


# -- while it starts ----------------------------------------------------------------------------------------------------

_SHARDS = re.compile(r"Loading .*?checkpoint.*?:\s*(\d+)%")
_CAPTURE = re.compile(r"Capturing (?:batches|num tokens).*?:\s*(\d+)%\|[^|]*\|\s*(\d+)/(\d+)")

_PHASES: tuple[tuple[str, str], ...] = (
    ("The server is fired up and ready to roll", "serving"),
    ("Decode batch", "serving"),
    ("Uvicorn running on", "warming up"),
    (", context_len=", "warming up"),
    ("Capture ", "capturing graphs"),
    ("Capturing ", "capturing graphs"),
    ("Memory pool end", "allocating"),
    ("Cache is allocated", "allocating"),
    ("Load weight end", "allocating"),
    ("Load weight begin", "loading weights"),
    ("checkpoint shards", "loading weights"),
    ("Init torch distributed", "starting"),
    ("server_args=", "starting"),
)
"""What a line tells, most specific first."""


def loading(tail: str) -> Loading:
    """Load progress from the last lines of the log; the last line that tells a phase counts."""
    for line in reversed(tail.splitlines()):
        for key, phase in _PHASES:
            if key in line:
                return Loading(phase=phase, fraction=_fraction(line, phase), line=line.strip()[:300])
    return Loading(phase="starting")


def _fraction(line: str, phase: str) -> float | None:
    if phase == "loading weights":
        shares = _SHARDS.findall(line)
        return int(shares[-1]) / 100 if shares else None
    if phase == "capturing graphs":
        steps = _CAPTURE.findall(line)
        return int(steps[-1][1]) / int(steps[-1][2]) if steps and int(steps[-1][2]) else None
    return None


# -- while it serves ----------------------------------------------------------------------------------------------------


class Decode(Record, frozen=True):
    """One ``Decode batch`` line: a mean over the last ``--decode-log-interval`` decode steps."""

    running: int
    queued: int
    tok_s: float
    accept_length: float | None = None
    """Tokens a round, bonus token included; ``None`` without speculation."""
    accept_rate: float | None = None
    """As printed; its meaning changed in 0.5.11 (see ``sglang_facts.rate_counts_bonus``)."""
    cuda_graph: bool | None = None
    after_prefill: bool = False
    """A prefill line stands between this and the previous decode line, so the step time is not clean."""

    @property
    def round_ms(self) -> float | None:
        """Mean time of a round in ms: running requests x tokens a round / throughput."""
        if self.tok_s <= 0:
            return None
        return 1000 * self.running * (self.accept_length or 1.0) / self.tok_s


_FIELDS = re.compile(r"(?:^|, |\s)#?([A-Za-z][\w -]*?(?: \(token/s\))?): (-?[\d.]+|True|False|nan)")


def decodes(log: str) -> tuple[Decode, ...]:
    """Every decode line of the log, in order."""
    found: list[Decode] = []
    prefilled = True
    for line in log.splitlines():
        if "Prefill batch" in line:
            prefilled = True
        _, mark, rest = line.partition("Decode batch")
        fields = dict(_FIELDS.findall(rest)) if mark else {}
        if "running-req" not in fields or "gen throughput (token/s)" not in fields:
            continue
        found.append(_decode(fields, prefilled))
        prefilled = False
    return tuple(found)


def _decode(fields: Mapping[str, str], prefilled: bool) -> Decode:
    graph = fields.get("cuda graph")
    return Decode(
        running=int(fields["running-req"]),
        queued=int(fields.get("queue-req", "0")),
        tok_s=float(fields["gen throughput (token/s)"]),
        accept_length=float(fields["accept len"]) if "accept len" in fields else None,
        accept_rate=float(fields["accept rate"]) if "accept rate" in fields else None,
        cuda_graph=None if graph is None else graph == "True",
        after_prefill=prefilled,
    )
