"""From a reading to ranked findings: first causes before consequences, evidence before exit codes, silence before guessing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..records import Finding
from . import kernel, life, performance, remedies, supervision
from .lines import ENGINE, FACT, SYSTEMD, Line
from .quoting import quotes
from .reading import Reading, Sign, before

_ENGINE_TASK = re.compile(
    r"^(?:python[\d.]*|sglang|VLLM|vllm|llama|ray|pt_main_thread|trtllm|triton(?:server)?|ollama|koboldcpp|EngineCore|Worker|api_server|uvicorn|gunicorn|server|text-generation|mpirun|MainThread|\(?sd-)",
    re.IGNORECASE,
)
_ENGINE_NAME = re.compile(r"vllm|sglang|llama|engine|llm|inference|ollama|trt|tgi", re.IGNORECASE)
LOOP = 3
"""Restarts from which a retried start is a loop."""


class Case:
    """A reading with the questions that several rules ask."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.run = reading.run
        self.causes = [s for s in reading.signs if s.cause and self.run.first <= s.line.index < self.run.last]
        self.fallouts = [s for s in reading.signs if s.rule.fallout and not s.survived and self.run.first <= s.line.index < self.run.last]
        self.first = _earliest(self.causes)
        self.stop = self._stop()
        self.symptom = performance.intents(reading.evidence.symptom)

    # -- facts --------------------------------------------------------------------------------------------------------

    @property
    def restarts(self) -> tuple[int, Line | None]:
        """How often the start was repeated, and the line that says so."""
        most, shown = 0, None
        for counted, event in enumerate(self.reading.events_of("restart", "start_limit"), 1):
            count = int(event.detail) if event.detail.isdigit() else counted
            if event.kind == "start_limit":
                count = max(count, LOOP)
            if count >= most:
                most, shown = count, event.line
        value, line = self.reading.props.get("NRestarts", ("0", None))
        if value.isdigit() and int(value) > most:
            most, shown = int(value), line
        return most, shown

    @property
    def success(self) -> Line | None:
        """The line in which the supervisor records success for a service that is gone."""
        reading = self.reading
        found = reading.evidence.exit
        if found is not None and found.code == 0 and found.by != "leadline":
            return self.run.marks[-1].line if self.run.marks else None
        gone = reading.prop("ActiveState") in ("inactive", "") and reading.prop("SubState") not in ("running",)
        for key, good in (("Result", "success"), ("ExecMainStatus", "0")):
            if (
                key in reading.props
                and reading.prop(key) == good
                and gone
                and (key == "Result" or reading.prop("ExecMainCode") in ("1", "exited"))
            ):
                return reading.props[key][1]
        for event in reading.events_of("exit"):
            if event.detail == "0":
                return event.line
        return None

    @property
    def exit_signal(self) -> int | None:
        """The signal that ended the main process, if the evidence says so."""
        found = self.reading.evidence.exit
        if found is not None and found.signal is not None:
            return found.signal
        if self.reading.prop("ExecMainCode") in ("2", "3", "killed", "dumped") and self.reading.prop("ExecMainStatus").isdigit():
            return int(self.reading.prop("ExecMainStatus"))
        for event in reversed(self.reading.events_of("exit")):
            match = re.search(r"code=(?:killed|dumped), status=(\d+)", event.line.text)
            if match:
                return int(match.group(1))
            if event.detail.lstrip("-").isdigit():
                value = int(event.detail)
                if value < 0:
                    return -value
                if value > 128:
                    return value - 128
        for line in reversed(self.reading.telling):
            match = re.search(r"(?:crashed with exit code|died unexpectedly \(exit code:|exit code:|returncode) -(\d+)", line.text)
            if match:
                return int(match.group(1))
        return None

    @property
    def ended(self) -> list[Line]:
        """Lines that say the server is gone, whatever the cause."""
        reading = self.reading
        lines = [e.line for e in reading.events_of("exit", "stopped", "start_limit") if e.line.index >= self.run.first]
        lines += [s.line for s in self.fallouts]
        for key, bad in (("ActiveState", ("failed", "inactive")), ("SubState", ("auto-restart", "failed", "dead"))):
            if reading.prop(key) in bad:
                lines.append(reading.props[key][1])
        return lines

    def _stop(self) -> supervision.Event | None:
        """The first request to stop in this run that no failure precedes."""
        for event in self.reading.stops:
            if not self.run.first <= event.line.index < self.run.last and event.line.channel != FACT:
                continue
            if event.kind == "soft" and (self.run.reached < life.READY or not _clean(self.reading, event.line)):
                continue
            earlier = [s for s in (*self.causes, *self.fallouts) if before(s.line, event.line)]
            if earlier or any(before(e.line, event.line) for e in self.reading.events_of("start_timeout", "watchdog", "oom", "probe_kill")):
                continue
            if any(s.line.index == event.line.index for s in self.causes):
                continue
            if any(event.line.index < e.line.index for e in self.reading.events_of("start_limit")):
                continue  # stopped on the way to a start that systemd refused
            return event
        return None

    @property
    def phase(self) -> str:
        """Where the server stands, before any cause is named."""
        reading = self.reading
        young = self.restarts[0] >= 1 and reading.prop("ActiveState") in ("active", "activating") and self.run.reached < life.READY
        if reading.prop("SubState") == "auto-restart" or reading.events_of("start_limit") or self.restarts[0] >= LOOP or young:
            return "restarting in a loop"
        if self.stop is not None:
            return "stopped" if self.ended else "stopping"
        bad_exit = any(e.kind == "start_timeout" or (e.kind == "exit" and e.detail not in ("0", "124")) for e in reading.events)
        if self.causes or self.fallouts or bad_exit or reading.prop("ActiveState") == "failed" or self.exit_signal is not None:
            return "crashed"
        if reading.prop("ActiveState") == "inactive":
            return "stopped" if self.run.marks else "not started"
        if self.run.reached >= life.READY:
            return life.NAMES[self.run.reached]
        return life.NAMES[self.run.reached]


