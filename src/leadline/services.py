"""Open what a TARGET names: the one place that knows which supervisor drives which kind of target."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from .config import Deploy
from .engines import recognise
from .errors import Unsupported
from .process import ProcessSupervisor
from .records import Command
from .ssh import SshTarget
from .supervisor import Supervisor
from .systemd import SystemdSupervisor
from .target import LocalTarget, Target
from .targets import ParsedTarget


def ssh_command() -> tuple[str, ...]:
    """The ssh to use: ``LEADLINE_SSH`` (``ssh -F other_config``), else ``ssh`` with the user's own configuration."""
    return tuple(shlex.split(os.environ.get("LEADLINE_SSH", ""))) or ("ssh",)


def open_host(place: ParsedTarget) -> Target:
    """The host of a target; the first command connects."""
    return SshTarget(place.destination, port=place.port, ssh=ssh_command()) if place.remote else LocalTarget()


def open_supervisor(place: ParsedTarget, settings: Deploy, folder: Path) -> Supervisor:
    """The supervisor of a target; touches nothing. ``folder`` keeps the logs of a ``process:`` target.

    Raises Unsupported for a URL, which nothing of ours supervises.
    """
    if place.kind in ("ssh", "systemd"):
        return SystemdSupervisor(open_host(place), place.unit, target_name=place.text, user_unit=place.user_unit, settings=settings)
    if place.kind == "process":
        port = recognise(place.argv)[1].port
        return ProcessSupervisor(Command(argv=place.argv), folder, settings, port=port, target_name=place.text)
    raise Unsupported(what=f"a {place.kind}: target", where="here", fix="name a unit (ssh://host/NAME.service, systemd:NAME.service)")
