"""What to send, and when: the plan a load process plays. Pure."""

from __future__ import annotations

import json
from typing import NamedTuple
from urllib.parse import urlsplit

from ..errors import BadTarget
from ..mask import mask


class Endpoint(NamedTuple):
    """Where requests go."""

    tls: bool
    host: str
    port: int
    path: str
    """Prefix before ``/v1/...``, without a slash at its end."""

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


class Shot(NamedTuple):
    """One request of a plan."""

    body: bytes
    due_s: float | None = None
    """Open loop: seconds after the start; ``None`` = as soon as a connection is free, or with ``after`` as soon as that allows."""
    after: int = -1
    """Number of the request that must have ended before (the earlier turn of a session)."""
    delay_s: float = 0.0
    """Pause after that end, at least: the request is sent at ``due_s`` if that is later."""


class Plan(NamedTuple):
    """Everything one load process needs to know."""

    endpoint: Endpoint
    shots: tuple[Shot, ...]
    connections: int
    """Closed loop: requests kept open. Open loop: connections made before the clock starts, and spares kept."""
    open_loop: bool = False
    idle_s: float = 60.0
    limit_s: float = 3600.0
    """From the first send, rehearsed or not; what is open then, or was not sent, is cut."""
    connect_s: float = 10.0
    reuse: bool = True
    """Send the next request on the connection of an ended one."""
    kernel_clock: bool = True
    verify: bool = True
    ca_file: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    rehearsed: int = 0
    """How many of the leading shots are played, one wave after the other, before the clock starts; their connections stay."""


def endpoint(url: str) -> Endpoint:
    """Read ``http(s)://host[:port][/prefix][/v1]``. Raises :class:`~leadline.errors.BadTarget`."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise BadTarget(target=url, hint="the port is a number up to 65535") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadTarget(target=url, hint="for example http://127.0.0.1:8080")
    if parts.username is not None or parts.password is not None:
        raise BadTarget(target=mask(url), hint="a name or password in it is not sent: give --header 'Authorization: Basic ...' instead")
    if parts.query or parts.fragment:
        raise BadTarget(target=mask(url), hint="what stands behind ? or # is not sent: leave it out")
    if not url.isascii():
        raise BadTarget(target=url, hint="write a path with %XX for what is not ASCII, and a host name as xn--...")
    path = parts.path.rstrip("/").removesuffix("/v1")
    return Endpoint(parts.scheme == "https", parts.hostname, port or (443 if parts.scheme == "https" else 80), path)


def request(plan: Plan, body: bytes, path: str = "/v1/chat/completions") -> bytes:
    """The bytes of one POST. Raises ValueError on a header that would break the request."""
    lines = [
        f"POST {plan.endpoint.path}{path} HTTP/1.1",
        f"Host: {plan.endpoint.authority}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
        "Accept-Encoding: identity",  # whoever packs a stream holds events back
        f"Content-Length: {len(body)}",
    ]
    for name, value in plan.headers:
        if any(c in name + value for c in "\r\n\0") or not name.isascii() or ":" in name:
            raise ValueError(f"header {name!r} cannot be sent")
        lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def encode(plan: Plan, address: tuple[str, int], path: str = "/v1/chat/completions") -> bytes:
    """The file a load process reads; ``address`` is where the host's name was resolved to."""
    wires = [request(plan, shot.body, path) for shot in plan.shots]
    head = {
        "address": list(address),
        "tls": {"server_name": plan.endpoint.host, "verify": plan.verify, "ca_file": plan.ca_file} if plan.endpoint.tls else None,
        "connections": plan.connections,
        "open": plan.open_loop,
        "reuse": plan.reuse,
        "idle_s": plan.idle_s,
        "limit_s": plan.limit_s,
        "connect_s": plan.connect_s,
        "kernel_clock": plan.kernel_clock,
        "rehearsed": plan.rehearsed,
        "requests": [
            [-1 if shot.due_s is None else round(shot.due_s * 1e6), shot.after, round(shot.delay_s * 1e6), len(wire)]
            for shot, wire in zip(plan.shots, wires, strict=True)
        ],
    }
    return json.dumps(head).encode() + b"\n" + b"".join(wires)