def _clean(reading: Reading, line: Line) -> bool:
    return not any(s.cause and s.line.index < line.index for s in reading.signs if reading.run.first <= s.line.index)


def _earliest(signs: Sequence[Sign]) -> Sign | None:
    """The first failure: by clock where both lines have the same kind of clock and differ, by position otherwise."""
    first: Sign | None = None
    for sign in signs:
        if first is None or before(sign.line, first.line):
            first = sign
    if first is None or first.line.time_s is None:
        return first
    for sign in signs:
        same_clock = (
            sign.line.clock == first.line.clock
            and sign.line.form == first.line.form
            and sign.line.time_s is not None
            and first.line.time_s is not None
        )
        if same_clock and sign.line.stream != first.line.stream and sign.line.time_s < first.line.time_s - 0.5:  # type: ignore[operator]
            first = sign
    return first


# -- kernel -----------------------------------------------------------------------------------------------------------


def _own_kill(case: Case, kill: kernel.OomKill) -> bool | None:
    """Whether the victim belongs to this service. None: cannot be told."""
    reading = case.reading
    unit = reading.prop("Id") or next(
        (m.group(1) for e in reading.events for m in [re.match(r"([\w@.\\-]+\.service): ", e.line.text)] if m), ""
    )
    group = reading.prop("ControlGroup")
    if kill.cgroup and unit and kill.cgroup.rstrip("/").endswith(".service") and not kill.cgroup.rstrip("/").endswith("/" + unit):
        return False
    if kill.cgroup and ((group and kill.cgroup.startswith(group)) or (unit and f"/{unit}" in kill.cgroup)):
        return True
    if kill.pid is not None and str(kill.pid) in {reading.prop("ExecMainPID"), reading.prop("MainPID")} - {"", "0"}:
        return True
    if kill.pid is not None and any(f"pid={kill.pid}" in line.stream or f"[{kill.pid}]" in line.stream for line in reading.lines):
        return True
    container = re.search(r"(?:docker|cri-containerd|crio|libpod)-([0-9a-f]{6,64})", kill.cgroup)
    if container:
        name = next(
            (line for line in reading.telling if line.channel == FACT and container.group(1)[:8] in line.text and line.text.strip() != ""),
            None,
        )
        if name is not None:
            return bool(_ENGINE_NAME.search(name.text.replace(container.group(1), "").replace("lmcache", "")))
    if any(event.kind == "oom" and event.line.channel != SYSTEMD for event in reading.events):
        return True
    if kill.task:
        return bool(_ENGINE_TASK.search(kill.task))
    return None


