"""How many requests a service has in hand, over time: watched on its own endpoints, or asked of a Prometheus server.

An engine tells what it does *now* and keeps no history.  So the last hour is had where somebody recorded it (Prometheus, by the
engine's own gauges), or the next minutes are watched, before anything is touched.  What the samples mean is thought in
:mod:`leadline.objective`.

Formats: Prometheus HTTP API v1, ``/api/v1/query_range`` (prometheus.io/docs, "HTTP API", "Range queries").
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from . import endpoints
from .config import OBSERVED, Settings, Traffic
from .engines import Engine
from .engines.prometheus import RANKS
from .errors import ConfigError, TrafficUnknown
from .records import Record, TrafficSample
from .supervisor import Supervisor
from .words import duration

STEP_S = 15.0
"""Resolution of what Prometheus is asked for: its usual scrape interval."""
AUTHORIZATION = "LEADLINE_PROMETHEUS_AUTHORIZATION"
"""Environment variable with the value of the ``Authorization`` header for Prometheus: ``Bearer ...`` or ``Basic ...``."""
MOST_MISSED = 0.5
"""Share of the looks that may go unanswered."""
MENTION_EVERY_S = 30.0
_BY_HAND = "or write the mix by hand, for example --objective 1:0.7,4:0.3"


class Gathered(Record, frozen=True):
    """Samples with where they come from."""

    source: str
    samples: tuple[TrafficSample, ...]
    longest_s: float
    """A sample stands for no more than this: what lies between two samples further apart is not known."""


def check(settings: Settings) -> None:
    """Refuse settings that name no source for ``observed``, two of them, or one that nothing uses. Raises ConfigError."""
    wanted, observed = settings.traffic, settings.tune.objective.strip() == OBSERVED
    named = bool(wanted.watch_minutes or wanted.prometheus)
    if observed and not named:
        raise ConfigError(
            place="[tune] objective = 'observed'",
            what="nothing says where the traffic is observed",
            fix=f"add --observe-traffic 10m to watch the service, or --prometheus URL for the last hour, {_BY_HAND}",
        )
    if named and not observed:
        fix = f'set objective = "{OBSERVED}" in [tune], or leave [traffic] out'
        raise ConfigError(place="[traffic]", what=f"traffic is to be observed, but the objective is {settings.tune.objective!r}", fix=fix)
    check_source(wanted)


def check_source(wanted: Traffic) -> None:
    """Refuse two sources, and an address that is none or that carries a secret. Raises ConfigError."""
    place, url = "[traffic]", wanted.prometheus
    if url and wanted.watch_minutes:
        raise ConfigError(place=place, what="both watch_minutes and prometheus are given", fix="give one of them")
    if not url:
        return
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(place=place, what=f"{url!r} is no address of a Prometheus server", fix="write for example http://127.0.0.1:9090")
    if parts.username is not None or parts.password is not None:
        what = "the address of the Prometheus server carries a password, which would stand in the journal"
        raise ConfigError(place=place, what=what, fix=f"leave it out and set {AUTHORIZATION}='Basic ...' (or 'Bearer ...')")


def gather(
    supervisor: Supervisor,
    engine: Engine,
    port: int,
    wanted: Traffic,
    *,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
    notify: Callable[[str], None] = lambda text: None,
) -> Gathered:
    """The samples that ``wanted`` asks for; the service is only looked at. Raises TrafficUnknown."""
    if wanted.prometheus:
        notify(f"asking {wanted.prometheus} for the last {duration(wanted.hours * 3600)}")
        return ask(engine, wanted, now_s=now())
    if not supervisor.service().running:
        raise TrafficUnknown(
            source=supervisor.target_name,
            why="the service does not run, so nobody sends it requests",
            fix=f"start it and run the same command, or add --prometheus URL, {_BY_HAND}",
        )
    with supervisor.target.forward(port) as local:
        return watch(f"http://127.0.0.1:{local}", engine, wanted, now=now, sleep=sleep, notify=notify)


# -- watched -----------------------------------------------------------------------------------------------------------


def watch(
    base_url: str,
    engine: Engine,
    wanted: Traffic,
    *,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
    notify: Callable[[str], None] = lambda text: None,
) -> Gathered:
    """Look every ``poll_s`` for ``watch_minutes``. Raises TrafficUnknown when the engine does not tell or stops telling."""
    source = f"{engine.name}'s own endpoints, looked at every {wanted.poll_s:g} s"
    begin = mentioned = now()
    end = begin + wanted.watch_minutes * 60
    samples: list[TrafficSample] = []
    looks = 0
    while (at := now()) <= end:
        found = _look(base_url, engine, at)
        looks += 1
        if found is None and not samples:
            raise _untold(base_url, engine)
        if found is not None:
            samples.append(found)
        if at - mentioned >= MENTION_EVERY_S or looks == 1:
            mentioned = at
            hand = f"{samples[-1].running + samples[-1].waiting:g} requests in hand" if found is not None else "no answer"
            notify(f"watching its traffic, {duration(max(0.0, end - at))} to go: now {hand}")
        sleep(max(0.05, at + wanted.poll_s - now()))
    if len(samples) < MOST_MISSED * looks or len(samples) < 2:
        why = f"it answered {len(samples)} of {looks} looks"
        raise TrafficUnknown(source=source, why=why, fix=f"watch when it serves steadily, {_BY_HAND}")
    return Gathered(source=source, samples=tuple(samples), longest_s=max(5.0, 5 * wanted.poll_s))


def _look(base_url: str, engine: Engine, at_s: float) -> TrafficSample | None:
    seen = endpoints.snapshot(base_url, engine.load_paths, engine.metrics_path)
    found = engine.underway(seen.metrics, seen.infos)
    return TrafficSample(at_s=at_s, running=found.running, waiting=found.waiting) if found is not None else None


def _untold(base_url: str, engine: Engine) -> TrafficUnknown:
    status, _ = endpoints.health(base_url, engine.health_path)
    source = f"{engine.name} at {base_url}"
    if not status:
        return TrafficUnknown(
            source=source, why="nothing answers there", fix=f"`leadline doctor` on the same target names the cause, {_BY_HAND}"
        )
    flag = f"start the engine with {engine.metrics_flag}, " if engine.metrics_flag else ""
    silent = "".join(f", and {path} tells nothing" for path in engine.load_paths)
    why = f"{engine.metrics_path} shows no {engine.gauges[0]}{silent}"
    return TrafficUnknown(source=source, why=why, fix=f"{flag}add --prometheus URL, {_BY_HAND}")


# -- asked of Prometheus -----------------------------------------------------------------------------------------------


def ask(engine: Engine, wanted: Traffic, *, now_s: float) -> Gathered:
    """The engine's gauges over the last ``hours``, as the server at ``prometheus`` recorded them. Raises TrafficUnknown."""
    running = _series(engine.gauges[0], engine, wanted, now_s)
    waiting = dict(_series(engine.gauges[1], engine, wanted, now_s, needed=False))
    samples = tuple(TrafficSample(at_s=at, running=value, waiting=waiting.get(at, 0.0)) for at, value in running)
    picked = f"{{{wanted.match}}}" if wanted.match else ""
    source = f"{engine.gauges[0]}{picked} in Prometheus at {wanted.prometheus}, the last {duration(wanted.hours * 3600)}"
    return Gathered(source=source, samples=samples, longest_s=2 * _step_s(wanted))


