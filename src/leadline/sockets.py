"""Who listens on a TCP port of this machine (proc_net_tcp: one line a socket, ``0A`` = LISTEN, inode in field 10)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil

from .records import Listener

LISTEN = "0A"
UNSEEN = "(a process whose sockets this account may not see)"


def listeners(port: int) -> tuple[Listener, ...]:
    """Every process with a listening socket on ``port``; pid 0 where the owner cannot be seen by this account."""
    inodes = _listening(port)
    if not inodes:
        return ()
    pids = _owners(inodes)
    return tuple(_listener(port, pid) for pid in sorted(pids)) or (Listener(port=port, pid=0, command=UNSEEN),)


def _listening(port: int) -> set[str]:
    wanted = f":{port:04X}"
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTEN and fields[1].endswith(wanted):
                    found.add(fields[9])
    return found


def _owners(inodes: set[str]) -> set[int]:
    links = {f"socket:[{inode}]" for inode in inodes}
    found: set[int] = set()
    for pid in psutil.pids():
        with contextlib.suppress(OSError):  # gone, or not ours to see
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{name}") in links:
                        found.add(pid)
                        break
    return found


def _listener(port: int, pid: int) -> Listener:
    try:
        process = psutil.Process(pid)
        return Listener(port=port, pid=pid, command=" ".join(process.cmdline()) or process.name(), started_s=process.create_time())
    except psutil.Error:
        return Listener(port=port, pid=pid, command="(it just ended)")