def _host_oom(case: Case) -> Finding | None:
    reading = case.reading
    known = case.first is not None and case.first.rule.known
    said = [event for event in reading.events_of("oom") if event.line.index >= case.run.first or not (known or case.stop)]
    if reading.prop("Result") == "oom-kill":
        said = [*said, supervision.Event(kind="oom", line=reading.props["Result"][1])]
    counter = _moved_counter(reading)
    kills = [kill for kill in reading.kills if _in_time(case, kill.line)]
    own = [kill for kill in kills if _own_kill(case, kill) is True]
    if own or said or counter:
        shown: list[Line] = []
        own.reverse()
        for kill in own[:1]:
            shown += [kill.line, *kill.also]
        shown += [event.line for event in said[:1]] + ([counter] if counter and not shown else [])
        limit = next((kill.limit for kill in own if kill.limit is not None), None)
        where = "its cgroup reached its own limit" if limit else "the whole host ran out of memory" if limit is False else "memory ran out"
        victim = f"{own[0].task} (pid {own[0].pid})" if own and own[0].task else "a process of the service"
        size = f", {own[0].rss_kb / 2**20:.1f} GiB resident" if own and own[0].rss_kb else ""
        remedy = _host_remedy(case, limit)
        return Finding(
            id="kernel.oom_own", cls="memory.host_oom_kill", failure=True, summary=f"the kernel's OOM killer took {victim}{size}: {where}",
            quotes=quotes(shown), confidence="certain" if own or said else "likely", remedy=remedy,
            confirm="the kernel log names the victim and its cgroup; Result=signal neither proves nor excludes it", doomed=None,
        )  # fmt: skip
    return None


def _host_remedy(case: Case, limit: bool | None) -> str:
    current = case.reading.prop("MemoryMax")
    text = "raise the limit of the unit or container" if limit else "free host memory or move the neighbour that fills it"
    if limit and current.isdigit():
        text = f"MemoryMax={int(current) // 2**20}M -> {int(int(current) * 1.5) // 2**20}M"
    if case.reading.engine == "llamacpp" or any(
        "prompt cache" in line.text or "cache state" in line.text for line in case.reading.lines[-400:]
    ):
        text += "; the host prompt cache counts too: --cache-ram 0 (default 8192 MiB)"
    return text


def _moved_counter(reading: Reading) -> Line | None:
    """The ``oom_kill`` counter of the service's own cgroup above zero (the host's counter in /proc/vmstat says nothing about it)."""
    for line in reading.telling:
        if "oom_kill" not in line.text:
            continue
        own = re.match(r"^(?:\S*/)?memory\.events(?:\.local)?:oom_kill (\d+)$", line.text.strip())
        if own and int(own.group(1)) > 0:
            return line
        change = re.search(r"oom_kill (\d+)\b.*after:?.*oom_kill (\d+)\b", line.text)
        if change and int(change.group(2)) > int(change.group(1)):
            return line
    return None


def _in_time(case: Case, line: Line) -> bool:
    """A kernel event long before the run began belongs to an earlier life (two minutes of grace: clocks and buffers differ)."""
    if line.time_s is None or line.clock not in ("wall", "epoch"):
        return True
    times = [
        other.time_s
        for other in case.reading.telling
        if other.channel in (ENGINE, SYSTEMD) and other.clock == line.clock and other.time_s is not None and other.index >= case.run.first
    ]
    return not times or line.time_s >= min(times) - 120


def _other_oom(case: Case) -> Finding | None:
    kills = [kill for kill in case.reading.kills if _own_kill(case, kill) is False and _in_time(case, kill.line)]
    unhealthy = any("unhealthy" in line.text for line in case.reading.telling if line.channel == FACT)
    suffers = unhealthy or bool(case.causes or case.fallouts) or "failing" in case.symptom
    own_exit = case.reading.prop("ExecMainStatus") not in ("", "0") or any(
        e.line.channel == SYSTEMD for e in case.reading.events_of("exit")
    )
    if not kills or not suffers or own_exit:
        return None
    kill = kills[0]
    container = re.search(r"(?:docker|cri-containerd|crio|libpod)-([0-9a-f]{6,64})", kill.cgroup)
    shown = [*kill.also, kill.line] if kill.also else [kill.line]
    if container:
        shown += [line for line in case.reading.telling if line.channel == FACT and container.group(1)[:8] in line.text][:1]
    return Finding(
        id="kernel.oom_other", cls="memory.oom_killed_other", failure=True,
        summary=f"the OOM killer took {kill.task or 'another process'} (pid {kill.pid}), not the engine: the engine only suffers from it",
        quotes=quotes(shown), confidence="likely", remedy="restart what was killed and give the host (or its container) more memory; then start the engine again",
        confirm="the victim's cgroup is not the service's", doomed=False,
    )  # fmt: skip


