"""Kill leadline with SIGKILL at random moments of a real campaign, and look at what is left.

Also a program: ``python tests/kills.py [--kills 20] [--longest 60] -- COMMAND...`` where COMMAND runs a campaign to its end
(``leadline demo --yes`` or ``leadline tune --yes ...``); it prints one line a kill and the verdicts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from leadline import journal
from leadline import records as r
from leadline.journal import Journal
from leadline.target import can_bind

MARK = "LEADLINE_KILL_TEST"
CLEAN_WITHIN_S = 15.0


def left_over(mark: str) -> list[psutil.Process]:
    """Processes that carry our mark in their environment: everything a campaign started, and it itself."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def clean_after(mark: str, port: int) -> str:
    """Empty when nothing is left and the port is free within :data:`CLEAN_WITHIN_S`; else what is left."""
    deadline = time.monotonic() + CLEAN_WITHIN_S
    while True:
        processes = left_over(mark)
        taken = not can_bind(port)
        if not processes and not taken:
            return ""
        if time.monotonic() > deadline:
            names = [f"{p.pid} {' '.join(p.cmdline())[:80]}" for p in processes if p.is_running()]
            return f"left: {names}, port {port} {'taken' if taken else 'free'}"
        time.sleep(0.05)


def start(command: Sequence[str], home: Path, mark: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, MARK: mark, "LEADLINE_HOME": str(home)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def kill_at(command: Sequence[str], home: Path, mark: str, after_s: float) -> bool:
    """Run the campaign, kill leadline itself (not its group) after a while; False when it was already done."""
    running = start(command, home, mark)
    try:
        running.wait(timeout=after_s)
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGKILL)
        running.communicate()
        return True
    running.communicate()
    return False


def finish(command: Sequence[str], home: Path, mark: str, limit_s: float) -> tuple[int, str]:
    """Run the campaign to its end; exit status and standard error."""
    running = start(command, home, mark)
    try:
        _, errors = running.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        running.kill()
        _, errors = running.communicate()
        return -1, f"not done after {limit_s} s: {errors.decode()}"
    return running.returncode, errors.decode()


def repeated(folder: Path) -> list[str]:
    """Measurements that an interrupted trial had finished and that its successor measured again."""
    with Journal(folder, write=False) as book:
        trials = book.knowledge.trials
    again = []
    for index, trial in enumerate(trials):
        if trial.abandoned is None or not trial.abandoned.retry:
            continue
        later = next((t for t in trials[index + 1 :] if (t.candidate, t.kind) == (trial.candidate, trial.kind)), None)
        if later is not None:
            done = {(b.level, b.block) for b in trial.blocks}
            again += [
                f"trial {later.number} repeats {level.label} block {block} of trial {trial.number}"
                for level, block in done & {(b.level, b.block) for b in later.blocks}
            ]
    return again


def kind_of(verdict: r.Verdict) -> dict[str, str]:
    """What must agree between campaigns of one truth: the family of the winner at each level."""
    return {point.level.label: point.candidate.algorithm for point in verdict.points}


def verdict_of(folder: Path) -> r.Verdict | None:
    with Journal(folder, write=False) as book:
        return book.knowledge.verdict


def play(command: Sequence[str], home: Path, *, port: int, kills: int, longest_s: float, seed: int, limit_s: float) -> list[str]:
    """``kills`` kills spread over as many campaigns as that takes, each run to its verdict; what went wrong, in words."""
    os.environ["LEADLINE_HOME"] = str(home)
    chance, wrong, done, campaign = random.Random(seed), [], 0, 0
    while done < kills:
        campaign += 1
        mark = f"{seed}-{campaign}"
        for _ in range(chance.randint(2, 5)):
            if done == kills:
                break
            after_s = chance.uniform(0.3, longest_s)
            if not kill_at(command, home, mark, after_s):
                break
            done += 1
            left = clean_after(mark, port)
            print(f"kill {done:2d} after {after_s:5.1f} s: {left or 'nothing left, port free'}", flush=True)
            wrong += [left] if left else []
        status, errors = finish(command, home, mark, limit_s)
        folder = journal.campaigns()[0]
        verdict = verdict_of(folder)
        if status != 0 or verdict is None:
            wrong.append(f"campaign {campaign} ended with {status}: {errors[-600:]}")
            continue
        wrong += repeated(folder)
        left = clean_after(mark, port)
        wrong += [left] if left else []
        print(f"verdict {campaign}: {json.dumps(kind_of(verdict))}", flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--longest", type=float, default=60.0, help="seconds after which a kill comes at the latest")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds a campaign may take")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    command = asked.command[1:] if asked.command[:1] == ["--"] else asked.command
    wrong = play(command, asked.home, port=asked.port, kills=asked.kills, longest_s=asked.longest, seed=asked.seed, limit_s=asked.limit)
    print("\n".join(wrong) or "all clean")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
