"""A leadline process with a campaign on each of a few units, each brought to another event of its journal, there to be broken.

``driver.py SSH_CONFIG DESTINATION DEADMAN_S DEPTH EVENT:UNIT:PORT …``: prints ``at EVENT`` as soon as that event is in a campaign's
journal; a line on standard input lets all go on.  The campaigns, their consent, their journals and what they do to the host are
leadline's own; only the load is planted.  Whatever comes of them, nothing is put back by leadline: that is the host's business.

* began, inspected, watched, planned: a new campaign, before it takes the service.
* intended to concluded: a resumed one. The configuration as found was measured "before", so the first launch is already a changed one.
* abandoned: another leadline was killed at ``deployed`` a moment ago; this one settles that trial, which still stands on the host.
* applying: the setting runs as a trial and is being verified; applied: it is permanent.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from leadline import endpoints, journal, ready, services, verbs
from leadline.campaign import Campaign
from leadline.config import OBSERVED, Deploy, Measure, Settings, Traffic, Tune
from leadline.endpoints import Snapshot
from leadline.engines import Loading, Parsed, recognise
from leadline.errors import LaunchFailed, LaunchHung, LeadlineError
from leadline.hold import Hold
from leadline.journal import Journal
from leadline.narrate import Narrator
from leadline.records import (
    OFF,
    AnyEvent,
    Applied,
    Began,
    BlockResult,
    Candidate,
    Capacity,
    Command,
    Conditions,
    Deployed,
    Inspected,
    Intended,
    Launch,
    Level,
    Measured,
    Observed,
    Outcome,
    Planned,
    PlannedLaunch,
    Ready,
    Reported,
    RequestResult,
    Restored,
)
from leadline.ssh import SshTarget
from leadline.state import Knowledge
from leadline.systemd import SystemdSupervisor

GO = threading.Event()
STOOD = threading.Semaphore(0)
NEW = ("began", "inspected", "watched", "planned")
CRASHING, NEVER_READY, HANGING = 9, 20, 21
"""Depths that the stand-in server plays a failure at."""
GIVE_UP_S, SLOW_S = 4.0, 30.0
"""How long a launch that never becomes ready is waited for, and one that does on a busy guest."""


def main() -> None:
    config, destination, deadman_s, depth, *places = sys.argv[1:]
    target = SshTarget(destination, ssh=("ssh", "-F", config), connect_timeout_s=10.0, alive_s=5)
    deploy = Deploy(deadman_s=float(deadman_s), stop_grace_s=2.0)
    threads = [threading.Thread(target=one, args=(target, deploy, int(depth), len(places), *place.split(":"))) for place in places]
    for thread in threads:
        thread.start()
    sys.stdin.readline()
    GO.set()
    for thread in threads:
        thread.join()
    os._exit(4)  # renewing ends with the process, and only with it


def one(target: SshTarget, deploy: Deploy, depth: int, places: int, event: str, unit: str, port: str) -> None:
    folder = journal.home() / unit
    if event == "abandoned":
        for _ in range(places - 1):  # the last one: that dead-man is running out already
            STOOD.acquire()
        leave_a_trial(unit, port)
    service = Unaided(target, unit, target_name=f"ssh://{target.name}/{unit}", settings=deploy, port_of=services.port_of)
    if event == "failed" and depth != NEVER_READY:
        depth = CRASHING
    if event in ("ready", "measured", "observed", "applied") and depth == NEVER_READY:
        depth = HANGING
    try:
        book = Paused(folder, event)
        with book:
            play(service, event, depth, book, deploy)
    except LeadlineError as error:
        print(f"error {event} {error.id}: {error.message}", flush=True)


def leave_a_trial(unit: str, port: str) -> None:
    """Another leadline, killed when its trial is deployed."""
    argv = [sys.executable, __file__, *sys.argv[1:5], f"deployed:{unit}:{port}"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        said = other.stdout.readline()
        other.kill()
        assert said == "at deployed\n", said + other.stdout.read()


class Unaided(SystemdSupervisor):
    """Leaves it to the host to put the service back."""

    def __init__(
        self, target: SshTarget, unit: str, *, target_name: str, settings: Deploy, port_of: Callable[[Sequence[str]], int]
    ) -> None:
        super().__init__(target, unit, target_name=target_name, settings=settings, port_of=port_of)
        self._hold = Keeping(self._host, settings, target_name)

    def restore(self, *, force: bool = False) -> str:
        return ""


class Keeping(Hold):
    """Does not clean up after a leadline that is gone, either."""

    def give_back(self, why: str) -> None:
        return None


def play(service: Unaided, event: str, depth: int, book: Paused, deploy: Deploy) -> None:
    """One campaign up to ``event`` and, once everybody may go on, to its end."""
    found = service.service()
    engine, parsed = recognise(found.command.argv)
    opened = verbs.Opened(supervisor=service, engine=engine, parsed=parsed)
    changed = Candidate(algorithm=parsed.candidate.algorithm, depth=depth)
    hands = Planted(service, parsed, engine.health_path)
    if event not in NEW and book.knowledge.began is None:
        seed(book, found.command, parsed.candidate, changed)
    book.own = True
    if event in ("applying", "applied"):  # as ``leadline apply`` does it
        verify = book.stand if event == "applying" else hands.answers
        said = service.apply(engine.render(parsed, changed), verify=verify)
        book.append(Applied(at_s=time.time(), candidate=changed, what=said))
        return
    Campaign(
        supervisor=service,
        engine=engine,
        parsed=parsed,
        settings=Settings(
            tune=Tune(
                depths=(depth,),
                algorithms=(changed.algorithm,),
                max_launches=3,
                ask=(changed.label,),
                objective=OBSERVED if event == "watched" else Tune().objective,
            ),
            traffic=Traffic(watch_minutes=1 / 60, poll_s=0.4),
            measure=Measure(concurrency=(1,), explore_blocks=1, confirm_blocks=1, max_blocks=1),
            deploy=deploy,
        ),
        journal=book,
        command=found.command,
        conditions=Conditions(target=service.target_name, engine=engine.name),
        boot_id=verbs.boot_id(service),
        hands=hands,
        confirm=lambda launches, known: Narrator(quiet=True).ask(launches, known, yes=True, change=verbs.change_on_host(opened, launches)),
    ).run()


class Paused(Journal):
    """A journal that says when its event is written, and waits there."""

    def __init__(self, folder: Path, event: str) -> None:
        self.event, self.own = event, False
        super().__init__(folder, write=True)

    def append(self, event: AnyEvent) -> Knowledge:
        known = super().append(event)
        if self.own and type(event).__name__.lower() == self.event and not self._is_first_decision(event):
            self.stand()
        return known

    def _is_first_decision(self, event: AnyEvent) -> bool:
        """ "decided" is the decision after the changed launch, not the one that leads to it."""
        return self.event == "decided" and len(self.knowledge.trials) < 3

    def stand(self, launch: Launch | None = None) -> None:
        self.own = False  # once
        print(f"at {self.event}", flush=True)
        STOOD.release()
        GO.wait()


def seed(book: Paused, command: Command, found: Candidate, changed: Candidate) -> None:
    """What an earlier sitting left: the configuration as found and speculation off, measured."""
    level, now_s = Level(workload="chat", concurrency=1), time.time()
    before = (found, Candidate(algorithm=OFF, depth=0))
    launches = tuple(
        PlannedLaunch(candidate=candidate, why="planned", levels=(level,), blocks=1, seconds=5.0, kind=kind)
        for candidate, kind in zip((*before, changed), ("baseline", "control", "asked"), strict=True)
    )
    where = {"campaign_id": book.folder.name, "target": "before"}
    conditions = Conditions(target="before", engine="llamacpp")
    book.append(Began(**where, at_s=now_s, command=command, found=found, levels=(level,), conditions=conditions))
    book.append(Inspected(at_s=now_s, frontier=()))
    book.append(Planned(at_s=now_s, launches=launches))
    for trial, candidate in enumerate(before, 1):
        launch = Launch(launch_id=f"before-{trial}", pid=1, started_s=now_s, log="")
        book.append(Intended(trial=trial, at_s=now_s, candidate=candidate, kind=launches[trial - 1].kind, why="planned"))
        book.append(Deployed(trial=trial, at_s=now_s, launch=launch, argv=command.argv))
        book.append(Ready(trial=trial, at_s=now_s, load_s=0.1, reported=Reported(engine="llamacpp")))
        book.append(Measured(trial=trial, at_s=now_s, result=planted_block(level, 0)))
        book.append(Observed(trial=trial, at_s=now_s, acceptance=(), capacity=Capacity()))
        book.append(Restored(trial=trial, at_s=now_s, down_s=1.0))


def planted_block(level: Level, block: int) -> BlockResult:
    request = RequestResult(prompt_id=f"p{block}", outcome=Outcome.OK, ttft_ms=10.0, tpot_ms=10.0, e2e_ms=170.0, tokens_out=17)
    return BlockResult(level=level, block=block, duration_s=0.2, output_tok_s=85.0, requests=(request,))


class Planted:
    """Waits for the real launch; the load is not played."""

    def __init__(self, service: Unaided, parsed: Parsed, health_path: str) -> None:
        self.service, self.parsed, self.health_path = service, parsed, health_path

    def wait(self, launch: Launch, candidate: Candidate, base_url: str, *, notify: Callable[[Loading], None]) -> ready.Answer:
        began = time.monotonic()
        limit_s = GIVE_UP_S if candidate.depth == NEVER_READY else SLOW_S
        while endpoints.health(base_url, self.health_path)[0] != 200:
            if not self.service.status(launch).running:
                raise LaunchFailed(candidate=candidate.label, how="it ended", after_s=0, line="", fix="")
            if time.monotonic() - began > limit_s:
                raise LaunchHung(candidate=candidate.label, still_s=round(limit_s), line="", log=launch.log)
            time.sleep(0.3)
        reported = Reported(engine="llamacpp", algorithm=candidate.algorithm, depth=candidate.depth)
        return ready.Answer(load_s=time.monotonic() - began, reported=reported)

    def answers(self, launch: Launch) -> None:
        with self.service.target.forward(self.parsed.port) as port:
            self.wait(launch, self.parsed.candidate, f"http://127.0.0.1:{port}", notify=lambda loading: None)

    def look(self, base_url: str) -> Snapshot:
        return Snapshot(infos={})

    def warm_up(self, base_url: str, level: Level, model: str) -> None:
        return None

    def play(
        self, launch: Launch, base_url: str, level: Level, block: int, model: str, cpu_s: Callable[[], float | None], limit_s: float
    ) -> BlockResult:
        return planted_block(level, block)


if __name__ == "__main__":
    main()
