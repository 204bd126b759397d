"""A leadline process with a campaign on each of several units at once, each brought to another event of its journal, there to be broken.

``driver.py SSH_CONFIG DESTINATION DEADMAN_S DEPTH EVENT:UNIT:PORT …``: prints ``at EVENT`` as soon as a campaign has written that
event into its journal; a line on standard input lets all go on.  The campaigns, their journals and what they do to the host are
leadline's own; only the load is planted.  They are resumed ones: the configuration as found was measured "before", so the first
launch is already a changed one.  Whatever comes of them, nothing is put back by leadline: that is the host's business.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from leadline import endpoints, ready, services, verbs
from leadline.campaign import Campaign
from leadline.config import Deploy, Measure, Settings, Tune
from leadline.endpoints import Snapshot
from leadline.engines import Loading, recognise
from leadline.errors import LaunchFailed, LeadlineError
from leadline.journal import Journal
from leadline.records import (
    OFF,
    AnyEvent,
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
from leadline.supervisor import Supervisor
from leadline.systemd import SystemdSupervisor

GO = threading.Event()
ROOM = threading.Semaphore(3)
CRASHING, GIVE_UP_S = 9, 4.0


def main() -> None:
    config, destination, deadman_s, depth, *places = sys.argv[1:]
    target = SshTarget(destination, ssh=("ssh", "-F", config), connect_timeout_s=10.0, alive_s=5)
    deploy = Deploy(deadman_s=float(deadman_s), stop_grace_s=2.0)
    with tempfile.TemporaryDirectory() as folder:
        threads = [threading.Thread(target=one, args=(target, deploy, int(depth), Path(folder), *place.split(":"))) for place in places]
        for thread in threads:
            thread.start()
        sys.stdin.readline()
        GO.set()
        for thread in threads:
            thread.join()
    os._exit(4)  # renewing ends with the process, and only with it


def one(target: SshTarget, deploy: Deploy, depth: int, home: Path, event: str, unit: str, port: str) -> None:
    service = Unaided(target, unit, target_name=f"ssh://{target.name}/{unit}", settings=deploy, port_of=services.port_of)
    ROOM.acquire()  # until its event: the guest has one slow CPU, and a dead-man must not fire while others get there
    try:
        play(service, event, CRASHING if event == "failed" else depth, home / unit, deploy)
    except LeadlineError as error:
        print(f"error {event} {error.id}: {error.message}", flush=True)


class Unaided(SystemdSupervisor):
    """Leaves it to the host to put the service back."""

    def restore(self, *, force: bool = False) -> str:
        return ""


def play(service: Supervisor, event: str, depth: int, folder: Path, deploy: Deploy) -> None:
    """One campaign up to ``event`` and, once everybody may go on, to its end."""
    found = service.service()
    engine, parsed = recognise(found.command.argv)
    changed = Candidate(algorithm=parsed.candidate.algorithm, depth=depth)
    settings = Settings(
        tune=Tune(depths=(depth,), algorithms=(changed.algorithm,), max_launches=3, ask=(changed.label,)),
        measure=Measure(concurrency=(1,), explore_blocks=1, confirm_blocks=1, max_blocks=1),
        deploy=deploy,
    )
    with Watched(folder, event) as book:
        seed(book, found.command, parsed.candidate, changed)
        campaign = Campaign(
            supervisor=service,
            engine=engine,
            parsed=parsed,
            settings=settings,
            journal=book,
            command=found.command,
            conditions=Conditions(target=service.target_name, engine=engine.name),
            boot_id=verbs.boot_id(service),
            hands=Planted(service, engine.health_path),
        )
        campaign.run()
        if event == "applying" and isinstance(service, SystemdSupervisor):
            service.apply(engine.render(parsed, changed), verify=lambda launch: book.stand())


class Watched(Journal):
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

    def stand(self) -> None:
        self.own = False  # once
        print(f"at {self.event}", flush=True)
        ROOM.release()
        GO.wait()


def seed(book: Watched, command: Command, found: Candidate, changed: Candidate) -> None:
    """What an earlier sitting left: the configuration as found and speculation off, measured. Not even a plan for "planned"."""
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
    if book.event != "planned":
        book.append(Planned(at_s=now_s, launches=launches))
        for trial, candidate in enumerate(before, 1):
            launch = Launch(launch_id=f"before-{trial}", pid=1, started_s=now_s, log="")
            book.append(Intended(trial=trial, at_s=now_s, candidate=candidate, kind=launches[trial - 1].kind, why="planned"))
            book.append(Deployed(trial=trial, at_s=now_s, launch=launch, argv=command.argv))
            book.append(Ready(trial=trial, at_s=now_s, load_s=0.1, reported=Reported(engine="llamacpp")))
            book.append(Measured(trial=trial, at_s=now_s, result=planted_block(level, 0)))
            book.append(Observed(trial=trial, at_s=now_s, acceptance=(), capacity=Capacity()))
            book.append(Restored(trial=trial, at_s=now_s, down_s=1.0))
    book.own = True


def planted_block(level: Level, block: int) -> BlockResult:
    request = RequestResult(prompt_id=f"p{block}", outcome=Outcome.OK, ttft_ms=10.0, tpot_ms=10.0, e2e_ms=170.0, tokens_out=17)
    return BlockResult(level=level, block=block, duration_s=0.2, output_tok_s=85.0, requests=(request,))


class Planted:
    """Waits for the real launch, at most :data:`GIVE_UP_S`; the load is not played."""

    def __init__(self, service: Supervisor, health_path: str) -> None:
        self.service, self.health_path = service, health_path

    def wait(self, launch: Launch, candidate: Candidate, base_url: str, *, notify: Callable[[Loading], None]) -> ready.Answer:
        until = time.monotonic() + GIVE_UP_S
        while time.monotonic() < until:
            if endpoints.health(base_url, self.health_path)[0] == 200:
                break
            if not self.service.status(launch).running:
                raise LaunchFailed(candidate=candidate.label, how="it ended", after_s=0, line="", fix="")
            time.sleep(0.3)
        reported = Reported(engine="llamacpp", algorithm=candidate.algorithm, depth=candidate.depth)
        return ready.Answer(load_s=0.1, reported=reported)

    def look(self, base_url: str) -> Snapshot:
        return Snapshot(infos={})

    def warm_up(self, base_url: str, level: Level, model: str) -> None:
        return None

    def play(self, launch: Launch, base_url: str, level: Level, block: int, model: str, cpu_s: Callable[[], float | None]) -> BlockResult:
        return planted_block(level, block)


if __name__ == "__main__":
    main()
