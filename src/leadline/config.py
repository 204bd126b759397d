"""``leadline.toml``: everything a flag can say. Unknown keys and wrong types are errors that name the place.

>>> parse('[tune]\\nobjective = "peak"\\n', "leadline.toml").tune.objective
'peak'
"""

from __future__ import annotations

import difflib
import re
import tomllib
from typing import Annotated, Literal, get_args, get_origin

import msgspec

from .errors import BadLevels, ConfigError
from .records import Level, Record

Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]


OBSERVED = "observed"
"""The objective that takes its mix from the service's own traffic."""


class Tune(Record, frozen=True):
    """What is looked for, and when to stop looking."""

    objective: str = "balanced"
    """``single`` (one stream), ``peak`` (highest throughput), ``balanced`` (geometric mean over the levels), a traffic mix
    ``"1:0.7,4:0.3"`` (concurrency:share), ``observed`` (that mix, from the service's own traffic: ``[traffic]``), or ``goodput``."""
    min_gain: Share = 0.03
    """A change must be worth this much before it is recommended (ratio above 1)."""
    tie: Share = 0.01
    """Candidates within this much of the best are tied; the smaller depth wins."""
    confidence: Share = 0.90
    max_launches: Count = 16
    max_minutes: Positive = 60.0
    max_down_minutes: Positive = 60.0
    depths: tuple[int, ...] = ()
    """Depths to consider; empty = what the engine's adapter offers."""
    algorithms: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    """Candidates to launch in any case, as labels: ``"EAGLE 10"``."""
    ttft_ms: float | None = None
    """Goodput limit on TTFT."""
    tpot_ms: float | None = None
    """Goodput limit on TPOT."""
    memory_gb_s: Positive | None = None
    """Memory bandwidth of one GPU (of the host, where it computes on its CPUs) in GB/s, where leadline does not know it."""


class Measure(Record, frozen=True):
    """How a level is played."""

    concurrency: tuple[int, ...] = (1, 4)
    workloads: tuple[str, ...] = ("chat",)
    max_tokens: Count = 64
    input_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Input tokens of a request by the server's count: built-in prompts get so much text; 0 = they stay as they are."""
    prompts: Count = 2
    """Least requests of a block: a block at concurrency c plays max(prompts, waves * c * turns) requests; turns: mean of a file's sessions."""
    waves: Count = 1
    """Requests of each client in a block. More than one where the engine runs fewer at once than are open: the last ones run half empty."""
    explore_blocks: Count = 2
    confirm_blocks: Count = 4
    max_blocks: Count = 12
    precision: Share = 0.03
    """A level is done when the half width of its interval is below this share."""
    level_limit_s: Positive = 120.0
    idle_timeout_s: Positive = 60.0
    warmup_requests: Count = 1
    seed: int = 1
    cache: Literal["cold", "warm", "production"] = "cold"
    """Prefix-cache state: ``cold`` (a nonce makes every prompt new), ``warm`` or ``production``."""
    temperature: float = 0.0


class Traffic(Record, frozen=True):
    """Where the objective ``observed`` takes the traffic mix from: one of the two."""

    watch_minutes: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Watch the service's own figures for so long before the plan; 0 = do not."""
    poll_s: Positive = 1.0
    prometheus: str = ""
    """Address of a Prometheus server that scrapes the service: its last ``hours`` are asked for."""
    match: str = ""
    """Label matchers that pick the service's series there: ``instance="gpu1:30000"``."""
    hours: Positive = 1.0


class Readiness(Record, frozen=True):
    """When a start counts as late or hung: by progress, never by a fixed sleep."""

    still_s: Positive = 120.0
    """No new log line and no CPU time for this long = hung."""
    limit_s: Positive = 3600.0
    poll_s: Positive = 0.1


class Deploy(Record, frozen=True):
    """How a launch is put in place, and taken away."""

    stop_grace_s: Positive = 10.0
    deadman_s: Positive = 180.0
    """On a remote host: the service is restored this long after leadline stopped renewing."""
    free_timeout_s: Positive = 60.0
    log_limit_bytes: Count = 32 << 20
    allow_gpu_neighbours: bool = False


class Settings(Record, frozen=True):
    """The whole of ``leadline.toml``."""

    target: str = ""
    tune: Tune = Tune()
    measure: Measure = Measure()
    traffic: Traffic = Traffic()
    ready: Readiness = Readiness()
    deploy: Deploy = Deploy()


def levels(measure: Measure) -> tuple[Level, ...]:
    """Every workload at every concurrency, in the order given. Raises :class:`~leadline.errors.BadLevels`."""
    wrong = [c for c in measure.concurrency if c < 1]
    if wrong or not measure.concurrency:
        raise BadLevels(levels=",".join(map(str, measure.concurrency)) or "(none)", why="a concurrency counts open requests")
    if len(set(measure.concurrency)) != len(measure.concurrency):
        raise BadLevels(levels=",".join(map(str, measure.concurrency)), why="one stands there twice")
    return tuple(Level(workload=w, concurrency=c) for w in measure.workloads for c in measure.concurrency)


def parse(text: str, place: str) -> Settings:
    """Read the text of a ``leadline.toml``. Raises :class:`~leadline.errors.ConfigError` naming file, line and key."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(place=place, what=f"not valid TOML: {error}", fix="correct the line named above") from None
    try:
        return msgspec.convert(raw, Settings)
    except msgspec.ValidationError as error:
        raise _explained(str(error), text, place) from None


def _explained(message: str, text: str, place: str) -> ConfigError:
    path = re.search(r"at `\$\.?([^`]*)`", message)
    section = path.group(1) if path else ""
    unknown = re.search(r"unknown field `([^`]+)`", message)
    if unknown:
        key = unknown.group(1)
        known = _fields(section)
        close = difflib.get_close_matches(key, known, 1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return ConfigError(
            place=_where(text, place, section, key), what=f"unknown key {key!r}", fix=f"{hint}known keys here: {', '.join(known)}"
        )
    section, _, key = section.split("[")[0].rpartition(".")
    choices = _choices(section, key)
    return ConfigError(
        place=_where(text, place, section, key),
        what=message.split(" - ")[0],
        fix=f"{key} is one of: {', '.join(choices)}" if choices else "give a value of that kind",
    )


def _choices(section: str, key: str) -> tuple[str, ...]:
    """The values that a key with fixed values takes."""
    kind = next((f.type for f in msgspec.structs.fields(_node(section)) if f.name == key), None)
    return get_args(kind) if get_origin(kind) is Literal else ()


def _fields(section: str) -> list[str]:
    return [f.name for f in msgspec.structs.fields(_node(section))]


def _node(section: str) -> type[msgspec.Struct]:
    node: type[msgspec.Struct] = Settings
    for name in filter(None, section.split(".")):
        kind = next((f.type for f in msgspec.structs.fields(node) if f.name == name), None)
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            break
        node = kind
    return node


def _where(text: str, place: str, section: str, key: str) -> str:
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[([^\]]+)\]", line)
        if header:
            current = header.group(1).strip()
            if not section and current.split(".")[0] == key:
                return f"{place}:{number}"
        elif current == section and re.match(rf"\s*\"?{re.escape(key)}\"?\s*[.=]", line):
            return f"{place}:{number} [{section}]" if section else f"{place}:{number}"
    return f"{place} [{section}]" if section else place
