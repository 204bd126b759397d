"""One lab host a worker. ``LEADLINE_LAB=NAME`` uses the instance of that name and leaves it running."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from .host import Lab


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/lab/" in str(item.path):
            item.add_marker(pytest.mark.lab)
            item.add_marker(pytest.mark.timeout(1200))  # boots machines; a busy one may take its time


@pytest.fixture(scope="session")
def lab(worker_id: str) -> Iterator[Lab]:
    if os.geteuid() != 0 or not (shutil.which("apt-get") or shutil.which("linux.uml")):
        pytest.skip("the lab host needs root and Debian's user-mode-linux")
    host = Lab(os.environ.get("LEADLINE_LAB", "ll" + worker_id.replace("master", "0")))
    yield host
    host.down()