def query(name: str, match: str) -> str:
    """PromQL: requests by that gauge, one series a server. Ranks that work on one batch tell of the same requests.

    >>> query("vllm:num_requests_running", 'job="llm"')
    'sum by (job, instance) (max without (moe_ep_rank, pp_rank, priority, tp_rank) (vllm:num_requests_running{job="llm"}))'
    """
    return f"sum by (job, instance) (max without ({', '.join(RANKS)}) ({name}{{{match}}}))"


def _series(name: str, engine: Engine, wanted: Traffic, now_s: float, *, needed: bool = True) -> list[tuple[float, float]]:
    span = {"start": f"{now_s - wanted.hours * 3600:.3f}", "end": f"{now_s:.3f}", "step": f"{_step_s(wanted):g}"}
    found = _matrix(_get(wanted, {"query": query(name, wanted.match), **span}), wanted)
    if len(found) > 1:
        seen = [row["metric"] for row in found if isinstance(row.get("metric"), Mapping)]
        shown = ", ".join(sorted(f'job="{one.get("job", "")}",instance="{one.get("instance", "")}"' for one in seen)[:6])
        raise TrafficUnknown(
            source=_place(wanted),
            why=f"{len(found)} servers have {name}: {shown}",
            fix="name the service's: --prometheus-match 'instance=\"HOST:PORT\"'",
        )
    values = [(float(at), float(value)) for at, value in found[0]["values"] if value != "NaN"] if found else []
    if not values:
        if not needed:
            return []
        flag = f" and runs with {engine.metrics_flag}" if engine.metrics_flag else ""
        picked = f" that match {wanted.match}" if wanted.match else ""
        raise TrafficUnknown(
            source=_place(wanted),
            why=f"it has no samples of {name}{picked} in the last {duration(wanted.hours * 3600)}",
            fix=f"see that it scrapes the service{flag}; add --observe-traffic 10m instead, {_BY_HAND}",
        )
    return values


def _step_s(wanted: Traffic) -> float:
    """Prometheus answers no more than 11,000 points a series."""
    return max(STEP_S, wanted.hours * 3600 / 10_000)


def _get(wanted: Traffic, parameters: dict[str, str]) -> Any:
    headers = {"Authorization": secret} if (secret := os.environ.get(AUTHORIZATION)) else {}
    try:
        answer = httpx.get(
            f"{wanted.prometheus.rstrip('/')}/api/v1/query_range", params=parameters, headers=headers, timeout=endpoints.TIMEOUT_S * 3
        )
    except httpx.HTTPError as error:
        raise TrafficUnknown(
            source=_place(wanted),
            why=f"{type(error).__name__}: {error}",
            fix=f"give the address that this machine reaches it by, {_BY_HAND}",
        ) from None
    if answer.status_code in (401, 403):
        fix = f"set {AUTHORIZATION}='Bearer ...' (or 'Basic ...')"
        raise TrafficUnknown(source=_place(wanted), why=f"it answered {answer.status_code}", fix=fix)
    try:
        return answer.json()
    except ValueError:
        why = f"it answered {answer.status_code} and no JSON"
        raise TrafficUnknown(source=_place(wanted), why=why, fix="give the address under which /api/v1/query_range answers") from None


def _matrix(said: Any, wanted: Traffic) -> list[dict[str, Any]]:
    """The rows of a range query's answer. Raises TrafficUnknown for an answer that is none."""
    data = said.get("data") if isinstance(said, Mapping) else None
    if not isinstance(data, Mapping) or said.get("status") != "success" or data.get("resultType") != "matrix":
        why = (
            f"{said['errorType']}: {said.get('error')}"
            if isinstance(said, Mapping) and "errorType" in said
            else "it answers no range query"
        )
        raise TrafficUnknown(source=_place(wanted), why=why, fix='look at --prometheus-match: label matchers as in instance="gpu1:30000"')
    return [row for row in data.get("result", []) if isinstance(row, dict) and row.get("values")]


def _place(wanted: Traffic) -> str:
    return f"Prometheus at {wanted.prometheus}"
