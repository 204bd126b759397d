"""Judges of the host: OOM kills and whose they are, the GPU's own reports, the driver, /dev/shm. Kernel evidence beats exit codes."""

from __future__ import annotations

import re

from ..records import Finding
from . import kernel, supervision
from .case import Case
from .lines import ENGINE, FACT, SYSTEMD, Line
from .quoting import quotes
from .reading import Reading

_ENGINE_TASK = re.compile(
    r"^(?:python[\d.]*|sglang|VLLM|vllm|llama|ray|pt_main_thread|trtllm|triton(?:server)?|ollama|koboldcpp|EngineCore|Worker|api_server|uvicorn|gunicorn|server|text-generation|mpirun|MainThread|\(?sd-)",
    re.IGNORECASE,
)


_ENGINE_NAME = re.compile(r"vllm|sglang|llama|engine|llm|inference|ollama|trt|tgi", re.IGNORECASE)


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
    if kill.task and not (unit and kill.pid is not None and reading.prop("ExecMainPID") not in ("", "0")):
        return bool(_ENGINE_TASK.search(kill.task))
    # a unit whose main pid is known, and a victim that is another one and whose cgroup was not printed: its name (python3) proves nothing
    return None


def host_oom(case: Case) -> Finding | None:
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


def other_oom(case: Case) -> Finding | None:
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


def gpu_kernel(case: Case) -> Finding | None:
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


def driver(case: Case) -> Finding | None:
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


def shm_full(case: Case) -> Finding | None:
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