def _gpu_kernel(case: Case) -> Finding | None:
    """The GPU's own reports in the kernel log. Hardware decides; a fault decides unless the engine names something else first."""
    reading = case.reading
    gone = [line for line in reading.telling if kernel.BUS_GONE.search(line.text)]
    hard = [x for x in reading.xids if x.code in kernel.HARDWARE_XIDS]
    if hard or gone:
        first = min([*(x.line for x in hard), *gone], key=lambda line: line.index)
        code = next((x for x in hard if x.line is first), hard[0] if hard else None)
        named = f"Xid {code.code}, {kernel.HARDWARE_XIDS[code.code]}, GPU {code.device}" if code else "lost from the bus"
        extra = [case.first.line] if case.first and case.first.cls in ("gpu.hardware_fault", "gpu.kernel_fault") else []
        return Finding(
            id="kernel.gpu_hardware", cls="gpu.hardware_fault", failure=True, summary=f"the GPU itself failed ({named}); what the engine says afterwards is its echo",
            quotes=quotes([*extra, first, *[x.line for x in hard if x.line is not first][:1], *gone[:1]]), confidence="certain",
            remedy="drain this GPU: `nvidia-smi -q -d ECC,ROW_REMAPPER`, reset it or the host, replace it if it comes back; settings cannot help", doomed=True,
            confirm="nvidia-smi no longer lists the GPU, or its ECC counters moved",
        )  # fmt: skip
    faults = [x for x in reading.xids if x.code in kernel.FAULT_XIDS and x.code != 43] or [x for x in reading.xids if x.code == 43]
    amd = [line for line in reading.telling if kernel.AMD_FAULT.search(line.text)]
    if not faults and not amd:
        return None
    if (
        case.first is not None
        and case.first.cls not in ("gpu.kernel_fault", "engine.internal_error", "engine.collective_stall", "engine.hang")
        and case.first.rule.known
    ):
        return None
    line = faults[0].line if faults else amd[0]
    devices = {x.device for x in faults}
    reboot = len(devices) > 2 or any(x.code in (119, 120) for x in faults)
    summary = f"the driver reports a fault of a GPU kernel ({', '.join(sorted({f'Xid {x.code}' for x in faults})) or 'page fault'}): software, not a broken GPU"
    if reboot:
        summary += f"; {len(devices)} GPUs report it, the driver's state is probably lost"
    echo = [case.first.line] if case.first else []
    return Finding(
        id="kernel.gpu_fault", cls="gpu.kernel_fault", failure=True, summary=summary, quotes=quotes([line, *echo]), confidence="certain" if echo else "likely",
        remedy="reboot the host (or reset the GPUs), then try another attention or MoE backend" if reboot else "try another attention or MoE backend or a smaller depth; reproduce once with CUDA_LAUNCH_BLOCKING=1",
        confirm="the same request sequence fails again, and does not with the other backend", doomed=None,
    )  # fmt: skip


# -- the engine -------------------------------------------------------------------------------------------------------


def _of_sign(case: Case, sign: Sign) -> Finding:
    reading = case.reading
    rule = sign.rule
    shown = [sign.line]
    if sign.failure is not None:
        shown += _matching_body(reading, sign)
    shown += [line for line in sign.more if line.text[:60] != sign.line.text[:60]][-1:]
    shown += [other.line for other in case.causes if other is not sign and other.cls == sign.cls and other.line.text != sign.line.text][:1]
    figures, free_line = _figures(reading, sign)
    shown += [free_line] if free_line is not None else []
    summary = rule.summary
    if sign.failure is not None and rule.id == "engine.exception":
        summary += f" ({sign.failure.short_type}: {sign.failure.message[:120]})"
    if not rule.known:
        summary += "; why is not known from this evidence"
    if figures:
        summary += f"; {figures}"
    return Finding(
        id=rule.id, cls=sign.cls, failure=True, summary=summary, quotes=quotes(shown), confidence="certain" if rule.known and (sign.failure or rule.doomed) else "likely" if rule.known else "possible",
        remedy=remedies.for_sign(reading, sign), confirm=rule.confirm, doomed=rule.doomed,
    )  # fmt: skip


def _matching_body(reading: Reading, sign: Sign) -> list[Line]:
    """Continuation lines of a message that say more than its first line."""
    assert sign.failure is not None
    following = sign.failure.body.count("\n")
    lines = [reading.lines[i] for i in range(sign.line.index + 1, min(len(reading.lines), sign.line.index + 1 + following))]
    return [line for line in lines if re.search(r"rror:|Value error|missing|not found|needed|must|should be", line.text)][:2]


def _figures(reading: Reading, sign: Sign) -> tuple[str, Line | None]:
    """GPU memory that was free right before, for every failure that speaks of memory or hides behind its advice; and that line."""
    if not (sign.cls.startswith("memory.") or sign.rule.id.startswith("toolchain")):
        return "", None
    for line in reversed(reading.lines[reading.run.first : sign.line.index]):
        match = re.search(r"avail(?:able)?[ _](?:gpu_)?mem(?:ory)?[=: ]+([\d.]+) ?G", line.text)
        if match:
            free = match.group(1)
            text = f"the last figure before it was {free} GB free" if "gpu_oom" in sign.cls else f"{free} GB of GPU memory were still free"
            return text, line
    return "", None


