"""A systemd unit as a :class:`~leadline.supervisor.Supervisor`: on this machine or behind SSH, system-wide or of one account.

Reads go through :mod:`leadline.probes`.  Every change goes through the *hand* on the host (:mod:`leadline.deploy`), which holds
a lock and asks for this campaign's token, so that nothing of ours happens after the dead-man has put the service back.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from . import deploy, probes, unitevidence, unitfile
from .config import Deploy
from .deploy import Owner, Place
from .errors import (
    CannotRewrite,
    DiskFull,
    HostCommandFailed,
    HostInUse,
    HostTimeout,
    HostUnreachable,
    LaunchFailed,
    LeadlineError,
    MemoryNotFree,
    NeedsRights,
    NeighboursAtRisk,
    NotRestored,
    ReadBackDiffers,
    ServiceLost,
    UnitNotFound,
    Unsupported,
)
from .execstart import ExecStart, IsEngine, Surroundings, is_engine, parse, surroundings
from .probes import Shown
from .records import Command, Evidence, Exit, Launch, Listener, Status
from .supervisor import Service
from .target import Completed, Target
from .unitlog import UnitLog

START_LIMIT_S = 3600.0
"""A trial's ``TimeoutStartSec``: beyond what leadline itself waits for a start."""
_GONE = (2, 76, 127)  # the hand answers "not your token", or it is not there any more


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
    ) -> None:
        self.target_name = target_name
        self.unit = unit
        self.settings = settings or Deploy()
        self.target, self._user_unit, self._engine = target, user_unit, engine
        self._scope: tuple[str, ...] = ("--user",) if user_unit else ()
        self._token = secrets.token_hex(8)
        self._armed = False
        self._service: Service | None = None
        self._found: Service | None = None
        self._exec: ExecStart | None = None
        self._place: Place | None = None
        self._boot: tuple[float, int] | None = None
        self._logs: dict[str, UnitLog] = {}
        self._last_beat = -1e9
        self._renewer: threading.Thread | None = None
        self._done = threading.Event()
        self._env: tuple[str, ...] = ()
        self._has_gpu: bool | None = None

    # -- reading -------------------------------------------------------------------------------------------------------

    def service(self) -> Service:
        """The unit as found: a trial's drop-in of ours is looked through."""
        cat = self._run("systemctl", *self._scope, "cat", "--no-pager", "--", self.unit)
        shown = self._show()
        self._refuse_unusable(cat, shown)
        ours = self._where().dropin
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
            launch=self._launch(shown) if shown.running and not trial else None,
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
        held = self._owner()
        if held is not None and held.token != self._token:
            notes.append(f"held by another campaign: {held.text}, since {held.since}")
        if self._where().lasting in shown.get("DropInPaths").split():
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
            (path, may_miss, self._read_quietly(path) if "$" in source else "")
            for path, may_miss in probes.environment_files(shown.all("EnvironmentFiles"))
        ]
        scripts = []
        words = unitfile.words(source, self.unit)
        program = words[0].value.lstrip("-:+!|@") if words else ""
        if program.startswith("/") and not self._engine([program, *(word.value for word in words[1:])]):
            text = self._read_quietly(program, limit_bytes=1 << 16)
            if text is not None and text.startswith("#!"):
                scripts.append((program, text))
        return surroundings(
            self.unit,
            unitfile.parse_environment(shown.get("Environment")),
            files,
            passed=bool(shown.get("PassEnvironment") or shown.get("UnsetEnvironment")),
            scripts=scripts,
        )

    def _read_quietly(self, path: str, limit_bytes: int = 1 << 20) -> str | None:
        for root in (False, True):
            try:
                return self.target.read(path, limit_bytes=limit_bytes, root=root and not self._user_unit).decode("utf-8", "replace")
            except FileNotFoundError:
                return None
            except NeedsRights:
                continue
        return None

    def status(self, launch: Launch) -> Status:
        shown = self._show()
        log = self._log(launch)
        log.refresh(at_most_every_s=0.5)
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
                self.target, self._scope, launch.launch_id, launch.started_s, self.settings.log_limit_bytes
            )
        return self._logs[launch.launch_id]

    def listeners(self, port: int) -> tuple[Listener, ...]:
        boot_s, ticks = self._clock()
        argv = ("sh", "-c", probes.SOCKETS, "sh", str(port))
        done = self._run(*argv).check(self.target.name, hint="`ss` of iproute2 is needed")
        found = probes.parse_sockets(done.text, port, boot_s, ticks)
        if any(listener.pid == 0 for listener in found) and not self._user_unit:
            done = self._run(*argv, root=True).check(self.target.name)
            found = probes.parse_sockets(done.text, port, boot_s, ticks)
        return tuple(found)

    def owns(self, launch: Launch, pid: int) -> bool:
        shown = self._show()
        if shown.get("InvocationID") != launch.launch_id:
            return False
        group = shown.get("ControlGroup")
        text = self._run("cat", f"/proc/{pid}/cgroup").text
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
        ident = self._run(runtime, "inspect", "--format", "{{.Id}}", named[0], root=True).text.strip()
        return bool(ident) and ident in cgroup

    def evidence(self, launch: Launch | None) -> Evidence:
        shown = self._show()
        ended = shown.exit if launch is None or shown.get("InvocationID") == launch.launch_id else None
        return unitevidence.gather(
            self.target,
            self.unit,
            scope=self._scope,
            env=self._user_env(),
            invocation=launch.launch_id if launch is not None else "",
            group=shown.get("ControlGroup"),
            exit_=ended,
        )

    # -- changing ------------------------------------------------------------------------------------------------------

    def plan(self, argv: Sequence[str]) -> str:
        read = self._read()
        text = read.replace(argv)
        where = self._where()
        return deploy.diff(self.unit, read.source, text, where.dropin, self._trial_text(text, self._show()))

    def arm(self) -> None:
        """Take the unit for this campaign and arm the dead-man; nothing of the service changes. Idempotent.

        Raises HostInUse, NeighboursAtRisk, NeedsRights, CannotRewrite.
        """
        if self._armed:
            return
        self._read()
        if self._show().get("NeedDaemonReload") == "yes":
            raise CannotRewrite(
                where=self.unit,
                why="its files were changed after systemd read them, so a reload would change more than leadline's settings",
                fix="run `systemctl daemon-reload` (and restart the service if you want the change), then try again",
            )
        self._mind_the_neighbours()
        where = self._where()
        owner = Owner(
            account=getpass.getuser(),
            machine=socket.gethostname(),
            pid=os.getpid(),
            since=datetime.now(UTC).isoformat(timespec="seconds"),
            token=self._token,
        )
        hand = deploy.hand_text(where, self.settings).encode()
        argv = ("sh", "-c", deploy.BOOTSTRAP, "sh", where.dir, str(len(hand)), self._token, deploy.owner_text(owner))
        done = self._run(*argv, stdin=hand, root=True, timeout_s=60.0)
        if done.status == 77:
            self._refuse_living(self._owner() or deploy.parse_owner(""), by_hand=False)
            self.restore()  # that campaign ran here and its process is gone: do what its dead-man is about to do
            done = self._run(*argv, stdin=hand, root=True, timeout_s=60.0)
        if done.status == 77:
            raise self._in_use()
        self._refuse(done, where.dir)
        self._armed = True
        self._last_beat = time.monotonic()
        self._done = threading.Event()
        self._renewer = threading.Thread(target=self._keep_renewing, name="leadline-renew", daemon=True)
        self._renewer.start()

    def start(self, argv: Sequence[str]) -> Launch:
        read = self._read()
        text = read.replace(argv)
        self.arm()
        where, shown = self._where(), self._show()
        data = self._trial_text(text, shown).encode()
        self._refuse(self._hand("put", str(len(data)), stdin=data), where.dropin)
        shown = self._read_back(parse(text, self._surroundings(shown, text), engine=self._engine), where.dropin)
        return self._restart(shown)

    def _restart(self, before: Shown) -> Launch:
        users = self._gpu_pids(before)
        self._refuse(self._hand("halt", timeout_s=self._halt_timeout_s()), self.unit)
        self._wait_for_gpu(users)
        self._refuse(self._hand("start"), self.unit)
        until = time.monotonic() + 30.0
        while True:
            shown = self._show()
            fresh = shown.get("InvocationID") not in ("", before.get("InvocationID"))
            if fresh and (shown.number("ExecMainPID") or shown.get("ActiveState") == "failed"):
                return self._launch(shown)
            if time.monotonic() > until:
                raise LaunchFailed(
                    candidate=self.unit,
                    how=shown.get("Result") or "no process",
                    after_s=30,
                    line=f"ActiveState={shown.get('ActiveState')}",
                    fix="see `systemctl status`",
                )
            time.sleep(0.1)

    def stop(self, launch: Launch, *, signal: str = "TERM", grace_s: float = 10.0) -> Exit:
        shown = self._show()
        if shown.get("InvocationID") != launch.launch_id or not self._armed:
            return Exit(by="systemd") if shown.get("InvocationID") != launch.launch_id else self._stop_found(shown)
        trial = self._where().dropin in shown.get("DropInPaths").split()
        if signal != "TERM" and shown.running and trial:  # Restart=no in a trial: the signal alone ends it
            with contextlib.suppress(ServiceLost):
                self._hand("kill", signal)
            self._until_stopped(launch, min(grace_s, 30.0))
        users = self._gpu_pids(shown)
        self._refuse(self._hand("halt", timeout_s=self._halt_timeout_s()), self.unit)
        self._wait_for_gpu(users)
        return self._exit_of(launch)

    def _stop_found(self, shown: Shown) -> Exit:
        self.arm()
        self._refuse(self._hand("halt", timeout_s=self._halt_timeout_s()), self.unit)
        return self._exit_of(self._launch(shown))

    def _exit_of(self, launch: Launch) -> Exit:
        shown = self._show()
        found = shown.exit if shown.get("InvocationID") in ("", launch.launch_id) else None
        at = shown.number("ExecMainExitTimestampMonotonic")
        at_s = self._clock()[0] + at / 1e6 if at else None
        return Exit(code=found.code if found else None, signal=found.signal if found else None, by="leadline", at_s=at_s)

    def _until_stopped(self, launch: Launch, limit_s: float) -> None:
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            shown = self._show()
            if shown.get("InvocationID") != launch.launch_id or not shown.running:
                return
            time.sleep(0.2)

    def renew(self) -> None:
        if self._armed and time.monotonic() - self._last_beat > self.settings.deadman_s / 4:
            self._beat()

    def restore(self, *, force: bool = False) -> str:
        """Put the service back as found. ``force`` also ends a campaign of somebody else that still lives.

        Raises HostInUse, NotRestored.
        """
        owner = self._owner()
        if owner is None:
            self._disarm()
            return f"{self.unit} is as found: no trial of leadline stands on {self.target.name}"
        if owner.token != self._token and not force:
            self._refuse_living(owner, by_hand=True)
        why = "asked by leadline" if owner.token == self._token else "asked by hand"
        self._disarm()
        done = self._run("sh", self._where().hand, "restore", why, root=True, timeout_s=self._halt_timeout_s() + 60.0)
        if done.status not in (0, *_GONE):
            raise NotRestored(
                why=done.error_text.replace("<5>", "")[-300:] or f"the hand on {self.target.name} ended with {done.status}",
                fix=f"the dead-man on {self.target.name} keeps trying; `journalctl -u {self._where().timer}` tells how far it came",
            )
        self._check_restored()
        return f"{self.unit} runs as found" if self._show().running else f"{self.unit} is as found (not running)"

    def take_back(self, *, force: bool = False) -> str:
        """What ``leadline restore`` means: end the trial that stands, or, when none does, take back what ``apply`` left."""
        trial = self._owner() is not None
        said = self.restore(force=force)
        return said if trial else self.undo()

    def apply(self, argv: Sequence[str], *, verify: Callable[[Launch], None] | None = None) -> str:
        """Make ``argv`` permanent with a drop-in under /etc; one restart. ``verify`` asks the service; what it raises takes all back.

        Without ``verify`` the unit itself must run and still run two seconds later.
        """
        read = self._read()
        text = read.replace(argv)
        self.arm()
        where, shown = self._where(), self._show()
        wanted = parse(text, self._surroundings(shown, text), engine=self._engine)
        trial = self._trial_text(text, shown, to_journal=False).encode()
        lasting = deploy.lasting_dropin(text, when=datetime.now(UTC).isoformat(timespec="seconds")).encode()
        try:
            # under /run until it is verified: a reboot in between must not bring up what nobody has seen working
            self._refuse(self._hand("put", str(len(trial)), stdin=trial), where.dropin)
            launch = self._restart(self._read_back(wanted, where.dropin))
            (verify or self._still_running)(launch)
            self._refuse(self._hand("keep", str(len(lasting)), stdin=lasting), where.lasting)
            self._read_back(wanted, where.lasting)
            self._refuse(self._hand("commit"), where.lasting)
        except LeadlineError as error:
            self.restore()
            error.fields["rolled_back"] = "true"
            raise
        self._disarm()
        self._found = self._service = self._exec = None
        return f"{where.lasting} holds the new setting; {self.unit} runs with it"

    def undo(self) -> str:
        """Take a setting that :meth:`apply` made permanent back; the service runs as before that. No journal is needed."""
        where = self._where()
        if self._run("test", "-e", where.lasting, root=True).status != 0:
            return f"{self.unit} is as it should be: neither a trial nor a setting of leadline stands on {self.target.name}"
        self.arm()
        self._disarm()
        done = self._run("sh", where.hand, "undo", self._token, root=True, timeout_s=self._halt_timeout_s() + 60.0)
        self._refuse(done, where.lasting)
        self._found = self._service = self._exec = None
        return f"{where.lasting} is gone; {self.unit} runs as it did before"

    def close(self) -> None:
        """End the connection. An armed dead-man stays armed: call :meth:`restore` first."""
        self._disarm()
        self.target.close()

    # -- the hand ------------------------------------------------------------------------------------------------------

    def _hand(self, verb: str, *arguments: str, stdin: bytes = b"", timeout_s: float = 150.0) -> Completed:
        done = self._run("sh", self._where().hand, verb, self._token, *arguments, stdin=stdin, root=True, timeout_s=timeout_s)
        if done.status in _GONE:
            self._disarm()
            raise ServiceLost(
                how="leadline's hold on it is gone",
                line=f"the dead-man on {self.target.name}, a reboot or `leadline restore` put {self.unit} back as found",
                hint=f"leadline had not renewed for {self.settings.deadman_s:g} s, or somebody restored the service",
            )
        self._last_beat = time.monotonic()
        return done

    def _refuse(self, done: Completed, path: str) -> None:
        """Raise what a failed change of the hand means."""
        if done.status == 0:
            return
        said = done.error_text.replace("<5>", "")
        if done.status == 74 and ("No space left" in said or "quota exceeded" in said):
            raise DiskFull(path=f"{self.target.name}:{path}")
        raise HostCommandFailed(
            host=self.target.name,
            command=f"change {path}",
            status=done.status,
            stderr=said[-400:] or "(nothing on stderr)",
            hint="the change was taken back",
        )

    def _beat(self) -> None:
        self._last_beat = time.monotonic()
        done = self._run("sh", self._where().hand, "beat", self._token, root=True)
        if done.status in _GONE:
            self._armed = False

    def _keep_renewing(self) -> None:
        """In a thread: a process that lives renews, whatever its main thread waits for (each of those waits has a limit)."""
        done = self._done
        while not done.wait(max(0.5, self.settings.deadman_s / 10)):
            with contextlib.suppress(HostUnreachable, HostTimeout, NeedsRights, HostCommandFailed):  # tried again until the dead-man acts
                self.renew()

    def _disarm(self) -> None:
        self._armed = False
        self._done.set()

    def _in_use(self) -> HostInUse:
        owner = self._owner() or deploy.parse_owner("")
        age, period = self._silence()
        if age is None:
            state = "its dead-man was never armed, so it changed nothing"
        elif age < period:
            state = f"it renewed {age} s ago; its dead-man restores the service {period} s after the last renewal"
        else:
            state = f"it has been silent for {age} s; its dead-man (period {period} s) is restoring or could not"
        return HostInUse(
            what=f"{self.unit} on {self.target.name}",
            owner=f"{owner.text} ({state})",
            since=owner.since,
            fix=f"`leadline restore {self.target_name} --force` puts the service back as that campaign found it",
        )

    def _refuse_living(self, owner: Owner, *, by_hand: bool) -> None:
        """Raise HostInUse unless the holder is certainly gone: it ran here and its process is no more; or, for a restore by
        hand, it has missed several renewals in a row."""
        if owner.machine == socket.gethostname() and owner.account == getpass.getuser() and not _process_lives(owner.pid):
            return
        age, period = self._silence()
        if by_hand and (age is None or age > period / 2):
            return
        raise self._in_use()

    def _silence(self) -> tuple[int | None, int]:
        """Seconds since the holder last renewed, and its period."""
        text = self._run(
            "sh",
            "-c",
            'cut -d. -f1 /proc/uptime; cat "$1/alive"; echo; sed -n \'s/^period_s=//p\' "$1/hand"',
            "sh",
            self._where().dir,
            root=True,
        ).text.split()
        if len(text) < 3 or not all(part.isdigit() for part in text[:3]):
            return None, round(self.settings.deadman_s)
        return int(text[0]) - int(text[1]), int(text[2])

    def _owner(self) -> Owner | None:
        """Who holds the unit; ``None`` when nobody does."""
        done = self._run("sh", "-c", 'cat "$1/owner" 2>/dev/null || { [ -d "$1" ] && echo "?"; }', "sh", self._where().dir)
        return deploy.parse_owner(done.text) if done.status == 0 else None

    # -- details -------------------------------------------------------------------------------------------------------

    def _run(self, *argv: str, stdin: bytes = b"", root: bool = False, timeout_s: float = 30.0) -> Completed:
        prefix = ("env", "LC_ALL=C", *self._user_env())
        return self.target.run((*prefix, *argv), stdin=stdin, root=root and not self._user_unit, timeout_s=timeout_s)

    def _user_env(self) -> tuple[str, ...]:
        if not self._user_unit:
            return ()
        if not self._env:
            uid = self.target.run(("id", "-u")).check(self.target.name).text.strip()
            self._env = (f"XDG_RUNTIME_DIR=/run/user/{uid}", f"DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/{uid}/bus")
        return self._env

    def _where(self) -> Place:
        if self._place is None:
            runtime = config = ""
            if self._user_unit:
                runtime = self._user_env()[0].partition("=")[2]
                home = self.target.run(("sh", "-c", 'printf %s "${XDG_CONFIG_HOME:-$HOME/.config}"'))
                config = home.check(self.target.name).text
            self._place = deploy.place(self.unit, user_unit=self._user_unit, runtime_dir=runtime, config_dir=config)
        return self._place

    def _show(self) -> Shown:
        done = self._run("systemctl", *self._scope, "show", "--no-pager", "-p", ",".join(probes.SHOW), "--", self.unit)
        return probes.parse_show(done.check(self.target.name, hint="`systemctl show` must work for this account").text)

    def _read(self) -> ExecStart:
        if self._exec is None:
            self.service()
        assert self._exec is not None
        return self._exec

    def _clock(self) -> tuple[float, int]:
        if self._boot is None:
            self._boot = probes.parse_clock(self.target.run(probes.CLOCK).check(self.target.name).text)
        return self._boot

    def _launch(self, shown: Shown) -> Launch:
        started = shown.number("ExecMainStartTimestampMonotonic") or 0
        ident = shown.get("InvocationID")
        return Launch(
            launch_id=ident,
            pid=shown.number("MainPID") or shown.number("ExecMainPID") or 0,
            started_s=self._clock()[0] + started / 1e6,
            log=f"journalctl {' '.join((*self._scope, f'_SYSTEMD_INVOCATION_ID={ident}'))} on {self.target.name}",
        )

    def _trial_text(self, exec_start: str, shown: Shown, *, to_journal: bool = True) -> str:
        streams = {shown.get("StandardOutput") or "journal", shown.get("StandardError") or "inherit"}
        found = deploy.Found(
            exec_start=self._read().source,
            stop_timeout_s=probes.span_s(shown.get("TimeoutStopUSec")),
            to_journal=not to_journal or streams <= {"journal", "inherit", "journal+console"},
        )
        return deploy.trial_dropin(found, exec_start, self.settings, start_limit_s=START_LIMIT_S)

    def _read_back(self, wanted: ExecStart, path: str) -> Shown:
        """What systemd shows once ``wanted`` is loaded from ``path``. Raises ReadBackDiffers, the change taken back."""
        shown = self._show()
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

    def _halt_timeout_s(self) -> float:
        return deploy.grace_s(self.settings) + 120.0

    def _still_running(self, launch: Launch) -> None:
        until = time.monotonic() + 2.0
        while True:
            shown = self._show()
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
        after, shown = self.service(), self._show()
        if found is not None and after.digest != found.digest:
            raise NotRestored(
                why="the unit's text or enablement is not what it was", fix="somebody changed it meanwhile: compare with `systemctl cat`"
            )
        if found is not None and found.running and not shown.running:
            raise NotRestored(
                why=f"the service is {shown.get('ActiveState')} ({shown.get('Result')})", fix="see its journal, start it by hand"
            )

    # -- GPUs ----------------------------------------------------------------------------------------------------------

    def _gpu(self) -> probes.Gpu:
        if self._has_gpu is False:
            return probes.Gpu()
        text = self._run("sh", "-c", probes.GPU, root=True).text
        self._has_gpu = text != probes.NO_GPU
        return probes.parse_gpu(text)

    def _gpu_pids(self, shown: Shown) -> set[int]:
        """Processes of the unit that hold GPU memory now."""
        group = shown.get("ControlGroup")
        return {pid for pid, text in self._gpu().apps if group and group in text}

    def _wait_for_gpu(self, pids: set[int]) -> None:
        until = time.monotonic() + self.settings.free_timeout_s
        while pids:
            held = pids & {pid for pid, _ in self._gpu().apps}
            if not held:
                return
            if time.monotonic() > until:
                raise MemoryNotFree(
                    what="GPU memory", seconds=self.settings.free_timeout_s, who="pids " + ", ".join(map(str, sorted(held)))
                )
            time.sleep(0.5)

    def _mind_the_neighbours(self) -> None:
        if self.settings.allow_gpu_neighbours:
            return
        own = self._exec is not None and self._exec.style == "container"
        names = [name for name in self._gpu().containers if not (own and self._is_own(name))]
        if names:
            raise NeighboursAtRisk(
                host=self.target.name,
                who=", ".join(names),
                fix="give those containers their devices with --device=/dev/nvidia… or the cgroupfs driver, stop them, or set deploy.allow_gpu_neighbours if you accept it",
            )

    def _is_own(self, name: str) -> bool:
        source = self._exec.source if self._exec is not None else ""
        return f"--name {name.split()[0]}" in source or f"--name={name.split()[0]}" in source


def _process_lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0
