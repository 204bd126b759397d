"""The engine's own endpoints, read over HTTP on a forwarded port (never the load: that is :mod:`leadline.stream`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from .records import Record

if TYPE_CHECKING:
    import httpx  # takes longer to load than the load process to start: where it is not asked for, it is not there

TIMEOUT_S = 10.0


class Snapshot(Record, frozen=True):
    """One reading of a running engine."""

    infos: dict[str, Any]
    """Path -> decoded JSON, for every info path that answered 200 with JSON."""
    metrics: str = ""
    """Prometheus text; empty when the engine serves none."""


def health(base_url: str, path: str, *, timeout_s: float = 2.0) -> tuple[int, str]:
    """HTTP status and the start of the body of ``path``; status 0 when nothing answers there."""
    import httpx

    try:
        answer = httpx.get(base_url + path, timeout=timeout_s, trust_env=False)
    except httpx.HTTPError as error:
        return 0, f"{type(error).__name__}: {error}"
    return answer.status_code, answer.text[:400]


def first_model(base_url: str, *, headers: Sequence[tuple[str, str]] = (), verify: bool = True) -> str:
    """The id of the first model that ``/v1/models`` names, asked for with what loads quickly. Raises ValueError with what came instead."""
    import http.client
    import ssl
    import urllib.error
    import urllib.request

    class Stay(urllib.request.HTTPRedirectHandler):
        """Followed, a redirection would take a key to whoever it names; and the load goes where it is told to."""

        def redirect_request(self, *_: object) -> None:
            """Follow none."""

    request = urllib.request.Request(base_url + "/v1/models", headers=dict(headers))
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), Stay()]
    if not verify:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        handlers.append(urllib.request.HTTPSHandler(context=context))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT_S) as answer:
            return str(msgspec.json.decode(answer.read())["data"][0]["id"])
    except urllib.error.HTTPError as error:
        pointed = f" to {error.headers['location']}, which is not followed" if error.headers["location"] else ""
        raise ValueError(f"/v1/models answered {error.code}{pointed}") from None
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        raise ValueError(f"/v1/models did not answer: {getattr(error, 'reason', error)}") from None
    except (ValueError, TypeError, KeyError, IndexError):
        raise ValueError("/v1/models names no model") from None


def snapshot(base_url: str, info_paths: Sequence[str], metrics_path: str) -> Snapshot:
    """Read every info path and the metrics. What does not answer is left out; the caller decides whether it matters."""
    import httpx

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
    import httpx

    try:
        return client.get(path)
    except httpx.HTTPError:
        return None
