"""The verbs' work: open a target, build a campaign, read a journal. ``cli`` only parses and prints.

A function here is one verb.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from . import __version__, inspecting, journal, measure, ready, traffic
from .bench import BenchResult, planned_levels, show_line
from .bench import run as bench_run
from .campaign import Campaign, RealHands
from .config import Settings, levels
from .engines import Engine, Parsed, recognise
from .errors import LeadlineError, NoCampaign, Unsupported
from .journal import Journal
from .narrate import Narrator
from .process import ProcessSupervisor
from .records import Applied, Candidate, Conditions, Launch, PlannedLaunch, Record
from .services import adapt, open_supervisor
from .ssh import SshTarget
from .state import Knowledge
from .supervisor import Supervisor
from .systemd import SystemdSupervisor
from .targets import parse_target


class Opened(Record, frozen=True):
    """A target with what was recognised in it."""

    supervisor: Supervisor
    engine: Engine
    parsed: Parsed


def open_target(text: str, settings: Settings, folder: Path) -> Opened:
    """Reach the service and find the engine's own arguments. Touches nothing."""
    supervisor = open_supervisor(parse_target(text), settings.deploy, folder)
    service = supervisor.service()
    engine, parsed = adapt(supervisor, service.command.argv)
    return Opened(supervisor=supervisor, engine=engine, parsed=parsed)


def tune(target: str, settings: Settings, *, yes: bool, fresh: bool, quiet: bool) -> Knowledge:
    """Run or resume the campaign of ``target``; returns all that is known at its verdict."""
    traffic.check(settings)
    measure.check_prompts(levels(settings.measure), settings.measure, blocks=settings.measure.max_blocks)
    probe = open_target(target, settings, journal.home() / "targets")
    conditions = conditions_of(target, probe, settings)
    folder = campaign_folder(conditions, settings, probe.parsed, fresh=fresh)
    opened = open_target(target, settings, folder)
    service = opened.supervisor.service()
    with Journal(folder, write=True) as book, Narrator(quiet=quiet) as narrator:
        campaign = Campaign(
            supervisor=opened.supervisor,
            engine=opened.engine,
            parsed=opened.parsed,
            settings=settings,
            journal=book,
            command=service.command,
            conditions=conditions,
            boot_id=boot_id(opened.supervisor),
            facts=distance(opened.supervisor),
            show=narrator.show,
            confirm=lambda launches, known: narrator.ask(launches, known, yes=yes, change=change_on_host(opened, launches)),
        )
        narrator.note((*service.notes, *opened.parsed.notes))
        try:
            campaign.run()
        finally:
            opened.supervisor.close()
        return book.knowledge


def change_on_host(opened: Opened, launches: Sequence[PlannedLaunch]) -> str:
    """What the first changed launch writes on the service's host, as a diff; empty for a command that leadline starts itself."""
    if isinstance(opened.supervisor, ProcessSupervisor):
        return ""
    changed = next((launch.candidate for launch in launches if launch.candidate != opened.parsed.candidate), None)
    if changed is None:
        return ""
    return opened.supervisor.plan(opened.engine.render(opened.parsed, changed), files=opened.engine.files(changed))


def demo(*, yes: bool, fresh: bool, quiet: bool) -> Knowledge:
    """The demo's campaign: nothing but ``tune`` on a command that it prints."""
    from . import demo as demonstration

    target, settings = demonstration.prepare(narrate=not quiet)
    return tune(target, settings, yes=yes, fresh=fresh, quiet=quiet)


class StatusRow(Record, frozen=True):
    """One line of ``leadline status``."""

    campaign_id: str
    target: str
    state: str
    """``running``, ``interrupted`` or ``concluded``."""
    trials: int
    failed: int
    blocks: int
    sentence: str = ""
    applied: str = ""
    folder: str = ""


def status(which: str | None, *, everything: bool) -> tuple[StatusRow, ...]:
    """Where campaigns stand; one row each."""
    folders = journal.campaigns() if everything else (journal.find(which),)
    return tuple(_status_row(folder) for folder in folders)


