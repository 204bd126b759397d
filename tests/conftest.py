"""What every test needs of its process."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job ignores Ctrl-C, and so would everything the tests start
    signal.signal(signal.SIGINT, signal.default_int_handler)