def _held(case: Case, sign: Sign) -> Finding | None:
    """A GPU allocation that fails because another process holds the memory."""
    body = sign.failure.body if sign.failure else sign.text
    total = re.search(r"total capacity of ([\d.]+) GiB", body)
    others = [float(n) for n in re.findall(r"Process \d+ has ([\d.]+) GiB memory in use", body)]
    mine = re.search(r"this process has ([\d.]+) GiB memory in use", body)
    if not (total and others and sum(others) > 0.25 * float(total.group(1))):
        holder = _holder(case)
        if holder is None or sign.cls != "memory.gpu_oom_startup":
            return None
        shown = [sign.line, holder]
    else:
        if mine and float(mine.group(1)) >= sum(others):
            return None
        shown = [sign.line]
    return Finding(
        id="gpu.held_by_other", cls="gpu.memory_held_by_leftover", failure=True,
        summary="the allocation fails because another process already holds the GPU memory, usually a leftover of the previous run",
        quotes=quotes(shown), confidence="likely", remedy="end the process that nvidia-smi names, then start again; smaller settings only hide it",
        confirm="`nvidia-smi --query-compute-apps=pid,used_memory --format=csv`", doomed=False,
    )  # fmt: skip


def _holder(case: Case) -> Line | None:
    """A process in an nvidia-smi listing that holds a lot of memory and is not one that this log's own processes name."""
    for line in case.reading.telling:
        if line.channel != FACT:
            continue
        match = re.search(r"\b(?P<pid>\d+)\b.*?(?P<mib>\d{4,}) ?MiB", line.text)
        if (
            match
            and int(match.group("mib")) > 2000
            and ("," in line.text or "|" in line.text)
            and "/" not in line.text.split("MiB")[0].rsplit("|", 1)[-1]
            and not any(f"pid={match.group('pid')}" in other.stream for other in case.reading.lines)
        ):
            return line
    return None


def _engine_cause(case: Case) -> Finding | None:
    sign = case.first
    if sign is None:
        return None
    chosen = sign
    # a consequence of waiting never outranks what made a rank stop; an unexplained exception gives way to an explained one close by
    if sign.rule.id == "engine.exception" or not sign.rule.known:
        named = [
            s
            for s in case.causes
            if s.rule.known and s.line.index - sign.line.index <= 60 and s.rule.id != "engine.exception" and s.stage == sign.stage
        ]
        if named and sign.cls in ("engine.internal_error", "engine.hang", "engine.collective_stall") and named[0].fatal >= sign.fatal:
            chosen = named[0]
    if chosen.cls in ("memory.gpu_oom_startup", "memory.gpu_oom_runtime"):
        held = _held(case, chosen)
        if held is not None:
            return held
    if chosen.rule.id == "gpu.held_free_memory":
        finding = _of_sign(case, chosen)
        holder = _holder(case)
        owner = [
            line
            for line in case.reading.lines
            if line.channel == FACT
            and holder is not None
            and re.search(rf"^\s*{re.split(r'[ ,|]+', holder.text.strip(' |'))[0]}\b", line.text)
            and line is not holder
        ]
        return Finding(**{**_as_fields(finding), "quotes": quotes([chosen.line, *([holder] if holder else []), *owner[:1]])})  # type: ignore[arg-type]
    if chosen.cls == "engine.hang" and chosen.rule.id == "hang.shm_broadcast":
        return _broadcast(case, chosen)
    if chosen.rule.id.startswith("network.proxy_warmup") and not _unseen(case):
        return _of_sign(case, Sign(**{**{f: getattr(chosen, f) for f in chosen.__struct_fields__}, "cls": "engine.internal_error"}))
    finding = _of_sign(case, chosen)
    if chosen.rule.id == "hang.watchdog":
        active = _active_frames(case, chosen)
        if active:
            return Finding(**{**_as_fields(finding), "quotes": quotes([chosen.line, *active])})  # type: ignore[arg-type]
    return finding


def _as_fields(finding: Finding) -> dict[str, object]:
    return {name: getattr(finding, name) for name in finding.__struct_fields__}


def _unseen(case: Case) -> bool:
    """Whether the engine's own access log does not show the warm-up request it failed on."""
    return not any(
        re.search(r'"(?:GET /(?:get_)?model_info|POST /generate) HTTP/[\d.]+" [25]\d\d', line.text) for line in case.reading.lines
    )