def _status_row(folder: Path) -> StatusRow:
    with Journal(folder, write=False) as book:
        known = book.knowledge
    began, verdict = known.began, known.verdict
    state = "concluded" if verdict else ("running" if journal.writer_alive(folder) else "interrupted")
    return StatusRow(
        campaign_id=folder.name,
        target=began.target if began else "(not begun)",
        state=state,
        trials=len(known.trials),
        failed=sum(1 for trial in known.trials if trial.failed),
        blocks=sum(len(trial.blocks) for trial in known.trials),
        sentence=verdict.sentence if verdict else "",
        applied=known.applied.candidate.label if known.applied else "",
        folder=str(folder),
    )


def inspect(target: str, settings: Settings, *, watch: bool = False) -> inspecting.Inspection:
    """Look at a service without touching it; with ``watch`` at its traffic, too, from where the settings say."""
    if watch:
        traffic.check_source(settings.traffic)
    supervisor = open_supervisor(parse_target(target), settings.deploy, journal.home() / "targets")
    try:
        service = supervisor.service()
        engine, parsed = recognise(service.command.argv)
        wanted = settings.traffic if watch else None
        return inspecting.inspect(supervisor, service, engine, parsed, wanted=wanted, notify=_say)
    finally:
        supervisor.close()


def restore(target: str | None, *, force: bool = False) -> str:
    """Put a service back by hand: a trial that stands, else a setting that ``apply`` left; needs no journal when the target is named."""
    text = target or target_of(journal.find(None))
    supervisor = open_supervisor(parse_target(text), Settings().deploy, journal.home() / "targets")
    try:
        return supervisor.take_back(force=force) if isinstance(supervisor, SystemdSupervisor) else supervisor.restore()
    finally:
        supervisor.close()


def apply(which: str | None, *, yes: bool) -> str:
    """Make the verdict of a concluded campaign permanent."""
    folder = journal.find(which)
    with Journal(folder, write=True) as book:
        known = book.knowledge
        if known.began is None or known.verdict is None:
            raise Unsupported(
                what="applying a campaign without a verdict", where=folder.name, fix="run the same tune command again: it resumes"
            )
        candidate = known.verdict.overall
        opened = open_target(known.began.target, Settings(), folder)
        try:
            argv = opened.engine.render(opened.parsed, candidate)
            Narrator().agree(opened.supervisor.plan(argv, files=opened.engine.files(candidate)), yes=yes)
            said = _applied(opened, argv, candidate)
        finally:
            opened.supervisor.close()
        book.append(Applied(at_s=time.time(), candidate=candidate, what=said))
    return said


def _applied(opened: Opened, argv: tuple[str, ...], candidate: Candidate) -> str:
    """Apply; a unit must answer with a real token as that candidate, or everything is taken back."""
    supervisor = opened.supervisor
    if not isinstance(supervisor, SystemdSupervisor):
        return supervisor.apply(argv, files=opened.engine.files(candidate))
    engine, parsed = opened.engine, opened.parsed

    def verify(launch: Launch) -> None:
        with supervisor.target.forward(parsed.port) as port:
            base_url = f"http://127.0.0.1:{port}"
            ready.wait(
                supervisor, launch, engine, parsed, candidate, base_url, Settings().ready, ask=lambda url: measure.ask(url, parsed.model)
            )

    return supervisor.apply(argv, files=engine.files(candidate), verify=verify)


# -- which campaign ----------------------------------------------------------------------------------------------------


def target_of(folder: Path) -> str:
    """The target of a campaign. Raises NoCampaign when it never began."""
    with Journal(folder, write=False) as book:
        if book.knowledge.began is None:
            raise NoCampaign(which=folder.name, where=folder.parent)
        return book.knowledge.began.target


