"""The engine's own endpoints, read over HTTP on a forwarded port (never the load: that is :mod:`leadline.stream`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx

from .records import Record

TIMEOUT_S = 10.0


class Snapshot(Record, frozen=True):
    """One reading of a running engine."""

    infos: dict[str, Any]
    """Path -> decoded JSON, for every info path that answered 200 with JSON."""
    metrics: str = ""
    """Prometheus text; empty when the engine serves none."""


def health(base_url: str, path: str, *, timeout_s: float = 2.0) -> tuple[int, str]:
    """HTTP status and the start of the body of ``path``; status 0 when nothing answers there."""
    try:
        answer = httpx.get(base_url + path, timeout=timeout_s, trust_env=False)
    except httpx.HTTPError as error:
        return 0, f"{type(error).__name__}: {error}"
    return answer.status_code, answer.text[:400]


def snapshot(base_url: str, info_paths: Sequence[str], metrics_path: str) -> Snapshot:
    """Read every info path and the metrics. What does not answer is left out; the caller decides whether it matters."""
    infos: dict[str, Any] = {}
    metrics = ""
    with httpx.Client(base_url=base_url, timeout=TIMEOUT_S, trust_env=False) as client:
        for path in info_paths:
            answer = _get(client, path)
            if answer is not None and answer.status_code == 200:
                try:
                    infos[path] = answer.json()
                except ValueError:
                    continue
        if metrics_path:
            answer = _get(client, metrics_path)
            if answer is not None and answer.status_code == 200:
                metrics = answer.text
    return Snapshot(infos=infos, metrics=metrics)


def _get(client: httpx.Client, path: str) -> httpx.Response | None:
    try:
        return client.get(path)
    except httpx.HTTPError:
        return None
