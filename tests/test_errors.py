"""Every error has a message, a next step and an exit status in its band; the generated table equals the docs."""

from __future__ import annotations

import string
from pathlib import Path

import pytest

from leadline import errors

BANDS = {
    errors.ConfigError: (10, 19),
    errors.HostUnreachable: (20, 29),
    errors.PortTaken: (30, 39),
    errors.JournalDamaged: (40, 49),
    errors.MeasurementInvalid: (50, 59),
}


def test_docs_table_is_the_code() -> None:
    page = (Path(__file__).parent.parent / "docs" / "errors.md").read_text()
    assert errors.table() in page, "run: python -m leadline.errors, and put its output into docs/errors.md"


def test_exit_codes_are_unique() -> None:
    codes = [cls.exit_code for cls in errors.all_errors()]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("cls", list(errors.all_errors()), ids=lambda cls: cls.__name__)
def test_message_and_remedy_use_only_named_fields(cls: type[errors.LeadlineError]) -> None:
    fields = {name for _, name, _, _ in string.Formatter().parse((cls.__doc__ or "") + cls.remedy) if name}
    error = cls(**{name: f"<{name}>" for name in fields})
    assert "?" not in error.message.replace("?)", "")
    assert all(f"<{name}>" in error.message + error.next for name in fields)
    assert error.next, "every error says what to do next"
    assert error.as_dict()["exit_code"] == cls.exit_code


def test_braces_in_a_value_are_no_template() -> None:
    error = errors.ConfigError(place="x", what="{boom} {0}", fix="write {}")
    assert "{boom} {0}" in error.message
    assert error.next == "write {}"


@pytest.mark.parametrize(("cls", "band"), BANDS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_bands(cls: type[errors.LeadlineError], band: tuple[int, int]) -> None:
    assert band[0] <= cls.exit_code <= band[1]
