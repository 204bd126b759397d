"""The judge of the engine: the first failure of its own output, told with its figures, its quotes and its remedy."""

from __future__ import annotations

import re

from ..records import Finding
from . import remedies
from .case import Case, as_fields
from .lines import FACT, Line
from .quoting import quotes
from .reading import Reading, Sign


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
        # the table of nvidia-smi (`| 0 N/A N/A 4012 C name 78410MiB |`) or its CSV (`4012, name, 78410 MiB`), not "used / total"
        match = re.search(r"(?:^\s*|\s)(?P<pid>\d{2,})(?:\s+[CG+]+\s|\s*,).*?(?P<mib>\d{4,}) ?MiB(?!\s*/)", line.text)
        if (
            match
            and int(match.group("mib")) > 2000
            and not any(f"pid={match.group('pid')}" in other.stream for other in case.reading.lines)
        ):
            return line
    return None


def engine_cause(case: Case) -> Finding | None:
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
        return Finding(**{**as_fields(finding), "quotes": quotes([chosen.line, *([holder] if holder else []), *owner[:1]])})  # type: ignore[arg-type]
    if chosen.cls == "engine.hang" and chosen.rule.id == "hang.shm_broadcast":
        return _broadcast(case, chosen)
    if chosen.rule.id.startswith("network.proxy_warmup") and not _unseen(case):
        return _of_sign(case, Sign(**{**{f: getattr(chosen, f) for f in chosen.__struct_fields__}, "cls": "engine.internal_error"}))
    finding = _of_sign(case, chosen)
    if chosen.rule.id == "hang.watchdog":
        active = _active_frames(case, chosen)
        if active:
            return Finding(**{**as_fields(finding), "quotes": quotes([chosen.line, *active])})  # type: ignore[arg-type]
    return finding


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
    fields = as_fields(finding) | {
        "cls": "engine.collective_stall" if stall else "engine.hang",
        "summary": (f"{len(ranks)} ranks wait for each other" if stall else "the workers do not take up work")
        + ": requests run and no token comes; why is not known from this evidence",
        "quotes": quotes([mine[0].line, *[s.line for s in mine if s.line.stream != mine[0].line.stream][:1], *idle[-1:]]),
        "phase": "hung",
    }
    return Finding(**fields)  # type: ignore[arg-type]
