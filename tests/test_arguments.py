"""Editing an argument vector: what is asked changes, every other byte stays."""

from __future__ import annotations

import argparse
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.engines.arguments import (
    Flag,
    drop_member,
    end_of_options,
    find,
    find_members,
    members,
    read,
    without,
    write,
    write_member,
)
from leadline.errors import ConfigError

STEPS = Flag(names=("--steps", "--num-steps"), shortest="--st")
TOPK = Flag(names=("--topk",))
QUIET = Flag(names=("--quiet", "-q"), switch=True)
CONFIG = Flag(names=("--spec-config", "-sc"), underscores=True)


def test_the_last_occurrence_counts_and_only_it_is_changed() -> None:
    argv = ("serve", "--steps", "1", "--port", "7", "--num-steps=2", "tail")
    assert read(argv, STEPS) == "2"
    assert write(argv, STEPS, "5") == ("serve", "--steps", "1", "--port", "7", "--num-steps=5", "tail")
    assert without(argv, STEPS) == ("serve", "--port", "7", "tail")


def test_an_abbreviation_is_the_flag_and_a_longer_word_is_not() -> None:
    assert read(("--ste", "4"), STEPS) == "4"
    assert read(("--s", "4"), STEPS) is None
    assert read(("--steps-extra", "4"), STEPS) is None


def test_a_missing_flag_is_added_beside_its_kin_in_their_style() -> None:
    assert write(("a", "--topk=1", "b"), STEPS, "3", beside=(TOPK,)) == ("a", "--topk=1", "--steps=3", "b")
    assert write(("a", "--topk", "1", "b"), STEPS, "3", beside=(TOPK,)) == ("a", "--topk", "1", "--steps", "3", "b")
    assert write(("a", "--", "b"), STEPS, "3") == ("a", "--steps", "3", "--", "b")
    assert end_of_options(("a", "b")) == 2


def test_switches_and_cut_off_values() -> None:
    assert read(("-q", "--topk", "1"), QUIET) == "true"
    assert write(("x",), QUIET, None) == ("x", "--quiet")
    assert write(("-q",), QUIET, None) == ("-q",)
    assert without(("-q", "1"), QUIET) == ("1",)
    assert find(("--topk",), TOPK)[0].value is None
    assert read(("a", "--", "--topk", "1"), TOPK) is None


def test_underscores_and_dotted_members_of_a_json_flag() -> None:
    argv = ("--spec_config.num_tokens", "4", "-sc.method=ngram", "--spec-config", "{}")
    found = find_members(argv, CONFIG)
    assert [(hit.member, hit.value) for hit in found] == [(("num_tokens",), "4"), (("method",), "ngram")]
    assert read(argv, CONFIG) == "{}"
    assert without(argv, CONFIG) == ()


def test_json_members_keep_their_spelling() -> None:
    text = '{ "method" : "ngram",  "k":3, "odd":"a\\"}, \\u00e9" }'
    assert write_member(text, "k", 7, "-") == text.replace('"k":3', '"k":7')
    assert drop_member(text, "k", "-") == '{ "method" : "ngram",  "odd":"a\\"}, \\u00e9" }'
    assert json.loads(write_member(text, "new", [[1, 2, 3]], "-"))["new"] == [[1, 2, 3]]
    assert write_member("{}", "k", 1, "-") == '{"k": 1}'
    assert drop_member('{"k":1}', "k", "-") == "{}"
    assert drop_member('{"a":1,"k":1}', "k", "-") == '{"a":1}'
    assert drop_member('{"k":1,"k":2}', "k", "-") == "{}"
    assert [member.key for member in members(text, "-")] == ["method", "k", "odd"]


@pytest.mark.parametrize("text", ["{method: ngram", "[1]", "3"])
def test_broken_json_names_the_place(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        members(text, "--spec-config")
    assert "--spec-config" in caught.value.message


WORDS = st.lists(
    st.sampled_from(["--steps", "--steps=1", "--num-steps=9", "--port", "--port=1", "--topk", "--topk=4", "7", "8", "--quiet"]), max_size=8
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--steps", "--num-steps", dest="steps")
    parser.add_argument("--topk")
    parser.add_argument("--port")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("rest", nargs="*")
    return parser


@settings(deadline=None, max_examples=300)
@given(words=WORDS)
def test_edits_read_as_argparse_reads_them(words: list[str]) -> None:
    parser = _parser()
    try:
        before, extra = parser.parse_known_args(words)
    except (argparse.ArgumentError, SystemExit):
        return  # not a command line that starts anything
    assert read(words, STEPS) == before.steps
    after, still = parser.parse_known_args(write(words, STEPS, "42", beside=(TOPK,)))
    assert (after.steps, after.topk, after.port, after.quiet) == ("42", before.topk, before.port, before.quiet)
    assert (sorted(after.rest), still) == (sorted(before.rest), extra)
    gone, _ = parser.parse_known_args(without(words, STEPS))
    assert (gone.steps, gone.topk, gone.port, gone.quiet) == (None, before.topk, before.port, before.quiet)


KEYS = st.text(alphabet='abk"\\é{,}: ', max_size=4)
VALUES = st.recursive(st.integers(-5, 5) | st.booleans() | KEYS, lambda inner: st.lists(inner, max_size=2), max_leaves=3)


@settings(deadline=None, max_examples=200)
@given(whole=st.dictionaries(KEYS, VALUES, max_size=4), indent=st.sampled_from([None, 2]), key=KEYS, value=VALUES)
def test_json_edits_change_one_member_only(whole: dict[str, object], indent: int | None, key: str, value: object) -> None:
    text = json.dumps(whole, indent=indent)
    assert json.loads(write_member(text, key, value, "-")) == {**whole, key: value}
    assert json.loads(drop_member(text, key, "-")) == {k: v for k, v in whole.items() if k != key}
    assert write_member(text, key, value, "-").startswith("{")
