"""What every test needs of its process."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

import loadmock

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job ignores Ctrl-C, and so would everything the tests start
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[loadmock.Mock]:
    """The ground-truth server, one a module."""
    if loadmock.COMPILER is None:
        pytest.skip("the ground-truth server needs a C compiler")
    server = loadmock.Mock(loadmock.build(tmp_path_factory.mktemp("mock")))
    yield server
    server.close()
