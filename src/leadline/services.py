"""Open what a TARGET names: the one place that knows which supervisor drives which kind of target."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from .config import Deploy
from .engines import Engine, Parsed, recognise
from .engines.llamacpp import LlamaCpp, generation_of
from .errors import HostTimeout, Unsupported
from .process import ProcessSupervisor
from .records import Command
from .ssh import SshTarget
from .supervisor import Supervisor
from .systemd import SystemdSupervisor
from .target import LocalTarget, Target
from .targets import ParsedTarget

HELP_S = 15.0


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
        return SystemdSupervisor(
            open_host(place), place.unit, target_name=place.text, user_unit=place.user_unit, settings=settings, port_of=port_of
        )
    if place.kind == "process":
        return ProcessSupervisor(Command(argv=place.argv), folder, settings, port=port_of(place.argv), target_name=place.text)
    raise Unsupported(what=f"a {place.kind}: target", where="here", fix="name a unit (ssh://host/NAME.service, systemd:NAME.service)")


def port_of(argv: Sequence[str]) -> int:
    """The port that an engine's command listens on. Raises NotAnEngine."""
    return recognise(argv)[1].port


def adapt(supervisor: Supervisor, argv: Sequence[str]) -> tuple[Engine, Parsed]:
    """The adapter of ``argv``, fitted to the installed build where its help text tells more than the command line does.

    llama.cpp's two generations refuse each other's flags. Only a command that leadline runs itself is asked for its help.
    Raises NotAnEngine, ConfigError, CannotRewrite.
    """
    engine, parsed = recognise(argv)
    if not (isinstance(engine, LlamaCpp) and isinstance(supervisor, ProcessSupervisor)):
        return engine, parsed
    try:
        done = supervisor.target.run([*argv[: parsed.start], "--help"], timeout_s=HELP_S)
    except (HostTimeout, OSError):  # a wrapper that knows no help, or no such program: the start will tell
        return engine, parsed
    fitted = LlamaCpp(generation_of(done.text + done.error_text))
    return fitted, fitted.parse(argv) or parsed