def _active_frames(case: Case, sign: Sign) -> list[Line]:
    """Top frame of the active main thread in a stack dump near a watchdog line: where it stood, not why."""
    window = case.reading.lines[max(0, sign.line.index - 120) : sign.line.index + 200]
    for position, line in enumerate(window):
        if re.match(r'^\s*Thread \S+ \(active(?:\+gil)?\): "MainThread"', line.text) and position + 1 < len(window):
            return [window[position + 1]]
    return []


def _broadcast(case: Case, sign: Sign) -> Finding:
    """The queue between processes is full: a stall of ranks when several of them say so, else a hang."""
    mine = [s for s in case.causes if s.rule.id == "hang.shm_broadcast"]
    ranks = {s.line.stream for s in mine}
    idle = [s.line for s in case.reading.samples if s.tok_s == 0.0 and (s.running or 0) > 0]
    stall = len(ranks) > 1
    finding = _of_sign(case, sign)
    fields = _as_fields(finding) | {
        "cls": "engine.collective_stall" if stall else "engine.hang",
        "summary": (f"{len(ranks)} ranks wait for each other" if stall else "the workers do not take up work")
        + ": requests run and no token comes; why is not known from this evidence",
        "quotes": quotes([mine[0].line, *[s.line for s in mine if s.line.stream != mine[0].line.stream][:1], *idle[-1:]]),
        "phase": "hung",
    }
    return Finding(**fields)  # type: ignore[arg-type]


# -- the supervisor ---------------------------------------------------------------------------------------------------


def _requested_stop(case: Case) -> Finding | None:
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


def _killed_loading(case: Case) -> Finding | None:
    timeouts = case.reading.events_of("start_timeout")
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


def _watchdog(case: Case) -> Finding | None:
    dogs = case.reading.events_of("watchdog") or (case.reading.events_of("probe_kill") if case.run.reached >= life.READY else [])
    if not dogs or (case.first is not None and case.first.rule.known):
        return None
    return Finding(
        id="supervisor.watchdog", cls="engine.hang", failure=True, summary="the service did not report life in time and the supervisor ended it; why it stood still is not known",
        quotes=quotes([e.line for e in dogs[:2]]), confidence="likely", remedy="take a stack dump while it stands (py-spy dump); raise the limit only if the pause is known work", phase="hung",
    )  # fmt: skip


def _cannot_start(case: Case) -> Finding | None:
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


def _sandbox(case: Case) -> Finding | None:
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


def _masked(case: Case) -> Finding | None:
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


def _loop(case: Case) -> Finding | None:
    count, line = case.restarts
    if count < LOOP or line is None:
        return None
    exits = [e.line for e in case.reading.events_of("exit") if e.line is not line]
    return Finding(
        id="supervisor.restart_loop", cls="supervisor.restart_loop", failure=True, summary=f"the start is repeated ({count} times) and no run says why it ends",
        quotes=quotes([line, *exits[-1:]]), confidence="likely", remedy="stop the unit, set Restart=no, start it once by hand and read its first error", doomed=True,
        confirm="the engine's own log of one start", phase="restarting in a loop",
    )  # fmt: skip


def _stalled(case: Case) -> Finding | None:
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


def _silent(case: Case) -> Finding | None:
    """It listens and was ready, and does not answer."""
    asked = [(status, line) for url, status, line in answers(case.reading) if url.endswith("/health")]
    refused = [line for line in case.reading.telling if re.match(r"^GET \S+ -> 000 .*refused", line.text)]
    bad = [line for status, line in asked if status in ("000", "503") and line not in refused]
    only_url = not case.run.marks and not case.reading.props
    if not bad or any(status == "200" for status, _ in asked) or not (case.run.reached >= life.READY or only_url):
        return None
    if only_url and all(" 503" in line.text for line in bad):
        return None  # loading or dead: the answer alone does not tell
    return Finding(
        id="http.silent", cls="engine.hang", failure=True, summary="the server listens and does not answer its health check; why is not known",
        quotes=quotes(bad[:2]), confidence="likely", remedy="take `py-spy dump` of every process of the service while it stands, then restart it", phase="hung",
    )  # fmt: skip


def _died_natively(case: Case) -> Finding | None:
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


