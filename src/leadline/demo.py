"""``leadline demo``: a real llama.cpp server, a real small model, the ordinary campaign.

Nothing here is special: it makes the model files, chooses a free port and hands ``tune`` a ``process:`` target, which it
prints.  The F32 target and its Q4_1 draft are the same weights: a device to have a pair from one small file.
"""

from __future__ import annotations

import os
import shlex
import sys
import time

from . import assets
from .config import Measure, Settings, Tune
from .errors import PortTaken
from .target import can_bind

FIRST_PORT, LAST_PORT = 18081, 18180
SLOTS = 4
CONTEXT_TOKENS = 8192
PATIENCE_S = 4.0


def prepare(*, narrate: bool) -> tuple[str, Settings]:
    """Model files and command: (TARGET, settings). Raises NothingToTune when the demo's packages are missing, DiskFull."""

    def say(text: str) -> None:
        if narrate:
            print(text, file=sys.stderr, flush=True)

    pair = assets.pair(notify=say)
    argv = command(str(pair.target), str(pair.draft), first_free_port())
    target = "process:" + shlex.join(argv)
    say(
        "the demo tunes a real llama.cpp server with SmolLM2-135M: the target is the F32 form of the weights, the draft their Q4_1 form\n"
        f"(a device to have a target and a draft from one small file). It stands for\n\n  {as_tune(target)}\n"
    )
    return target, settings()


def command(model: str, draft: str, port: int) -> tuple[str, ...]:
    """The server's command as found: a draft model is there, speculation is off."""
    cores = os.cpu_count() or 2
    threads = str(max(1, min(4, cores - 1)))  # the load client needs a core of its own
    return (
        *(sys.executable, "-m", "leadline.launcher"),
        *("-m", model, "-md", draft, "--alias", "smollm2-135m"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("-t", threads, "-np", str(SLOTS), "-c", str(CONTEXT_TOKENS)),
        *("--cache-ram", "0", "--metrics", "--slots"),
    )


def settings() -> Settings:
    """Two workloads, one and four users; sized for two cores and six minutes."""
    return Settings(
        tune=Tune(objective="balanced", max_launches=14, max_minutes=4.5),
        measure=Measure(
            concurrency=(1, SLOTS),
            workloads=("chat", "copy"),
            max_tokens=64,
            prompts=2,
            explore_blocks=2,
            confirm_blocks=3,
            max_blocks=4,
        ),
    )


def as_tune(target: str) -> str:
    """The ``leadline tune`` command line that the demo stands for."""
    wanted, measure = settings().tune, settings().measure
    flags = [
        *("--workload", ",".join(measure.workloads)),
        *("--concurrency", ",".join(map(str, measure.concurrency))),
        *("--max-tokens", str(measure.max_tokens)),
        *("--max-launches", str(wanted.max_launches), "--max-minutes", f"{wanted.max_minutes:g}"),
    ]
    return shlex.join(["leadline", "tune", *flags, target])


def first_free_port() -> int:
    """The first free loopback port of the demo's range, so that an interrupted demo finds its port (and journal) again.

    The first one gets a moment: the keeper of a demo that was killed just now may still be ending its server.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not can_bind(FIRST_PORT) and time.monotonic() < deadline:
        time.sleep(0.1)
    for port in range(FIRST_PORT, LAST_PORT):
        if can_bind(port):
            return port
    raise PortTaken(port=f"{FIRST_PORT}-{LAST_PORT}", pid="several", command="other programs")
