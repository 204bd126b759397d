"""One lab host a worker, with a name of its own: two test runs on one machine must never share, or end, a guest.

``LEADLINE_LAB=NAME`` uses the instance of that name and leaves it running.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from .host import Lab


@pytest.hookimpl(tryfirst=True)  # the groups must stand before xdist reads them
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/lab/" in str(item.path):
            item.add_marker(pytest.mark.lab)
            item.add_marker(pytest.mark.timeout(1200))  # boots machines; a busy one may take its time
            alone = item.path.name == "test_faults.py"  # its tests share nothing but their units: spread over the guests
            item.add_marker(pytest.mark.xdist_group(item.name if alone else item.path.name))


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    if os.geteuid() != 0 or not (shutil.which("apt-get") or shutil.which("linux.uml")):
        pytest.skip("the lab host needs root and Debian's user-mode-linux")
    named = os.environ.get("LEADLINE_LAB")
    host = Lab(named or f"l{os.getpid():x}", keep=named is not None)
    yield host
    host.down()