def _unknown(case: Case) -> Finding:
    reading = case.reading
    shown = [s.line for s in case.fallouts[:2]] + [e.line for e in reading.events_of("exit", "stopped")][-1:]
    state = reading.prop("LoadState")
    if state in ("masked", "not-found", "bad-setting"):
        shown = [reading.props["LoadState"][1]]
    ruled = []
    ruled.append("no exception of the engine" if not case.causes else "")
    if any(line.channel == "kernel" for line in reading.lines) or any(s.name == "kernel" for s in reading.evidence.sources):
        ruled.append("no OOM kill and no GPU error in the kernel log" if not reading.kills and not reading.xids else "")
    ruled.append("no stop request" if case.stop is None else "")
    number = case.exit_signal
    summary = "the evidence does not show why"
    if state in ("masked", "not-found"):
        summary = f"the unit is {state}: it was never started"
    elif any(re.match(r"^GET \S+ -> 000", line.text) for line in reading.telling) and not reading.props:
        shown = [line for _, _, line in answers(reading)][:2]
        summary = "nothing answers at this address: the server is not started, still loading, or down"
    elif any(status == "503" for _, status, _ in answers(reading)) and not reading.props:
        shown = [line for _, _, line in answers(reading)][:2]
        summary = "the server answers 503: it is still loading, shutting down, or its engine is dead"
    elif reading.prop("ActiveState") == "inactive" and reading.prop("Result") == "success" and number is None:
        summary = "the unit is not running and its last run is recorded as success" if case.run.marks else "the unit was never started"
    elif number == 9:
        summary = "the process was killed by SIGKILL from outside and nothing says by whom (the signal alone proves nothing, least of all the OOM killer)"
    elif number is not None:
        summary = f"the process ended by signal {number} and nothing says why"
    collect = "the first 200 lines after the last start, the kernel log (`journalctl -k`), `systemctl show`, and `nvidia-smi`"
    if number == 9:
        collect = "the kernel log around the exit (`journalctl -k`), the unit's journal over all restarts, the cgroup's memory.events, and who could have sent it (audit, health checks, a person)"
    facts = "; ".join(r for r in ruled if r)
    return Finding(
        id="unknown", cls="unknown", failure=True, summary=f"{summary}. Ruled out: {facts or 'nothing'}", quotes=quotes(shown or case.ended[:2]), confidence="unknown",
        remedy=f"collect: {collect}", confirm=collect,
    )  # fmt: skip


def _in_trouble(case: Case) -> bool:
    """Whether anything says that the server is gone or does not serve."""
    reading = case.reading
    if case.causes or case.fallouts or reading.prop("ActiveState") == "failed" or reading.prop("SubState") == "auto-restart":
        return True
    found = reading.evidence.exit
    if found is not None and (found.signal or found.code) and found.by != "leadline":
        return True
    if reading.prop("LoadState") in ("masked", "not-found") or reading.prop("ActiveState") == "inactive":
        return True
    bad_exit = [e for e in reading.events_of("exit") if e.line.index >= case.run.first and e.detail not in ("0", "124", "")]
    return bool(bad_exit or reading.events_of("start_limit", "restart"))


def rank(reading: Reading) -> tuple[Finding, ...]:
    """Findings of a reading, the verdict first."""
    case = Case(reading)
    phase = case.phase
    found = _failures(case)
    if not found:
        stop = _requested_stop(case)
        performance_findings = [] if _in_trouble(case) and case.stop is None else performance.verdict(reading)
        first = {"config.speculation_inactive"} | (set() if case.symptom & {"failing", "noise"} else {"performance.low_acceptance"})
        inactive = [f for f in performance_findings if f.cls in first]
        corrupt = [f for f in performance_findings if f.failure]
        if stop is not None and not inactive and not corrupt:
            found = [stop]
        elif performance_findings and not (
            "failing" in case.symptom and performance_findings[0].cls == "healthy" and "noise" not in case.symptom and stop is None
        ):
            found = performance_findings
        elif any(status == "200" for _, status, _ in answers(reading)) and not _in_trouble(case):
            found = [_answering(case)]
        elif _still_loading(case):
            found = [_loading(case)]
        else:
            found = [_unknown(case)]
    found = _with_loop(case, found)
    placed = [f if f.phase else _placed(f, phase) for f in found]
    return tuple(_limited(placed))


def _failures(case: Case) -> list[Finding]:
    found: list[Finding] = []
    if case.stop is not None and not _host_oom(case):
        return []
    hardware = _gpu_kernel(case)
    if hardware is not None and hardware.cls == "gpu.hardware_fault":
        found.append(hardware)
    oom = _host_oom(case)
    if oom is not None:
        found.append(oom)
    for judge in (_cannot_start, _killed_loading, _sandbox):
        finding = judge(case)
        if finding is not None and not found:
            found.append(finding)
    if hardware is not None and hardware not in found:
        found.append(hardware)
    masked = _masked(case)
    if masked is not None:
        found.append(masked)
    driver = _driver(case)
    if driver is not None:
        found.append(driver)
    cause = _engine_cause(case)
    if cause is not None and all(f.cls != cause.cls for f in found):
        found.append(cause)
    if not found:
        for judge in (_watchdog, _other_oom, _stalled, _silent, _shm_full, _died_natively, _loop):
            finding = judge(case)
            if finding is not None:
                found.append(finding)
                break
    else:
        other = _other_oom(case)
        if (
            other is not None
            and found[0].cls in ("engine.hang", "engine.internal_error", "engine.collective_stall")
            and not (case.first and case.first.rule.known)
        ):
            found.insert(0, other)
    return found