def conditions_of(target: str, opened: Opened, settings: Settings) -> Conditions:
    """What must be equal for two campaigns' figures to be compared."""
    return Conditions(
        target=target,
        engine=opened.engine.name,
        model=opened.parsed.model,
        version=opened.parsed.version or "",
        host=opened.supervisor.target.name,
        hardware=hardware(opened.supervisor),
        workloads=measure.digest(settings.measure),
        client=f"leadline {__version__}",
    )


def campaign_folder(conditions: Conditions, settings: Settings, parsed: Parsed, *, fresh: bool) -> Path:
    """Where this campaign's journal is: the interrupted one under equal conditions, else a new folder."""
    asked = {"conditions": msgspec.to_builtins(conditions), "argv": parsed.argv, "settings": msgspec.to_builtins(settings)}
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]
    if not fresh:
        for folder in journal.campaigns():
            if folder.name.endswith(digest) and _unfinished(folder):
                return folder
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return journal.home() / "campaigns" / f"{stamp}-{parsed.engine}-{digest}"


def _unfinished(folder: Path) -> bool:
    with Journal(folder, write=False) as book:
        known = book.knowledge
    barren = any(trial.failed for trial in known.trials) and not any(trial.served for trial in known.trials)
    return known.verdict is None and not barren


def distance(supervisor: Supervisor) -> tuple[tuple[str, str], ...]:
    """The round trip to a remote host: every latency measured through the forward contains it."""
    host = supervisor.target
    return (("host.round_trip", f"{host.round_trip_ms():.1f} ms, contained in every latency"),) if isinstance(host, SshTarget) else ()


def boot_id(supervisor: Supervisor) -> str:
    """The kernel's boot id of the service's host; empty where the host has none."""
    try:
        return supervisor.target.read("/proc/sys/kernel/random/boot_id", limit_bytes=64).decode().strip()
    except (FileNotFoundError, LeadlineError):
        return ""


def hardware(supervisor: Supervisor) -> str:
    """CPU (and GPUs, where the driver's tool is there) of the service's host, in words."""
    try:
        cpuinfo = supervisor.target.read("/proc/cpuinfo", limit_bytes=1 << 20).decode("utf-8", "replace")
    except (FileNotFoundError, LeadlineError):
        return platform.machine()
    models = [line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    cpu = f"{len(models)} x {models[0]}" if models else platform.machine()
    gpus = supervisor.target.run(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"])
    found = "; ".join(line.strip() for line in gpus.text.splitlines() if line.strip()) if gpus.status == 0 else ""
    return f"{cpu}; {found}" if found else cpu


def bench(
    target: str,
    settings: Settings,
    *,
    model: str,
    rates: tuple[float, ...],
    options: measure.Options,
    out: Path | None,
    label: str,
    quiet: bool,
) -> BenchResult:
    """Measure a service as it stands: one that runs, or a command that is run for the purpose. (``cli`` sees to URLs itself.)"""
    place = parse_target(target)
    planned_levels(settings.measure, rates)  # refused before a command is started, which may take minutes
    opened = open_target(target, settings, journal.home() / "targets")
    supervisor, launch = opened.supervisor, None
    try:
        with supervisor.target.forward(opened.parsed.port) as port:
            url = f"http://127.0.0.1:{port}"
            if place.kind == "process":  # nobody runs it: start it, as it stands, and end it afterwards
                launch = supervisor.start(opened.parsed.argv)
                hands = RealHands(supervisor=supervisor, engine=opened.engine, parsed=opened.parsed, settings=settings)
                hands.wait(launch, opened.parsed.candidate, url, notify=lambda loading: None)
            host = supervisor.target
            return bench_run(
                url,
                settings.measure,
                model=model,
                rates=rates,
                options=options,
                out=out,
                label=label,
                round_trip_ms=host.round_trip_ms() if isinstance(host, SshTarget) else None,
                show=None if quiet else show_line,
            )
    finally:
        if launch is not None:
            supervisor.stop(launch, signal=opened.engine.stop_first, grace_s=opened.engine.stop_grace_s)
        supervisor.close()


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
