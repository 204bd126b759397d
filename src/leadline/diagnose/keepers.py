"""Judges of what keeps the service: stops asked for, starts cut short, hardening, crashes recorded as success, loops, silence."""

from __future__ import annotations

import re

from ..records import Finding
from . import life, supervision
from .case import LOOP, Case
from .lines import Line
from .quoting import quotes
from .reading import Reading, before


def requested_stop(case: Case) -> Finding | None:
    if case.stop is None:
        return None
    ended = [e.line for e in case.reading.events_of("exit", "stopped", "stop_timeout") if e.line.index > case.stop.line.index]
    looks_bad = [
        line for line in case.reading.lines[case.stop.line.index + 1 :]
        if line.index < case.run.last and re.search(r"ERROR|died|[Ff]ailed|force kill|leaked|SIGKILL|Killing|exited, code|exit code|Received second interrupt|close\. \(CTRL", line.raw)
    ]  # fmt: skip
    bad_exit = case.exit_signal is not None or any(e.detail not in ("0", "124", "") for e in case.reading.events_of("exit"))
    if not looks_bad and not bad_exit and not case.symptom and case.run.reached >= life.READY:
        return None  # nothing looks like a failure: a healthy life that ended as asked
    soft = case.stop.kind == "soft"
    slow = bool(case.reading.events_of("stop_timeout")) or any("Waiting for connections to close" in line.text for line in looks_bad)
    summary = "the stop was asked for; what looks like a failure is its side effect"
    if slow:
        summary += " (it did not finish in time because requests or connections were still open)"
    return Finding(
        id="supervisor.stop", cls="supervisor.requested_stop", failure=False, summary=summary,
        quotes=quotes([case.stop.line, *ended[-1:], *looks_bad[:1]]), confidence="likely" if soft else "certain",
        remedy="nothing must be repaired; end the load before a stop, and count a stop as clean whatever its exit code" if slow else "nothing must be repaired; clear the state with `systemctl reset-failed` if the unit shows failed",
    )  # fmt: skip


def killed_loading(case: Case) -> Finding | None:
    timeouts = case.reading.events_of("start_timeout")
    if not timeouts and 0 < case.run.reached < life.READY:
        timeouts = case.reading.events_of("watchdog")  # the watchdog of a start that was still loading
    probes = case.reading.events_of("probe_kill")
    if not timeouts and not (probes and case.run.reached < life.READY):
        return None
    if case.first is not None and case.first.fatal and before(case.first.line, (timeouts or probes)[0].line):
        return None
    shown = [e.line for e in (timeouts or probes)[:2]]
    limit = case.reading.props.get("TimeoutStartUSec")
    shown += [case.reading.props["Result"][1]] if case.reading.prop("Result") == "timeout" else []
    shown += [limit[1]] if limit else []
    loading = case.run.last_mark(life.LOADING) or (case.run.marks[-1].line if case.run.marks else None)
    remedy = (
        f"TimeoutStartSec={limit[0]} -> 900 s (or infinity), and measure how long the start really takes"
        if limit
        else "give the start more time (TimeoutStartSec=900, startupProbe failureThreshold x period of 15 minutes)"
    )
    return Finding(
        id="supervisor.killed_loading", cls="supervisor.killed_while_loading", failure=True,
        summary="the supervisor ended a start that was still loading; the engine itself reports no error",
        quotes=quotes([*shown, *([loading] if loading and len(shown) < 3 else [])]), confidence="certain", remedy=remedy, doomed=True, phase="loading",
        confirm="the last engine line is progress, not an error",
    )  # fmt: skip


def watchdog(case: Case) -> Finding | None:
    dogs = case.reading.events_of("watchdog") or (case.reading.events_of("probe_kill") if case.run.reached >= life.READY else [])
    if not dogs or (case.first is not None and case.first.rule.known):
        return None
    return Finding(
        id="supervisor.watchdog", cls="engine.hang", failure=True, summary="the service did not report life in time and the supervisor ended it; why it stood still is not known",
        quotes=quotes([e.line for e in dogs[:2]]), confidence="likely", remedy="take a stack dump while it stands (py-spy dump); raise the limit only if the pause is known work", phase="hung",
    )  # fmt: skip


