"""How long ``leadline inspect ssh://…`` takes on a warm connection, on the lab host (root; `make inspect-bench`).

Each look is what the verb does once the connection stands: read the unit, ask the service through the forward, read its log, draw the
frontier, measure the round trip.  Ends with 1 when the quickest of them misses the bar: a busy machine can only make a look slower.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence

from lab.host import Lab
from leadline import inspecting
from leadline.engines import recognise
from leadline.ssh import SshTarget
from leadline.systemd import SystemdSupervisor

BAR_S = 2.0
UNIT, PORT = "looked-at.service", 8400


def look(target: SshTarget) -> float:
    """Seconds of one inspection."""
    begin = time.perf_counter()
    supervisor = SystemdSupervisor(target, UNIT, target_name=f"ssh://lab/{UNIT}")
    service = supervisor.service()
    engine, parsed = recognise(service.command.argv)
    seen = inspecting.inspect(supervisor, service, engine, parsed)
    took_s = time.perf_counter() - begin
    if not (seen.running and seen.reported is not None and seen.frontier):
        raise SystemExit(f"the service was not seen as it is: {seen}")
    return took_s


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--looks", type=int, default=7)
    asked = parser.parse_args(arguments)
    lab = Lab(f"i{os.getpid():x}")
    try:
        lab.install_engine(UNIT, PORT, "--spec-method draft --spec-depth 2", "--plant deep")
        lab.wait_for_port(PORT)
        target = SshTarget("lab", ssh=lab.ssh)
        cold_s = look(target)
        warm_s = sorted(look(target) for _ in range(asked.looks))
        target.close()
    finally:
        lab.down()
    print(
        f"first look, with the connection {cold_s:.2f} s; warm: median {statistics.median(warm_s):.2f} s, "
        f"{warm_s[0]:.2f} to {warm_s[-1]:.2f} s of {len(warm_s)} (bar {BAR_S:g} s)"
    )
    return 0 if warm_s[0] < BAR_S else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
