"""Targets: what is read, what is refused, and that nothing hostile gets through."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.errors import BadTarget
from leadline.targets import ParsedTarget, parse_target


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ssh://gpu1/llm.service", {"kind": "ssh", "host": "gpu1", "unit": "llm.service", "destination": "gpu1"}),
        ("ssh://ops@gpu1:2222/llm.service", {"user": "ops", "port": 2222, "destination": "ops@gpu1", "remote": True}),
        ("ssh://ops@[fe80::1%eth0]:22/llm@a.service", {"host": "fe80::1%eth0", "port": 22, "unit": "llm@a.service"}),
        ("ssh://jo@corp.example@gpu/x.service", {"user": "jo@corp.example", "host": "gpu"}),
        ("ssh://gpu1/user/llm.service", {"user_unit": True, "unit": "llm.service"}),
        ("systemd:llm.service", {"kind": "systemd", "user_unit": False, "remote": False}),
        (r"systemd:srv-a\x2db.service", {"unit": r"srv-a\x2db.service"}),
        ("systemd-user:llm.service", {"kind": "systemd", "user_unit": True}),
        ("process:llama-server -m 'a b.gguf'", {"kind": "process", "argv": ("llama-server", "-m", "a b.gguf")}),
        ("http://127.0.0.1:8000/", {"kind": "http", "url": "http://127.0.0.1:8000"}),
        ("https://[::1]:8000", {"kind": "http"}),
    ],
)
def test_reads(text: str, expected: dict[str, object]) -> None:
    target = parse_target(text)
    assert target.text == text
    assert {name: getattr(target, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("llm.service", "did you mean systemd:llm.service"),
        ("", "begins with"),
        ("gpu1/llm.service", "begins with"),
        ("ssh:gpu1/llm.service", "two slashes"),
        ("ssh://gpu1", "unit is missing"),
        ("ssh://gpu1/", "unit is missing"),
        ("ssh://gpu1/llm", "llm.service"),
        ("ssh://gpu1/etc/llm.service", "user"),
        ("ssh://-oProxyCommand=x/llm.service", "not a host"),
        ("ssh://-l@gpu1/llm.service", "not an account"),
        ("ssh://gpu1:0/llm.service", "not a port"),
        ("ssh://gpu1:99999/llm.service", "not a port"),
        ("ssh://gpu1:22x/llm.service", "not a port"),
        ("ssh://gpu 1/llm.service", "not a host"),
        ("systemd:llm@.service", "template"),
        ("systemd:-x.service", "not a unit name"),
        ("systemd:a b.service", "not a unit name"),
        ("systemd:", "missing"),
        ("systemd:a\n.service", "not a unit name"),
        ("process:", "follows"),
        ("process:'", "cannot be split"),
        ("http://", "complete URL"),
        ("http://a:x/", "complete URL"),
        ("ftp://x/y.service", "none of these"),
    ],
)
def test_refuses_with_a_hint(text: str, hint: str) -> None:
    with pytest.raises(BadTarget, match="not a target") as caught:
        parse_target(text)
    assert hint in caught.value.next


HOSTILE = st.text(st.sampled_from(list("ab1.-_@:/\\ \n\t'\"$%;&|`()<>*?[]{}~#!=é\0")), max_size=20)


@settings(deadline=None, max_examples=400)
@given(HOSTILE, HOSTILE, HOSTILE, st.sampled_from(["ssh://{u}@{h}/{n}.service", "ssh://{h}/{n}.service", "systemd:{n}.service"]))
def test_whatever_is_accepted_is_harmless(user: str, host: str, name: str, form: str) -> None:
    """Accepted parts carry no blank, quote, dollar, semicolon or newline, and none can be read as an option."""
    try:
        target: ParsedTarget = parse_target(form.format(u=user, h=host, n=name))
    except BadTarget:
        return
    for part in (target.user, target.host, target.unit, target.destination):
        assert not part.startswith(("-", "."))
        assert re.fullmatch(r"[A-Za-z0-9:_.@%+\\-]*", part)
    assert "%" not in target.unit