def cannot_start(case: Case) -> Finding | None:
    """systemd could not even execute the command."""
    reading = case.reading
    for kind, cls, summary, remedy in (
        ("exec_failed", "host.toolchain_missing", "the unit's executable does not exist or cannot be executed", "install the engine at that path, or correct ExecStart"),
        ("sandbox", "supervisor.sandbox_blocked", "the unit's own hardening prevented the start", "relax the property that systemd names"),
        ("setup_failed", "config.invalid_argument", "the unit's environment could not be set up (folder, user, group or environment file)", "correct the property that systemd names"),
        ("bad_setting", "config.invalid_argument", "systemd refuses the unit as it is written", "correct the unit or drop-in (clear ExecStart= before setting it again) and daemon-reload"),
    ):  # fmt: skip
        events = reading.events_of(kind)
        if events and case.first is None:
            return Finding(
                id=f"unit.{kind}",
                cls=cls,
                failure=True,
                summary=summary,
                quotes=quotes([e.line for e in events[:3]]),
                confidence="certain",
                remedy=remedy,
                doomed=True,
                phase="not started",
            )
    return None


_NEEDS = {
    "RestrictAddressFamilies": ("engine", "network", "sandbox"),
    "PrivateDevices": ("gpu.driver", "sandbox"),
    "DevicePolicy": ("gpu.driver", "sandbox"),
    "MemoryDenyWriteExecute": ("engine", "sandbox", "native", "toolchain"),
    "PrivateNetwork": ("network", "sandbox", "model"),
    "IPAddressDeny": ("network", "sandbox", "engine"),
    "SystemCallFilter": ("sandbox", "native"),
    "PrivateIPC": ("sandbox", "host"),
    "ProtectHome": ("sandbox", "model", "toolchain"),
    "ProtectSystem": ("sandbox",),
}


def sandbox(case: Case) -> Finding | None:
    """Hardening that explains a failure which names no cause of its own, or one of the kind that this hardening produces."""
    limits = supervision.sandbox_limits(case.reading.props)
    failed = bool(case.causes or case.fallouts or case.reading.prop("Result") not in ("", "success"))
    if not limits or not failed:
        return None
    first = case.first
    strong = [item for item in limits if item[0] not in ("ProtectHome", "ProtectSystem", "SystemCallFilter", "PrivateIPC", "IPAddressDeny")]
    if first is None:
        chosen = strong or [item for item in limits if item[0] == "IPAddressDeny"]
        chosen = chosen if case.run.reached < life.READY else []
    else:
        family = "gpu.driver" if first.cls == "gpu.driver_unavailable" else first.rule.id.split(".")[0]
        chosen = [
            item
            for item in limits
            if family in _NEEDS.get(item[0], ())
            and (family != "engine" or not first.rule.known)
            and (family in ("gpu.driver", "sandbox", "network", "native") or item in strong)
        ]
        if family in ("network", "model", "toolchain", "engine", "native") and not re.search(
            r"denied|not permitted|not supported by protocol|unreachable|Read-only|timed out|resolve|execut|mprotect|mmap",
            first.failure.body if first.failure else first.text,
        ):
            chosen = []
    if not chosen:
        return None
    named, line, why = chosen[0]
    return Finding(
        id="supervisor.sandbox", cls="supervisor.sandbox_blocked", failure=True, summary=f"the unit's {named} blocks {why}; the engine names no other cause",
        quotes=quotes([line, *([first.line] if first else [s.line for s in case.fallouts[:1]]), *[item[1] for item in chosen[1:2]]]), confidence="likely",
        remedy=_relax(named, case.reading.prop(named)), confirm="the same command works outside the unit as the same user, or in the unit without this property", doomed=True,
    )  # fmt: skip


def _relax(name: str, value: str) -> str:
    if name == "RestrictAddressFamilies":
        return f"RestrictAddressFamilies={value} AF_UNIX AF_NETLINK"
    if name in ("PrivateDevices", "MemoryDenyWriteExecute", "PrivateNetwork", "PrivateIPC", "ProtectHome"):
        return f"{name}=no in a drop-in"
    if name == "IPAddressDeny":
        return "add IPAddressAllow=localhost"
    return f"relax {name} (now {value[:60]}) for what the engine needs"


def masked(case: Case) -> Finding | None:
    """The engine crashed and the supervisor wrote down success."""
    line = case.success
    if line is None or case.stop is not None or case.run.reached < life.READY:
        return None
    crash = [*case.causes, *case.fallouts]
    if not crash or (case.first is not None and case.first.rule.known):
        return None
    return Finding(
        id="supervisor.crash_masked", cls="supervisor.crash_masked", failure=True,
        summary="the engine died while serving, nobody asked for it, and the exit was recorded as success: nothing restarts it; why it died is not known",
        quotes=quotes([*[s.line for s in sorted(crash, key=lambda s: s.line.index)[:3]], line]), confidence="likely",
        remedy="Restart=always (exit 0 is not success here), and an external check of /health; look above for the first error",
        confirm="no stop request before the first of these lines", doomed=False,
    )  # fmt: skip


