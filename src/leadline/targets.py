"""The TARGET a user writes, read. Pure: nothing is looked up, nothing is reached.

=========================================  ==========================================================================
``ssh://[user@]host[:port]/NAME.service``  a system unit on a host; ``host`` may be an alias of ``~/.ssh/config``
``ssh://[user@]host/user/NAME.service``    a unit of that account's own systemd (``systemctl --user``)
``systemd:NAME.service``                   a system unit of this machine
``systemd-user:NAME.service``              a unit of this account's own systemd
``process:COMMAND``                        a command that leadline itself starts and ends
``http://…``, ``https://…``                a server that somebody else runs (bench and doctor only)
=========================================  ==========================================================================

A name that could be taken for an option, a path or shell text is refused here, so that no later station has to be
careful with it.
"""

from __future__ import annotations

import re
import shlex
from urllib.parse import urlsplit

from .errors import BadTarget
from .records import Record

# systemd.unit(5): letters, digits and ":-_.\"; "@" once, before the instance. 255 characters at most.
_UNIT = re.compile(r"[A-Za-z0-9:_.\\][A-Za-z0-9:_.\\-]*(@[A-Za-z0-9:_.\\-]*)?\.service")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?\]")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*")


class ParsedTarget(Record, frozen=True):
    """Where a service is. Which fields are set depends on ``kind``."""

    text: str
    """As the user wrote it."""
    kind: str
    """``ssh``, ``systemd``, ``process`` or ``http``."""
    unit: str = ""
    """With its suffix, ``llm.service``; for ``ssh`` and ``systemd``."""
    user_unit: bool = False
    """The unit belongs to the account's own systemd (``systemctl --user``)."""
    host: str = ""
    """Host name, address or alias of ssh_config; an IPv6 address without its brackets."""
    user: str = ""
    port: int | None = None
    argv: tuple[str, ...] = ()
    """The command of ``process:``."""
    url: str = ""

    @property
    def remote(self) -> bool:
        return self.kind == "ssh"

    @property
    def destination(self) -> str:
        """What ssh is given: ``user@host`` or ``host``."""
        return f"{self.user}@{self.host}" if self.user else self.host


def parse_target(text: str) -> ParsedTarget:
    """Read a TARGET. Raises :class:`~leadline.errors.BadTarget` with a hint."""
    scheme, colon, rest = text.partition(":")
    if not colon:
        hint = f"did you mean systemd:{text}?" if _UNIT.fullmatch(text) else "a target begins with one of these words and a colon"
        raise BadTarget(target=text, hint=hint)
    match scheme:
        case "ssh":
            return _ssh(text)
        case "systemd" | "systemd-user":
            return ParsedTarget(text=text, kind="systemd", unit=_unit(text, rest), user_unit=scheme == "systemd-user")
        case "process":
            return ParsedTarget(text=text, kind="process", argv=_command(text, rest))
        case "http" | "https":
            return ParsedTarget(text=text, kind="http", url=_url(text))
        case _:
            raise BadTarget(target=text, hint=f"{scheme!r} is none of these words")


def _ssh(text: str) -> ParsedTarget:
    if not text.startswith("ssh://"):
        raise BadTarget(target=text, hint="ssh: is followed by two slashes")
    place, slash, path = text.removeprefix("ssh://").partition("/")
    if not slash or not path:
        raise BadTarget(target=text, hint="the unit is missing: end it with /NAME.service")
    user, at, address = place.rpartition("@")
    if at and not _USER.fullmatch(user):
        raise BadTarget(target=text, hint=f"{user!r} is not an account name")
    found = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::(.*))?", address, re.DOTALL)
    host, port = (found.group(1), found.group(2)) if found else (address, None)
    if not _HOST.fullmatch(host):
        raise BadTarget(target=text, hint=f"{host!r} is not a host name, an address or an alias of ssh_config")
    if port is not None and not (re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) < 65536):
        raise BadTarget(target=text, hint=f"{port!r} is not a port")
    own, _, name = path.rpartition("/")
    if own not in ("", "user"):
        raise BadTarget(target=text, hint="between host and unit stands nothing, or `user` for a unit of that account's own systemd")
    return ParsedTarget(
        text=text,
        kind="ssh",
        unit=_unit(text, name),
        user_unit=own == "user",
        host=host.strip("[]"),
        user=user,
        port=int(port) if port else None,
    )


def _unit(text: str, name: str) -> str:
    if not name.endswith(".service"):
        raise BadTarget(target=text, hint=f"write the unit with its suffix: {name}.service" if name else "the unit is missing")
    if not _UNIT.fullmatch(name) or len(name) > 255 or name.startswith("."):
        raise BadTarget(target=text, hint=f"{name!r} is not a unit name: letters, digits, ':-_.\\' and one '@'")
    if name.endswith("@.service"):
        raise BadTarget(target=text, hint=f"{name} is a template; name an instance, such as {name[:-8]}1.service")
    return name


def _command(text: str, command: str) -> tuple[str, ...]:
    try:
        argv = tuple(shlex.split(command))
    except ValueError as error:
        raise BadTarget(target=text, hint=f"the command cannot be split into arguments: {error}") from None
    if not argv:
        raise BadTarget(target=text, hint="a command follows process:")
    return argv


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or not text.isprintable() or " " in text:
        raise BadTarget(target=text, hint="that is not a complete URL")
    return text.rstrip("/")
