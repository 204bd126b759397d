"""A systemd unit as a :class:`~leadline.supervisor.Supervisor`: on this machine or behind SSH, system-wide or of one account.

Reads go through :mod:`leadline.probes`.  Every change goes through the *hand* on the host (:mod:`leadline.deploy`), which holds
a lock and asks for this campaign's token, so that nothing of ours happens after the dead-man has put the service back.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from . import deploy, probes, unitevidence, unitfile
from .config import Deploy
from .errors import (
    CannotRewrite,
    LaunchFailed,
    LeadlineError,
    NotRestored,
    PortTaken,
    ReadBackDiffers,
    ServiceLost,
    UnitNotFound,
    Unsupported,
)
from .execstart import ExecStart, IsEngine, Surroundings, is_engine, parse, surroundings
from .hold import Hold
from .neighbours import GpuNeighbours
from .probes import Shown
from .records import Command, Evidence, Exit, Launch, LaunchFile, Listener, Status
from .supervisor import Service, placed
from .target import Completed, Target
from .unithost import UnitHost
from .unitlog import UnitLog

START_LIMIT_S = 3600.0
"""A trial's ``TimeoutStartSec``: beyond what leadline itself waits for a start."""
NOT_EXECUTED = range(200, 246)
"""Exit statuses that systemd's own child uses when it never got as far as the program (systemd.exec(5))."""


