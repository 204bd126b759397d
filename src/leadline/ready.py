"""Wait for a real answer, and prove who answered.

A start is late only when it stands still: the deadline moves with every new log line and every CPU second
(``Readiness.still_s``).  Ready means, in this order: the health path answers 200; the process that owns the listening
socket belongs to *this* launch; one real token was generated; what the engine reports about itself equals the
candidate; and the launch still runs afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from .config import Readiness
from .endpoints import health, snapshot
from .engines import Engine, Loading, Parsed
from .engines.declared import FACT, declared_acceptance, environment
from .errors import LaunchFailed, LaunchHung, NeedsRights, PortTaken, WrongServer
from .records import Candidate, Exit, Launch, Outcome, Record, Reported, RequestResult
from .supervisor import Supervisor

TAIL_BYTES = 16384
BUSY_SHARE, BUSY_WINDOW_S = 0.05, 1.0
"""A launch that uses less of a core than this is not working: answering our own polling costs about a hundredth."""
SLOWEST_POLL_S = 0.5


class Answer(Record, frozen=True):
    """A launch that serves, and what it says it is."""

    load_s: float
    reported: Reported


def wait(
    supervisor: Supervisor,
    launch: Launch,
    engine: Engine,
    parsed: Parsed,
    candidate: Candidate,
    base_url: str,
    settings: Readiness,
    *,
    ask: Callable[[str], RequestResult],
    notify: Callable[[Loading], None] = lambda loading: None,
) -> Answer:
    """Block until the launch is ready; ``ask`` generates one real token at a base URL.

    Raises LaunchFailed (it ended), LaunchHung (it stands still), PortTaken (a foreign process listens), WrongServer (it is
    not what was asked for).
    """
    began = moved = time.monotonic()
    seen_log, pulse, pause_s = -1, _Pulse(), settings.poll_s
    while True:
        status = supervisor.status(launch)
        now = time.monotonic()
        if not status.running:
            raise _died(supervisor, launch, candidate, status.exit, now - began)
        if status.log_bytes != seen_log or pulse.beats(now, status.cpu_s or 0.0):
            seen_log, moved = status.log_bytes, now
        tail = supervisor.log(launch, start=-TAIL_BYTES).decode("utf-8", "replace")
        notify(engine.loading(tail))
        if now - moved > settings.still_s or now - began > settings.limit_s:
            last = next((line for line in reversed(tail.splitlines()) if line.strip()), "(nothing printed)")
            raise LaunchHung(candidate=candidate.label, still_s=round(now - moved), line=last.strip()[:200], log=launch.log)
        refuse_foreign(supervisor, launch, parsed.port)
        if health(base_url, engine.health_path)[0] == 200:
            reported = identify(supervisor, launch, engine, parsed, candidate, base_url)
            answer = ask(base_url)
            if answer.outcome is Outcome.OK and answer.tokens_out > 0 and supervisor.status(launch).running:
                return Answer(load_s=time.monotonic() - began, reported=reported)
        supervisor.renew()
        time.sleep(pause_s)
        pause_s = min(max(SLOWEST_POLL_S, settings.poll_s), pause_s * 1.1)


class _Pulse:
    """Whether a launch works: its CPU time over windows of :data:`BUSY_WINDOW_S`."""

    def __init__(self) -> None:
        self._at_s, self._cpu_s = -1.0, 0.0

    def beats(self, now_s: float, cpu_s: float) -> bool:
        if self._at_s < 0:
            self._at_s, self._cpu_s = now_s, cpu_s
            return True
        if now_s - self._at_s < BUSY_WINDOW_S:
            return False
        busy = cpu_s - self._cpu_s > BUSY_SHARE * (now_s - self._at_s)
        self._at_s, self._cpu_s = now_s, cpu_s
        return busy


def identify(supervisor: Supervisor, launch: Launch, engine: Engine, parsed: Parsed, candidate: Candidate, base_url: str) -> Reported:
    """What answers at ``base_url``, once it is shown to be this launch under this candidate.

    Raises PortTaken or WrongServer.
    """
    refuse_foreign(supervisor, launch, parsed.port, must_listen=True)
    reported = engine.reported(parsed, snapshot(base_url, engine.info_paths, "").infos)
    log = supervisor.log(launch).decode("utf-8", "replace")
    why = engine.mismatch(candidate, reported, log)
    if why:
        raise WrongServer(port=parsed.port, why=why, fix=f"{candidate.label} was not measured; read the launch's log {launch.log}")
    declared = declared_by(supervisor, parsed)
    return msgspec.structs.replace(reported, facts=tuple(sorted((*reported.facts, (FACT, declared))))) if declared else reported


def declared_by(supervisor: Supervisor, parsed: Parsed) -> str:
    """The switch that makes the listening server pretend its acceptance, from its environment and arguments; empty for none.

    An environment that this account may not read counts as one without the switch.
    """
    for listener in supervisor.listeners(parsed.port):
        try:
            block = supervisor.target.read(f"/proc/{listener.pid}/environ", root=True)
        except (OSError, NeedsRights):
            block = b""
        declared = declared_acceptance(environment(block), parsed.argv)
        if declared:
            return declared
    return ""


def refuse_foreign(supervisor: Supervisor, launch: Launch, port: int, *, must_listen: bool = False) -> None:
    """Raise PortTaken when a process that is not part of ``launch`` listens on ``port``."""
    listeners = supervisor.listeners(port)
    for listener in listeners:
        if not supervisor.owns(launch, listener.pid) and _still_foreign(supervisor, launch, port, listener.pid):
            raise PortTaken(port=port, pid=listener.pid, command=listener.command[:200])
    if must_listen and not listeners:
        raise WrongServer(
            port=port,
            why="something answers but no listening process can be seen",
            fix="run leadline with the rights to see the host's sockets",
        )


def _still_foreign(supervisor: Supervisor, launch: Launch, port: int, pid: int) -> bool:
    """A second look: a process of ours that died between the two readings belongs to nobody for a moment, and then is gone."""
    return any(listener.pid == pid for listener in supervisor.listeners(port)) and not supervisor.owns(launch, pid)


def first_error(log: str) -> str:
    """The first line that reads like an error, else the last line: for a message, never for a diagnosis."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    words = ("error", "exception", "failed", "fatal", "cannot", "no such file", "not found", "unrecognized", "invalid")
    first = next((line for line in lines if any(word in line.lower() for word in words)), None)
    return (first or (lines[-1] if lines else "it printed nothing"))[:300]


def _died(supervisor: Supervisor, launch: Launch, candidate: Candidate, exit_: Exit | None, after_s: float) -> LaunchFailed:
    line = first_error(supervisor.log(launch, start=0).decode("utf-8", "replace"))
    how = exit_.text if exit_ is not None else "it ended"
    fix = f"the whole output is in {launch.log}; `leadline doctor --log {launch.log}` names the cause"
    return LaunchFailed(candidate=candidate.label, how=how, after_s=f"{after_s:.1f}", line=line, fix=fix)