def _driver(case: Case) -> Finding | None:
    """The driver does not match or the device is gone, said by the kernel or a tool beside the log."""
    lines = [line for line in case.reading.telling if kernel.MISMATCH.search(line.text)]
    if not lines:
        return None
    signs = [s.line for s in case.causes if s.cls == "gpu.driver_unavailable"]
    upgrade = [
        line
        for line in case.reading.lines
        if line.channel == FACT and re.search(r"^Upgrade: .*nvidia|nvidia.*->|nvidia-(?:driver|common)", line.text)
    ]
    return Finding(
        id="kernel.driver_mismatch", cls="gpu.driver_unavailable", failure=True, summary="the driver's library and its kernel module have different versions: CUDA cannot be used until the module is reloaded",
        quotes=quotes([*signs[:1], lines[0], *upgrade[:1]]), confidence="certain", remedy="reboot the host (or unload and load the nvidia modules), and hold back unattended driver upgrades", doomed=True,
    )  # fmt: skip


def _shm_full(case: Case) -> Finding | None:
    """``df`` shows /dev/shm full and the engine failed without a cause of its own."""
    for line in case.reading.telling:
        match = re.search(r"(\d+)%\s+/dev/shm", line.text)
        if match and int(match.group(1)) >= 95 and (case.fallouts or case.exit_signal == 7):
            return Finding(
                id="host.shm_df",
                cls="host.shared_memory_exhausted",
                failure=True,
                summary="/dev/shm is full and the engine ended without naming a cause",
                quotes=quotes([line, *[s.line for s in case.fallouts[:1]]]),
                confidence="likely",
                remedy="--shm-size=16g or --ipc=host for a container; remove leftovers in /dev/shm",
                doomed=True,
            )
    return None


def _still_loading(case: Case) -> bool:
    gone = bool(case.ended) or case.reading.evidence.exit is not None
    up = case.reading.prop("ActiveState") in ("active", "activating") and case.reading.prop("SubState") != "auto-restart"
    return (up or 0 < case.run.reached < life.READY) and not gone and not _in_trouble(case) and "failing" not in case.symptom


def _loading(case: Case) -> Finding:
    shown = [case.run.marks[-1].line] if case.run.marks else [case.reading.props["ActiveState"][1]]
    phase = life.NAMES[case.run.reached] if case.run.marks else "loading"
    return Finding(
        id="healthy.loading",
        cls="healthy",
        failure=False,
        summary="the server is still starting and nothing failed so far",
        quotes=quotes(shown),
        confidence="likely",
        phase=phase,
        remedy="wait, and look again; a minute without a line is normal while kernels compile",
    )


def _answering(case: Case) -> Finding:
    shown = [line for _, status, line in answers(case.reading) if status == "200"]
    return Finding(
        id="healthy.answers",
        cls="healthy",
        failure=False,
        summary="the server answers its own endpoints; nothing in the evidence failed",
        quotes=quotes(shown[:2]),
        confidence="likely",
        phase="ready",
        confirm="a generated token: /health may answer while the engine stands still",
    )


def _with_loop(case: Case, found: list[Finding]) -> list[Finding]:
    count, line = case.restarts
    head = found[0]
    if count >= LOOP and line is not None and head.failure and head.cls not in ("supervisor.restart_loop", "unknown"):
        head = Finding(**{**_as_fields(head), "also": (*head.also, "supervisor.restart_loop")})  # type: ignore[arg-type]
    if (
        head.failure
        and case.success is not None
        and head.cls not in ("supervisor.crash_masked", "unknown")
        and case.stop is None
        and case.run.reached >= life.READY
    ):
        head = Finding(**{**_as_fields(head), "also": (*head.also, "supervisor.crash_masked")})  # type: ignore[arg-type]
    return [head, *found[1:]]


def _placed(finding: Finding, phase: str) -> Finding:
    return Finding(**{**_as_fields(finding), "phase": phase})  # type: ignore[arg-type]


def _limited(found: list[Finding]) -> list[Finding]:
    """Five quoted lines over all: the verdict keeps its own, the others share what is left."""
    left = 5
    limited: list[Finding] = []
    for finding in found[:4]:
        kept = finding.quotes[: max(0, left)]
        left -= len(kept)
        limited.append(Finding(**{**_as_fields(finding), "quotes": kept}))  # type: ignore[arg-type]
    return limited
