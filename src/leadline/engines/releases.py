"""Version numbers of engines, comparable: rules are data keyed by the release in which they begin.

>>> release("0.5.12.post1") < release("0.5.13") < release("v0.6.0rc1+cu128")
True
"""

from __future__ import annotations

import re
from collections.abc import Sequence

Release = tuple[int, int, int, int]

_FORM = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:\.post(\d+))?")


def release(text: str) -> Release:
    """``major.minor.patch[.postN]`` as a tuple; local and pre-release parts are ignored. Raises ValueError."""
    found = _FORM.match(text.strip())
    if found is None:
        raise ValueError(f"not a version number: {text!r}")
    major, minor, patch, post = found.groups()
    return int(major), int(minor), int(patch or 0), int(post or 0)


def known(text: str | None) -> Release | None:
    """As :func:`release`, ``None`` for an absent or unreadable version."""
    if text is None or _FORM.match(text.strip()) is None:
        return None
    return release(text)


def since(version: Release, steps: Sequence[tuple[str, str]]) -> str:
    """The value that holds at ``version`` in a list of (first release, value), oldest first; the oldest value below that."""
    value = steps[0][1]
    for first, new in steps:
        if version >= release(first):
            value = new
    return value
