"""`leadline doctor`: gather what a TARGET or files say, diagnose it, and print it for a person or for programs.

The only module that joins the doctor's hands (:mod:`logs`, :mod:`unitevidence`, :mod:`endpoints`) with its mind
(:mod:`diagnose`).  ``leadline doctor (TARGET | --log FILE...)`` ends with 0 when nothing failed, 1 when a failure was found and
2 when the evidence does not decide; every other status is an error of leadline itself.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .diagnose import diagnose
from .endpoints import health
from .errors import BadTarget
from .logs import evidence_from_logs
from .mask import mask
from .records import Evidence, Finding, Source
from .services import open_host
from .targets import parse_target
from .unitevidence import gather

HEALTHY, FAILED, UNKNOWN = 0, 1, 2
URL_PATHS = ("/health", "/v1/models", "/get_server_info", "/metrics")


def examine(target: str | None, logs: Sequence[str | Path] = (), *, symptom: str = "") -> tuple[Finding, ...]:
    """Findings about a target or about files, the verdict first.

    Raises BadTarget when neither or something that cannot be examined is given, ConfigError for a file, and what reaching the
    host raises.
    """
    return diagnose(evidence_of(target, logs, symptom=symptom))


def evidence_of(target: str | None, logs: Sequence[str | Path] = (), *, symptom: str = "") -> Evidence:
    """Everything that can be gathered, verbatim. A target's own evidence and files handed over are put together."""
    read = evidence_from_logs(logs, symptom) if logs else Evidence(symptom=symptom)
    if target is None:
        if not logs:
            raise BadTarget(target="(nothing)", hint="or hand over files: leadline doctor --log server.log")
        return read
    place = parse_target(target)
    if place.kind == "process":
        raise BadTarget(target=target, hint="a process: target runs only during a campaign; hand over its log: leadline doctor --log FILE")
    gathered = from_url(place.url) if place.kind == "http" else _from_unit(target)
    return Evidence(sources=(*gathered.sources, *read.sources), symptom=symptom, taken_s=gathered.taken_s, exit=gathered.exit)


def _from_unit(target: str) -> Evidence:
    place = parse_target(target)
    host = open_host(place)
    try:
        scope = ("--user",) if place.user_unit else ()
        return gather(host, place.unit, scope=scope, env=(), invocation="", group="", exit_=None)
    finally:
        host.close()


def from_url(url: str) -> Evidence:
    """What a server says about itself when nothing but its address is known."""
    lines = []
    for path in URL_PATHS:
        status, text = health(url.rstrip("/"), path)
        lines.append(f"GET {url.rstrip('/')}{path} -> {status:03d} {mask(' '.join(text.split()))[:200]}".rstrip())
    return Evidence(sources=(Source(name="http", text="\n".join(lines)),))


def verdict_of(findings: Sequence[Finding]) -> str:
    """``healthy`` (nothing failed), ``failed`` or ``unknown``."""
    head = findings[0]
    return "unknown" if head.cls == "unknown" else "failed" if head.failure else "healthy"


def exit_status(findings: Sequence[Finding]) -> int:
    return {"healthy": HEALTHY, "failed": FAILED, "unknown": UNKNOWN}[verdict_of(findings)]


def as_dict(findings: Sequence[Finding]) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    return {"verdict": verdict_of(findings), "phase": findings[0].phase, "findings": [_one(finding) for finding in findings]}


def _one(finding: Finding) -> dict[str, Any]:
    return {
        "class": finding.cls,
        "id": finding.id,
        "failure": finding.failure,
        "cause": mask(finding.summary),
        "phase": finding.phase,
        "confidence": finding.confidence,
        "evidence": [{"source": quote.source, "line_number": quote.line, "text": mask(quote.text)} for quote in finding.quotes],
        "remedy": mask(finding.remedy),
        "confirm": mask(finding.confirm),
        "retry": finding.doomed is False,
        "also": list(finding.also),
    }


def as_json(findings: Sequence[Finding]) -> str:
    return json.dumps(as_dict(findings), indent=2, ensure_ascii=False)


def as_text(findings: Sequence[Finding], *, width: int = 100) -> str:
    """One screen for a person: verdict, evidence, next step."""
    head = findings[0]
    lines = [f"{verdict_of(findings).upper()}: {head.cls} (phase: {head.phase}; confidence: {head.confidence})", ""]
    lines += textwrap.wrap(mask(head.summary[:1].upper() + head.summary[1:]) + ".", width)
    if head.quotes:
        lines += ["", "Evidence"]
        lines += [f"  {quote.source}:{quote.line}  {mask(quote.text)[: width + 60]}" for quote in head.quotes]
    if head.remedy:
        lines += ["", "Next", *textwrap.wrap(mask(head.remedy), width, initial_indent="  ", subsequent_indent="  ")]
    if head.confirm and head.cls != "unknown":
        lines += textwrap.wrap(f"To confirm: {mask(head.confirm)}", width, initial_indent="  ", subsequent_indent="  ")
    if head.failure and head.cls != "unknown":
        again = {
            True: "trying the same again cannot help",
            False: "worth another try as it is",
            None: "whether the same start would work is not known",
        }
        lines.append(f"  Retry: {again[head.doomed]}")
    for other in findings[1:]:
        lines += ["", *textwrap.wrap(f"Also: {other.cls}: {mask(other.summary)}", width, subsequent_indent="  ")]
        lines += [f"  {quote.source}:{quote.line}  {mask(quote.text)[: width + 60]}" for quote in other.quotes[:1]]
    if head.also:
        lines += ["", f"Also: {', '.join(head.also)}"]
    return "\n".join(lines) + "\n"