def loop(case: Case) -> Finding | None:
    count, line = case.restarts
    if count < LOOP or line is None:
        return None
    exits = [e.line for e in case.reading.events_of("exit") if e.line is not line]
    return Finding(
        id="supervisor.restart_loop", cls="supervisor.restart_loop", failure=True, summary=f"the start is repeated ({count} times) and no run says why it ends",
        quotes=quotes([line, *exits[-1:]]), confidence="likely", remedy="stop the unit, set Restart=no, start it once by hand and read its first error", doomed=True,
        confirm="the engine's own log of one start", phase="restarting in a loop",
    )  # fmt: skip


def stalled(case: Case) -> Finding | None:
    """Requests are running and no token comes, line after line."""
    last = [s for s in case.reading.samples if s.tok_s is not None and s.running is not None][-3:]
    still = [s for s in last if s.tok_s == 0.0 and (s.running or 0) > 0]
    if len(last) < 2 or len(still) < 2 or last[-1] is not still[-1]:
        return None
    return Finding(
        id="hang.no_tokens", cls="engine.hang", failure=True, summary="requests are running and no token comes: the engine stands still; why is not known",
        quotes=quotes([s.line for s in still[-2:]]), confidence="likely", remedy="take `py-spy dump` of every process while it stands, then restart", phase="hung",
    )  # fmt: skip


def answers(reading: Reading) -> list[tuple[str, str, Line]]:
    """``(url, status, line)`` of the health requests among the evidence; status ``000`` when nothing came back."""
    found = []
    for line in reading.telling:
        match = re.match(r"^GET (\S+) -> (\d{3})\b", line.text)
        if match and match.group(1).endswith(("/health", "/v1/models", "/get_server_info", "/server_info")):
            found.append((match.group(1), match.group(2), line))
    return found


def _refused_probes(case: Case) -> list[Line]:
    """Health requests in the server's own access log that were answered 503 after it was ready, with nothing served since."""
    if case.run.reached < life.READY:
        return []
    ready = min(mark.line.index for mark in case.run.marks if mark.stage >= life.READY)
    probes = [
        line
        for line in case.reading.telling
        if line.index > ready and re.search(r'"GET /(?:health\w*|ping|v1/models) HTTP/[\d.]+" 503', line.text)
    ]
    if len(probes) < 2 or any(line.index > probes[-1].index and line.dull for line in case.reading.lines):
        return []
    served = [line for line in case.reading.lines if line.dull and line.index > probes[0].index]
    return [] if served else probes


def silent(case: Case) -> Finding | None:
    """It listens and was ready, and does not answer."""
    asked = [(status, line) for url, status, line in answers(case.reading) if url.endswith("/health")]
    refused = [line for line in case.reading.telling if re.match(r"^GET \S+ -> 000 .*refused", line.text)]
    bad = [line for status, line in asked if status in ("000", "503") and line not in refused]
    only_url = not case.run.marks and not case.reading.props
    bad = bad or _refused_probes(case)
    if not bad or any(status == "200" for status, _ in asked) or not (case.run.reached >= life.READY or only_url):
        return None
    if only_url and all(" 503" in line.text for line in bad):
        return None  # loading or dead: the answer alone does not tell
    return Finding(
        id="http.silent", cls="engine.hang", failure=True, summary="the server listens and does not answer its health check; why is not known",
        quotes=quotes(bad[:2]), confidence="likely", remedy="take `py-spy dump` of every process of the service while it stands, then restart it", phase="hung",
    )  # fmt: skip


def died_natively(case: Case) -> Finding | None:
    """Nothing but a signal: SIGSEGV, SIGABRT and the like are crashes of native code, SIGKILL and SIGTERM decide nothing."""
    number = case.exit_signal
    if number not in (4, 6, 7, 8, 11) or case.stop is not None:
        return None
    names = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV"}
    shown = [e.line for e in case.reading.events_of("exit")][-1:] or [s.line for s in case.fallouts[:1]]
    shown += [
        line for line in case.reading.telling if re.search(rf"signal sig\w+|returncode -{number}\b|exit code -{number}\b", line.text)
    ][:1]
    missing = number == 4
    return Finding(
        id="native.signal", cls="host.toolchain_missing" if missing else "engine.internal_error", failure=True,
        summary=f"the process ended by {names[number]}: " + ("the build uses instructions this CPU does not have" if missing else "native code crashed; why is not known from this evidence"),
        quotes=quotes(shown or case.ended), confidence="likely", remedy="use a build for this CPU" if missing else "keep the core (`coredumpctl info`), try another version or backend, report it", doomed=missing or None,
    )  # fmt: skip