class SystemdSupervisor:
    """One unit. Safe to renew from another thread while a call is in progress."""

    def __init__(
        self,
        target: Target,
        unit: str,
        *,
        target_name: str,
        user_unit: bool = False,
        settings: Deploy | None = None,
        engine: IsEngine = is_engine,
        port_of: Callable[[Sequence[str]], int | None] = lambda argv: None,
    ) -> None:
        """``port_of`` tells the port that a command listens on; it must be free before a start. ``None`` skips that check."""
        self.target_name = target_name
        self.unit = unit
        self.settings = settings or Deploy()
        self.target, self._engine, self._port_of = target, engine, port_of
        self._host = UnitHost(target, unit, user_unit=user_unit)
        self._hold = Hold(self._host, self.settings, target_name)
        self._gpus = GpuNeighbours(self._host)
        self._service: Service | None = None
        self._found: Service | None = None
        self._exec: ExecStart | None = None
        self._logs: dict[str, UnitLog] = {}
        self._ended: dict[str, Exit] = {}
        """How the launches that leadline stopped ended."""

    # -- reading -------------------------------------------------------------------------------------------------------

    def service(self) -> Service:
        """The unit as found: a trial's drop-in of ours is looked through."""
        cat = self._host.run("systemctl", *self._host.scope, "cat", "--no-pager", "--", self.unit)
        shown = self._host.show()
        self._refuse_unusable(cat, shown)
        ours = self._host.where().dropin
        trial = ours in shown.get("DropInPaths").split()
        text = unitfile.without_file(cat.text, ours)
        self._exec = self._read_exec(text, shown, trial=trial)
        env = tuple(sorted(unitfile.parse_environment(shown.get("Environment")).items()))
        dropins = " ".join(path for path in shown.get("DropInPaths").split() if path != ours)
        digest = hashlib.sha256("\n".join([text.strip(), shown.get("UnitFileState"), dropins]).encode()).hexdigest()
        self._service = Service(
            name=self.unit,
            command=Command(argv=self._exec.argv, env=env, cwd=shown.get("WorkingDirectory") or None),
            running=shown.running and not trial,
            launch=self._host.launch(shown) if shown.running and not trial else None,
            active_state=shown.get("ActiveState"),
            digest=digest,
            notes=(*self._exec.notes, *self._warnings(shown)),
        )
        self._found = self._found or self._service
        return self._service

    def _refuse_unusable(self, cat: Completed, shown: Shown) -> None:
        state = shown.get("LoadState")
        if state != "loaded":
            why = {"not-found": "systemd knows no unit of that name", "masked": "it is masked"}.get(state, shown.get("LoadError") or state)
            raise UnitNotFound(host=self.target.name, unit=self.unit, why=why, hint="`systemctl cat` shows what systemd reads")
        cat.check(self.target.name)
        if shown.get("Type") in ("oneshot", "forking", "dbus"):
            raise Unsupported(
                what=f"a unit of Type={shown.get('Type')}",
                where="by leadline",
                fix="use Type=simple, exec or notify: the main process is the engine",
            )
        if shown.get("Transient") == "yes":
            raise Unsupported(what="a transient unit", where="by leadline", fix="write a unit file; a transient unit has no text to change")

    def _warnings(self, shown: Shown) -> list[str]:
        notes = []
        if shown.get("NeedDaemonReload") == "yes":
            notes.append("the unit's files were changed after systemd read them: run `systemctl daemon-reload` before `tune`")
        held = self._hold.owner()
        if held is not None and not self._hold.is_mine(held):
            notes.append(f"held by another campaign: {held.text}, since {held.since}")
        if self._host.where().lasting in shown.get("DropInPaths").split():
            notes.append("a setting applied by leadline is part of the unit as found; `leadline restore` takes it back")
        if shown.get("KillMode") == "process":
            notes.append("KillMode=process leaves worker processes, and with them GPU memory, behind: use mixed or control-group")
        return notes

    def _read_exec(self, cat: str, shown: Shown, *, trial: bool) -> ExecStart:
        found = unitfile.effective(cat, "ExecStart")
        if len(found) != 1:
            raise CannotRewrite(where=self.unit, why=f"it has {len(found)} ExecStart lines that count", fix="leave exactly one")
        around = self._surroundings(shown, found[0].value)
        read = parse(found[0].value, around, engine=self._engine)
        comparable = not trial and shown.get("NeedDaemonReload") != "yes"
        if comparable and not any(probes.same_command(text, read.shown) for text in shown.exec_argv):
            raise CannotRewrite(
                where=self.unit,
                why="systemd reads its ExecStart otherwise than leadline does: " + (shown.exec_argv or ["(nothing)"])[0][:200],
                fix="write the line with plain quotes; and please report it as a defect",
            )
        return read

    def _surroundings(self, shown: Shown, source: str) -> Surroundings:
        files = [
            (path, may_miss, self._host.read_quietly(path) if "$" in source else "")
            for path, may_miss in probes.environment_files(shown.all("EnvironmentFiles"))
        ]
        scripts = []
        words = unitfile.words(source, self.unit)
        program = words[0].value.lstrip("-:+!|@") if words else ""
        if program.startswith("/") and not self._engine([program, *(word.value for word in words[1:])]):
            text = self._host.read_quietly(program, limit_bytes=1 << 16)
            if text is not None and text.startswith("#!"):
                scripts.append((program, text))
        return surroundings(
            self.unit,
            unitfile.parse_environment(shown.get("Environment")),
            files,
            passed=bool(shown.get("PassEnvironment") or shown.get("UnsetEnvironment")),
            scripts=scripts,
        )

    def status(self, launch: Launch) -> Status:
        log = self._log(launch)
        log.refresh(at_most_every_s=0.5)
        if launch.launch_id in self._ended:
            return Status(running=False, exit=self._ended[launch.launch_id], log_bytes=log.size)
        shown = self._host.show()
        ours = shown.get("InvocationID") == launch.launch_id
        if not ours:
            return Status(running=False, exit=Exit(by="systemd"), log_bytes=log.size)
        cpu, memory = shown.number("CPUUsageNSec"), shown.number("MemoryCurrent")
        running = shown.running
        return Status(
            running=running,
            exit=None if running else shown.exit,
            cpu_s=cpu / 1e9 if cpu is not None else None,
            memory_bytes=memory,
            log_bytes=log.size,
        )

    def log(self, launch: Launch, *, start: int = 0, limit_bytes: int = 1 << 20) -> bytes:
        log = self._log(launch)
        log.refresh(at_most_every_s=0.5)
        return log.part(start, limit_bytes)

    def _log(self, launch: Launch) -> UnitLog:
        if launch.launch_id not in self._logs:
            self._logs[launch.launch_id] = UnitLog(
                self.target, self._host.scope, launch.launch_id, launch.started_s, self.settings.log_limit_bytes
            )
        return self._logs[launch.launch_id]

    def listeners(self, port: int) -> tuple[Listener, ...]:
        boot_s, ticks = self._host.clock()
        argv = ("sh", "-c", probes.SOCKETS, "sh", str(port))
        done = self._host.run(*argv).check(self.target.name, hint="`ss` of iproute2 is needed")
        found = probes.parse_sockets(done.text, port, boot_s, ticks)
        if any(listener.pid == 0 for listener in found) and not self._host.user_unit:
            done = self._host.run(*argv, root=True).check(self.target.name)
            found = probes.parse_sockets(done.text, port, boot_s, ticks)
        return tuple(found)

    def owns(self, launch: Launch, pid: int) -> bool:
        shown = self._host.show()
        if shown.get("InvocationID") != launch.launch_id:
            return False
        group = shown.get("ControlGroup")
        text = self._host.run("cat", f"/proc/{pid}/cgroup").text
        paths = [line.rpartition(":")[2] for line in text.splitlines()]
        if group and any(path == group or path.startswith(group + "/") for path in paths):
            return True
        return self._exec is not None and self._exec.style == "container" and self._in_container(text)

    def _in_container(self, cgroup: str) -> bool:
        """Whether a process of that cgroup runs in the container which the unit's command names (``--name``)."""
        source = self._exec.source if self._exec is not None else ""
        words = [word.value for word in unitfile.words(source, self.unit)]
        named = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "--name"] + [
            w.partition("=")[2] for w in words if w.startswith("--name=")
        ]
        runtime = next((word for word in words if word.rpartition("/")[2] in ("docker", "podman", "nerdctl")), "")
        if not named or not runtime:
            return False
        ident = self._host.run(runtime, "inspect", "--format", "{{.Id}}", named[0], root=True).text.strip()
        return bool(ident) and ident in cgroup

    def evidence(self, launch: Launch | None) -> Evidence:
        shown = self._host.show()
        ended = shown.exit if launch is None or shown.get("InvocationID") == launch.launch_id else None
        return unitevidence.gather(
            self.target,
            self.unit,
            scope=self._host.scope,
            env=self._host.user_env(),
            invocation=launch.launch_id if launch is not None else "",
            group=shown.get("ControlGroup"),
            exit_=ended,
        )

    # -- changing ------------------------------------------------------------------------------------------------------

    def plan(self, argv: Sequence[str], *, files: Sequence[LaunchFile] = ()) -> str:
        read = self._read()
        text = read.replace(self._placed(argv, files))
        where = self._host.where()
        return deploy.diff(self.unit, read.source, text, where.dropin, self._trial_text(text, self._host.show(), files=files))

    def _placed(self, argv: Sequence[str], files: Sequence[LaunchFile]) -> tuple[str, ...]:
        """Raises LaunchFailed where the engine could not read a credential of its unit."""
        if not files:
            return tuple(argv)
        line = ""
        release = probes.systemd_release(self._host.run("systemctl", "--version").text)
        if self._read().style == "container":
            line = "the engine runs in a container, which sees no file of its unit"
        elif self._host.user_unit:
            line = "a file for the launch is placed for system units only"
        elif release is None or release < deploy.CREDENTIALS_SINCE:
            line = f"systemd {release or '(release not known)'} has no credentials; {deploy.CREDENTIALS_SINCE} has"
        if line:
            how, fix = "not started", f"put {files[0].name} where the engine reads it and name its path by hand: {files[0].text}"
            raise LaunchFailed(candidate=self.unit, how=how, after_s=0, line=line, fix=fix)
        return placed(argv, files, lambda name: deploy.credential_path(self.unit, name))

    def arm(self) -> None:
        """Take the unit for this campaign and arm the dead-man; nothing of the service changes. Idempotent.

        Raises HostInUse, NeighboursAtRisk, NeedsRights, CannotRewrite.
        """
        if self._hold.taken:
            return
        self._read()
        if self._host.show().get("NeedDaemonReload") == "yes":
            raise CannotRewrite(
                where=self.unit,
                why="its files were changed after systemd read them, so a reload would change more than leadline's settings",
                fix="run `systemctl daemon-reload` (and restart the service if you want the change), then try again",
            )
        if not self.settings.allow_gpu_neighbours:
            self._gpus.refuse_risk(self._read().source + " ")
        self._hold.take()

    def start(self, argv: Sequence[str], *, files: Sequence[LaunchFile] = ()) -> Launch:
        read = self._read()
        text = read.replace(self._placed(argv, files))
        self.arm()
        where, shown = self._host.where(), self._host.show()
        data = self._trial_text(text, shown, files=files).encode()
        self._hold.refuse(self._hold.change("put", str(len(data)), stdin=data), where.dropin)
        shown = self._read_back(parse(text, self._surroundings(shown, text), engine=self._engine), where.dropin)
        return self._restart(shown, argv)

    def _restart(self, before: Shown, argv: Sequence[str]) -> Launch:
        users = self._gpus.pids(before)
        self._hold.refuse(self._hold.change("halt", timeout_s=self._hold.limit_s), self.unit)
        self._await_port(self._port_of(argv))
        self._gpus.wait(users, self.settings.free_timeout_s)
        self._hold.refuse(self._hold.change("start"), self.unit)
        until = time.monotonic() + 30.0
        while True:
            shown = self._host.show()
            fresh = shown.get("InvocationID") not in ("", before.get("InvocationID"))
            if fresh and (shown.number("ExecMainPID") or shown.get("ActiveState") == "failed"):
                return self._executed(shown, argv)
            if time.monotonic() > until:
                raise LaunchFailed(
                    candidate=self.unit,
                    how=shown.get("Result") or "no process",
                    after_s=30,
                    line=f"ActiveState={shown.get('ActiveState')}",
                    fix="see `systemctl status`",
                )
            time.sleep(0.1)

    def _await_port(self, port: int | None) -> None:
        """Until nobody listens on ``port``: the unit's cgroup is empty, but a container's process may outlive its client. Raises PortTaken."""
        until = time.monotonic() + self.settings.free_timeout_s
        while port is not None and (holders := self.listeners(port)):
            if time.monotonic() > until:
                raise PortTaken(port=port, pid=holders[0].pid or "(unknown)", command=holders[0].command[:200])
            time.sleep(0.5)

    def _executed(self, shown: Shown, argv: Sequence[str]) -> Launch:
        """The launch, once its process has become the program. Raises LaunchFailed when systemd could not execute it."""
        launch = self._host.launch(shown)
        self._host.run("sh", "-c", probes.EXECUTED, "sh", str(launch.pid))
        shown = self._host.show()
        ended = shown.exit if shown.get("InvocationID") == launch.launch_id else None
        if ended is not None and ended.code in NOT_EXECUTED:
            line = f"{self._read().replace(argv).split(maxsplit=1)[0]}: systemd could not execute it, or what the unit asks for before that"
            raise LaunchFailed(
                candidate="the command",
                how=ended.text,
                after_s=0,
                line=line,
                fix=f"`systemctl status {self.unit}` names the step that failed",
            )
        return launch

    def stop(self, launch: Launch, *, signal: str = "TERM", grace_s: float = 10.0) -> Exit:
        if launch.launch_id in self._ended:
            return self._ended[launch.launch_id]
        shown = self._host.show()
        if shown.get("InvocationID") != launch.launch_id or not self._hold.taken:
            return Exit(by="systemd") if shown.get("InvocationID") != launch.launch_id else self._stop_found(shown)
        trial = self._host.where().dropin in shown.get("DropInPaths").split()
        if signal != "TERM" and shown.running and trial:  # Restart=no in a trial: the signal alone ends it
            with contextlib.suppress(ServiceLost):
                self._hold.change("kill", signal)
            self._until_stopped(launch, min(grace_s, 30.0))
        users = self._gpus.pids(shown)
        self._hold.refuse(self._hold.change("halt", timeout_s=self._hold.limit_s), self.unit)
        self._gpus.wait(users, self.settings.free_timeout_s)
        self._ended[launch.launch_id] = self._exit_of(launch)
        return self._ended[launch.launch_id]

    def _stop_found(self, shown: Shown) -> Exit:
        self.arm()
        self._hold.refuse(self._hold.change("halt", timeout_s=self._hold.limit_s), self.unit)
        return self._exit_of(self._host.launch(shown))

    def _exit_of(self, launch: Launch) -> Exit:
        shown = self._host.show()
        found = shown.exit if shown.get("InvocationID") in ("", launch.launch_id) else None
        at = shown.number("ExecMainExitTimestampMonotonic")
        at_s = self._host.clock()[0] + at / 1e6 if at else None
        return Exit(code=found.code if found else None, signal=found.signal if found else None, by="leadline", at_s=at_s)

    def _until_stopped(self, launch: Launch, limit_s: float) -> None:
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            shown = self._host.show()
            if shown.get("InvocationID") != launch.launch_id or not shown.running:
                return
            time.sleep(0.2)

    def renew(self) -> None:
        self._hold.renew()

    def restore(self, *, force: bool = False) -> str:
        """Put the service back as found. ``force`` also ends a campaign of somebody else that still lives.

        Raises HostInUse, NotRestored.
        """
        owner = self._hold.owner()
        if owner is None:
            self._hold.drop()
            return f"{self.unit} is as found: no trial of leadline stands on {self.target.name}"
        if not self._hold.is_mine(owner) and not force:
            self._hold.refuse_living(owner, by_hand=True)
        self._hold.give_back("asked by leadline" if self._hold.is_mine(owner) else "asked by hand")
        self._check_restored()
        return f"{self.unit} runs as found" if self._host.show().running else f"{self.unit} is as found (not running)"

    def take_back(self, *, force: bool = False) -> str:
        """What ``leadline restore`` means: end the trial that stands, or, when none does, take back what ``apply`` left."""
        trial = self._hold.owner() is not None
        said = self.restore(force=force)
        return said if trial else self.undo()

    def apply(self, argv: Sequence[str], *, files: Sequence[LaunchFile] = (), verify: Callable[[Launch], None] | None = None) -> str:
        """Make ``argv`` permanent with a drop-in under /etc; one restart. ``verify`` asks the service; what it raises takes all back.

        Without ``verify`` the unit itself must run and still run two seconds later.
        """
        read = self._read()
        text = read.replace(self._placed(argv, files))
        self.arm()
        where, shown = self._host.where(), self._host.show()
        wanted = parse(text, self._surroundings(shown, text), engine=self._engine)
        trial = self._trial_text(text, shown, to_journal=False, files=files).encode()
        now, ran = datetime.now(UTC).isoformat(timespec="seconds"), self._found is None or self._found.running
        lasting = deploy.lasting_dropin(text, when=now, files=files, ran=ran).encode()
        try:
            # under /run until it is verified: a reboot in between must not bring up what nobody has seen working
            self._hold.refuse(self._hold.change("put", str(len(trial)), stdin=trial), where.dropin)
            launch = self._restart(self._read_back(wanted, where.dropin), argv)
            (verify or self._still_running)(launch)
            self._hold.refuse(self._hold.change("keep", str(len(lasting)), stdin=lasting), where.lasting)
            self._read_back(wanted, where.lasting)
            self._hold.refuse(self._hold.change("commit"), where.lasting)
        except LeadlineError as error:
            self.restore()
            error.fields["rolled_back"] = "true"
            raise
        self._hold.drop()
        self._found = self._service = self._exec = None
        return f"{where.lasting} holds the new setting; {self.unit} runs with it"

    def undo(self) -> str:
        """Take a setting that :meth:`apply` made permanent back; the service runs as before that. No journal is needed."""
        where = self._host.where()
        if self._host.run("test", "-e", where.lasting, root=True).status != 0:
            return f"{self.unit} is as it should be: neither a trial nor a setting of leadline stands on {self.target.name}"
        self.arm()
        self._hold.refuse(self._hold.change("undo", timeout_s=self._hold.limit_s + 60.0), where.lasting)
        self._hold.drop()
        self._found = self._service = self._exec = None
        return f"{where.lasting} is gone; {self.unit} runs as it did before"

    def close(self) -> None:
        """End the connection. An armed dead-man stays armed: call :meth:`restore` first."""
        self._hold.drop()
        self.target.close()

    # -- details -------------------------------------------------------------------------------------------------------

    def _read(self) -> ExecStart:
        if self._exec is None:
            self.service()
        assert self._exec is not None
        return self._exec

    def _trial_text(self, exec_start: str, shown: Shown, *, to_journal: bool = True, files: Sequence[LaunchFile] = ()) -> str:
        streams = {shown.get("StandardOutput") or "journal", shown.get("StandardError") or "inherit"}
        found = deploy.Found(
            exec_start=self._read().source,
            stop_timeout_s=probes.span_s(shown.get("TimeoutStopUSec")),
            to_journal=not to_journal or streams <= {"journal", "inherit", "journal+console"},
        )
        return deploy.trial_dropin(found, exec_start, self.settings, start_limit_s=START_LIMIT_S, files=files)

    def _read_back(self, wanted: ExecStart, path: str) -> Shown:
        """What systemd shows once ``wanted`` is loaded from ``path``. Raises ReadBackDiffers, the change taken back."""
        shown = self._host.show()
        if shown.get("LoadState") == "loaded" and any(probes.same_command(text, wanted.shown) for text in shown.exec_argv):
            if path in shown.get("DropInPaths").split():
                return shown
            found = f"drop-ins {shown.get('DropInPaths') or '(none)'}"
        else:
            found = f"{shown.get('LoadState')}: {(shown.exec_argv or ['(no ExecStart)'])[0][:300]}"
        self.restore()
        raise ReadBackDiffers(
            what="a new ExecStart", where=path, found=found, hint="a later drop-in may win: `systemctl cat` shows the order"
        )

    def _still_running(self, launch: Launch) -> None:
        until = time.monotonic() + 2.0
        while True:
            shown = self._host.show()
            if shown.get("InvocationID") != launch.launch_id or not shown.running:
                exit_ = shown.exit
                raise LaunchFailed(
                    candidate="the applied setting",
                    how=exit_.text if exit_ else "gone",
                    after_s=2,
                    line=shown.get("Result"),
                    fix="see its journal",
                )
            if shown.get("ActiveState") == "active" and time.monotonic() > until:
                return
            if time.monotonic() > until + START_LIMIT_S:
                raise LaunchFailed(
                    candidate="the applied setting",
                    how="never active",
                    after_s=START_LIMIT_S,
                    line=shown.get("SubState"),
                    fix="see its journal",
                )
            time.sleep(0.3)

    def _check_restored(self) -> None:
        found, self._exec = self._found, None
        after, shown = self.service(), self._host.show()
        if found is not None and after.digest != found.digest:
            raise NotRestored(
                why="the unit's text or enablement is not what it was", fix="somebody changed it meanwhile: compare with `systemctl cat`"
            )
        if found is not None and found.running and not shown.running:
            raise NotRestored(
                why=f"the service is {shown.get('ActiveState')} ({shown.get('Result')})", fix="see its journal, start it by hand"
            )
