"""Everything a host can say about a unit at one moment, kept verbatim: the evidence that ``doctor`` reads.

Each layer is one command. A layer that this account may not see says so in its own text; nothing is left out silently.
"""

from __future__ import annotations

import time

from .probes import journal_hidden
from .records import Evidence, Exit, Source
from .target import Target

LIMIT_BYTES = 4 << 20


def gather(
    target: Target, unit: str, *, scope: tuple[str, ...], env: tuple[str, ...], invocation: str, group: str, exit_: Exit | None
) -> Evidence:
    """All layers of ``unit``; ``invocation`` limits its journal to one launch where it is known."""
    match = [f"_SYSTEMD_INVOCATION_ID={invocation}", "+", f"INVOCATION_ID={invocation}"] if invocation else ["-u", unit]
    layers = [
        ("systemctl show", ["systemctl", *scope, "show", "--no-pager", "--", unit]),
        ("systemctl cat", ["systemctl", *scope, "cat", "--no-pager", "--", unit]),
        ("journal", ["journalctl", *scope, "--no-pager", "-o", "short-iso", "-n", "4000", *match]),
        ("kernel", ["journalctl", "--no-pager", "-k", "-o", "short-iso", "-n", "1000"]),
        (
            "cgroup",
            [
                "sh",
                "-c",
                'grep -H . "/sys/fs/cgroup$1"/memory.events "/sys/fs/cgroup$1"/memory.max; grep oom_kill /proc/vmstat',
                "sh",
                group,
            ],
        ),
        ("sockets", ["ss", "-Hltnp"]),
        ("gpu", ["sh", "-c", "command -v nvidia-smi >/dev/null && nvidia-smi || true"]),
        ("disk", ["df", "-P"]),
        ("memory", ["cat", "/proc/meminfo"]),
    ]
    sources = (_layer(target, name, [*env, *argv], root=not scope) for name, argv in layers)
    return Evidence(sources=tuple(source for source in sources if source.text), taken_s=time.time(), exit=exit_)


def _layer(target: Target, name: str, argv: list[str], *, root: bool) -> Source:
    done = target.run(["env", "LC_ALL=C", *argv], timeout_s=60.0)
    hidden = journal_hidden(done.error_text) or (name == "sockets" and "pid=" not in done.text)
    if root and hidden:
        again = target.run(["sudo", "-n", "--", "env", "LC_ALL=C", *argv], timeout_s=60.0)
        done = again if again.status == 0 else done
        hidden = again.status != 0
    text = done.text[-LIMIT_BYTES:]
    if hidden and name in ("journal", "kernel"):
        text = f"(this account may not read the {name}; add it to the group systemd-journal)\n" + text
    return Source(name=name, text=text, truncated=len(done.text) > LIMIT_BYTES)
