"""``leadline inspect``: what runs, how it is started, what it holds now, what every other depth would hold. Touches nothing."""

from __future__ import annotations

from collections.abc import Callable

from . import objective, traffic
from .config import Traffic
from .endpoints import snapshot
from .engines import Engine, Parsed
from .records import Candidate, Capacity, FrontierRow, Record, Reported, Watched
from .ssh import SshTarget
from .supervisor import Service, Supervisor
from .survey import chart, model_config

LOG_BYTES = 4 << 20


class Inspection(Record, frozen=True):
    """A service as it stands."""

    target: str
    engine: str
    version: str | None
    model: str
    argv: tuple[str, ...]
    """The engine's own arguments, found inside whatever starts it."""
    found: Candidate
    """The speculation that its arguments ask for."""
    knobs: tuple[tuple[str, str], ...]
    running: bool
    reported: Reported | None
    """What it says about itself; ``None`` when it does not answer."""
    capacity: Capacity
    frontier: tuple[FrontierRow, ...]
    notes: tuple[str, ...]
    round_trip_ms: float | None = None
    """To its host, over the shared connection; every latency measured through a forward carries it."""
    traffic: Watched | None = None
    """Its own traffic, where that was to be watched; the mix is over powers of two."""


def inspect(
    supervisor: Supervisor,
    service: Service,
    engine: Engine,
    parsed: Parsed,
    *,
    wanted: Traffic | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> Inspection:
    """Read everything that can be read without a change: arguments, the engine's own report, capacity, frontier and, if wanted, traffic."""
    reported: Reported | None = None
    capacity = Capacity()
    frontier: tuple[FrontierRow, ...] = ()
    host = supervisor.target
    if service.launch is not None:
        with host.forward(parsed.port) as port:
            infos = snapshot(f"http://127.0.0.1:{port}", engine.info_paths, "").infos
        if infos:
            reported = engine.reported(parsed, infos)
            log = supervisor.log(service.launch, limit_bytes=LOG_BYTES).decode("utf-8", "replace")
            capacity = engine.capacity(reported, log)
            config = model_config(host, parsed.model)
            frontier = chart(engine, parsed, engine.axes(parsed), reported, log=log, infos=infos, model_config=config)
    return Inspection(
        target=supervisor.target_name,
        engine=engine.name,
        version=(reported.version if reported else None) or parsed.version,
        model=(reported.model if reported else None) or parsed.model,
        argv=parsed.argv,
        found=parsed.candidate,
        knobs=parsed.knobs,
        running=service.running,
        reported=reported,
        capacity=capacity,
        frontier=frontier,
        notes=(*service.notes, *parsed.notes),
        round_trip_ms=host.round_trip_ms() if isinstance(host, SshTarget) else None,
        traffic=_traffic(supervisor, engine, parsed, wanted, notify) if wanted is not None else None,
    )


def _traffic(supervisor: Supervisor, engine: Engine, parsed: Parsed, wanted: Traffic, notify: Callable[[str], None]) -> Watched:
    found = traffic.gather(supervisor, engine, parsed.port, wanted, notify=notify)
    most = max(sample.running + sample.waiting for sample in found.samples)
    levels = [1 << power for power in range(max(1, round(most)).bit_length() + 1)]
    return objective.watched(found.samples, levels, source=found.source, at_s=found.samples[-1].at_s, longest_s=found.longest_s)


def text(seen: Inspection) -> str:
    """An inspection for people, one fact a line."""
    held = [
        f"{value:,} {what}"
        for value, what in (
            (seen.capacity.max_running_requests, "requests at once"),
            (seen.capacity.max_total_num_tokens, "tokens in the KV pool"),
        )
        if value is not None
    ]
    state = "runs" if seen.reported else ("runs, but does not answer on its port" if seen.running else "does not run")
    lines = [
        f"{seen.target}: {seen.engine} {seen.version or '(version not known)'}, {state}",
        f"  model        {seen.model or '(not named)'}",
        f"  speculation  {seen.found.label} by its arguments"
        + (f", {seen.reported.algorithm or 'off'} by its own word" if seen.reported else ""),
        f"  capacity     {', '.join(held) or 'not known'}",
        f"  command      {' '.join(seen.argv)}",
    ]
    if seen.round_trip_ms is not None:
        lines.append(f"  round trip   {seen.round_trip_ms:.1f} ms to its host")
    if seen.traffic is not None:
        lines.append(f"  traffic      {objective.traffic(seen.traffic)}")
        if seen.traffic.mix:
            levels = ",".join(str(concurrency) for concurrency, _ in seen.traffic.mix)
            lines.append(f"  to tune for  --concurrency {levels} --objective {objective.mix_text(seen.traffic.mix)}")
    lines += [f"  note: {note}" for note in seen.notes]
    return "\n".join(lines) + "\n"
