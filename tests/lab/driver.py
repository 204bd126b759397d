"""A leadline process at work on several units at once, each brought to another event of a campaign, there to be broken.

``driver.py SSH_CONFIG DESTINATION DEADMAN_S DEPTH EVENT:UNIT:PORT …``: prints ``at EVENT`` as each unit gets there; a line on standard
input lets all go on with what a campaign would do next.  Whatever comes of that, nothing is put back: that is the host's business.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import urllib.error
import urllib.request

from leadline.config import Deploy
from leadline.errors import LeadlineError
from leadline.records import Launch
from leadline.ssh import SshTarget
from leadline.systemd import SystemdSupervisor

GO = threading.Event()
ROOM = threading.Semaphore(3)


def main() -> None:
    config, destination, deadman_s, depth, *places = sys.argv[1:]
    target = SshTarget(destination, ssh=("ssh", "-F", config), connect_timeout_s=10.0, alive_s=5)
    settings = Deploy(deadman_s=float(deadman_s), stop_grace_s=2.0)
    threads = [threading.Thread(target=one, args=(target, settings, depth, *place.split(":"))) for place in places]
    for thread in threads:
        thread.start()
    sys.stdin.readline()
    GO.set()
    for thread in threads:
        thread.join()
    os._exit(4)


def one(target: SshTarget, settings: Deploy, depth: str, event: str, unit: str, port: str) -> None:
    service = SystemdSupervisor(target, unit, target_name=f"ssh://{target.name}/{unit}", settings=settings)
    ROOM.acquire()
    try:
        story(service, int(port), event, depth)
    except LeadlineError as error:
        print(f"error {event} {error.id}: {error.message}", flush=True)


def story(service: SystemdSupervisor, port: int, event: str, depth: str) -> None:
    """The events of a campaign in their order, with what happens to the host between them."""

    def at(name: str) -> bool:
        if name == event:
            print(f"at {name}", flush=True)
            ROOM.release()
            GO.wait()
        return name == event

    found = service.service().command.argv
    with_depth = [*found[:-1], depth]
    if at("planned"):
        service.arm()
        return
    service.arm()
    if at("intended"):
        service.start(with_depth)
        return
    launch = service.start([*found[:-1], "9"] if event == "failed" else with_depth)
    if at("deployed"):
        ask(service, launch, port)
        return
    if event == "failed":
        while service.status(launch).running:
            time.sleep(0.2)
        at("failed")
        service.stop(launch)
        return
    if event in ("ready", "measured", "observed"):
        ask(service, launch, port)
    if at("ready") or at("measured"):
        service.status(launch)
        service.renew()
        service.start([*found[:-1], "7"])
        return
    if at("observed"):
        service.stop(launch)
        return
    if event == "applying":
        service.apply(with_depth, verify=lambda launch: at("applying") and None)
        return
    service.stop(launch)
    if at("restored") or at("decided"):
        service.start([*found[:-1], "7"])
        return
    if at("concluded"):
        service.restore()


def ask(service: SystemdSupervisor, launch: Launch, port: int) -> None:
    """Wait for the trial's own answer through the forward, 5 s at most."""
    with service.target.forward(port) as local:
        until = time.monotonic() + 5.0
        while service.status(launch).running and time.monotonic() < until:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{local}/health", timeout=2.0) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.3)


if __name__ == "__main__":
    main()
