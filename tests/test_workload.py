"""Prompts: equal on every machine, different in every block; the user's own files in every format."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline import measure, promptfile, workload
from leadline.config import Measure
from leadline.errors import BadWorkload
from leadline.records import Level


@pytest.mark.parametrize("name", workload.BUILT_IN)
def test_hundreds_of_prompts_none_twice(name: str) -> None:
    seen = {prompt.messages for block in range(50) for prompt in workload.blocks(name, seed=1, block=block, count=8, max_tokens=64)}
    assert len(seen) == 400


@pytest.mark.parametrize("name", workload.BUILT_IN)
def test_every_placeholder_is_filled(name: str) -> None:
    fill = workload.built_in(name).fill
    for prompt in workload.blocks(name, seed=3, block=1, count=20, max_tokens=64):
        for _, content in prompt.messages:
            assert not [word for word in fill if "{" + word + "}" in content or "{" + word + "@" in content or "{" + word + "*" in content]
            assert ".." not in content.replace("...", "")


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(workload.BUILT_IN), st.integers(0, 10**9), st.integers(0, 1000), st.integers(1, 9))
def test_the_same_arguments_give_the_same_prompts(name: str, seed: int, block: int, count: int) -> None:
    first = workload.blocks(name, seed=seed, block=block, count=count, max_tokens=5)
    assert first == workload.blocks(name, seed=seed, block=block, count=count, max_tokens=5)
    assert first == workload.blocks(name, seed=seed, block=block, count=count + 1, max_tokens=5)[:count]
    assert first != workload.blocks(name, seed=seed, block=block + 1, count=count, max_tokens=5)


def test_prompts_do_not_change_between_releases() -> None:
    """A campaign of an older release stays comparable: a change here needs a new digest, which the templates give it."""
    prompt = workload.blocks("chat", seed=1, block=0, count=1, max_tokens=64)[0]
    assert prompt.messages[1][1].startswith("Quick question: I work in a bakery and have never studied law")


def test_the_edit_workload_shares_its_prefix_within_a_block() -> None:
    block = workload.blocks("edit", seed=1, block=0, count=4, max_tokens=64)
    assert len({prompt.messages[0] for prompt in block}) == 1
    assert len({prompt.messages[1] for prompt in block}) == 4
    assert block[0].messages[0] != workload.blocks("edit", seed=1, block=1, count=1, max_tokens=64)[0].messages[0]


def test_the_digest_changes_with_whatever_changes_the_prompts() -> None:
    one = Measure()
    digests = {
        workload.digest(("chat",), one),
        workload.digest(("copy",), one),
        workload.digest(("chat",), Measure(seed=2)),
        workload.digest(("chat",), Measure(max_tokens=65)),
        workload.digest(("chat",), Measure(cache="warm")),
    }
    assert len(digests) == 5
    assert workload.digest(("chat",), one) == workload.digest(("chat",), Measure(concurrency=(9,)))


def test_the_digest_of_built_in_workloads_does_not_change_between_releases() -> None:
    assert workload.digest(("chat",), Measure()) == "56a2a6841b15d49b"
    assert workload.digest(workload.BUILT_IN, Measure(seed=3, cache="warm", max_tokens=9)) == "518084b54ad3a5db"


def test_a_file_is_known_by_its_content(tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": f"P{n}"}) for n in range(9)]
    one, same, other = (str(tmp_path / name) for name in ("one.jsonl", "same.jsonl", "other.jsonl"))
    for path, text in ((one, lines), (same, lines), (other, lines[1:])):
        Path(path).write_text("\n".join(text))
    one_digest, same_digest, other_digest = (measure.digest(Measure(workloads=("chat", path))) for path in (one, same, other))
    assert one_digest == same_digest != other_digest
    assert one_digest != measure.digest(Measure(workloads=(one, "chat")))  # levels correspond by place
    assert measure.digest(Measure(workloads=(one, other))) != measure.digest(Measure(workloads=(other, one)))
    assert measure.prompts_of(one, Measure(), block=1, count=4) == measure.prompts_of(same, Measure(), block=1, count=4)


def test_unknown_workloads_and_counts_are_refused() -> None:
    with pytest.raises(BadWorkload, match="no built-in workload"):
        workload.blocks("random", seed=1, block=0, count=1, max_tokens=1)
    with pytest.raises(BadWorkload):
        workload.blocks("chat", seed=1, block=0, count=0, max_tokens=1)


FORMATS = {
    "openai": ['{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U%d"}], "max_tokens": 7}'],
    "batch": ['{"custom_id": "a", "body": {"messages": [{"role": "user", "content": "U%d"}], "max_completion_tokens": 7}}'],
    "parts": ['{"messages": [{"role": "user", "content": [{"type": "text", "text": "U%d"}]}], "max_tokens": 7}'],
    "vllm": ['{"prompt": "U%d", "output_tokens": 7}'],
    "sglang": ['{"conversations": [{"content": "U%d"}, {"content": "A"}], "max_tokens": 7}'],
    "sharegpt": ['{"id": "x", "conversations": [{"from": "human", "value": "U%d"}, {"from": "gpt", "value": "A"}], "max_tokens": 7}'],
}


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_read(form: str) -> None:
    lines = [FORMATS[form][0] % number for number in range(6)]
    for text in ("\n".join(lines), "[" + ",".join(lines) + "]"):
        source = promptfile.parse("mine.jsonl", text)
        prompts = workload.from_file(source, seed=1, block=0, count=6, max_tokens=64)
        assert sorted(prompt.messages[-1] for prompt in prompts) == [("user", f"U{number}") for number in range(6)]
        assert {prompt.max_tokens for prompt in prompts} == {7}


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_lines_end_at_line_feeds_only(separator: str) -> None:
    lines = [json.dumps({"prompt": f"a{separator}b{number}"}, ensure_ascii=False) for number in range(2)]
    source = promptfile.parse("mine.jsonl", "\r\n".join(lines))
    assert [turn.messages[0][1] for (turn,) in source.sessions] == [f"a{separator}b0", f"a{separator}b1"]


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    plain = promptfile.parse("mine.jsonl", '{"prompt": "a"}')
    assert promptfile.parse("mine.jsonl", '\ufeff{"prompt": "a"}') == plain
    path = tmp_path / "mine.json"
    path.write_text('[{"prompt": "a"}]', "utf-8-sig")
    assert measure.prompt_file(str(path)).sessions == plain.sessions


@pytest.mark.parametrize("limit", ["-1", "0", "0.5", "null", "true", "NaN", "1e400", "1" + "0" * 400])
def test_a_limit_that_is_none_counts_as_not_given(limit: str) -> None:
    source = promptfile.parse("mine.jsonl", f'{{"prompt": "a", "max_tokens": {limit}}}')
    assert [prompt.max_tokens for prompt in workload.from_file(source, seed=1, block=0, count=1, max_tokens=9)] == [9]
    other = promptfile.parse("mine.jsonl", f'{{"prompt": "a", "max_completion_tokens": {limit}, "max_tokens": 4}}')
    assert other.sessions[0][0].max_tokens == 4


def test_an_answer_that_only_calls_tools_is_an_empty_text() -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    talk = [("user", "a", {}), ("assistant", None, {"tool_calls": calls}), ("tool", "r", {"tool_call_id": "1"}), ("user", "b", {})]
    line = json.dumps({"messages": [{"role": role, "content": content, **more} for role, content, more in talk]})
    ((turn,),) = promptfile.parse("mine.jsonl", line).sessions
    assert turn.messages == (("user", "a"), ("assistant", ""), ("tool", "r"), ("user", "b"))


CALLS = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
AGENT = [
    {"role": "system", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
    {"role": "user", "content": "a", "name": "ann"},
    {"role": "assistant", "content": None, "tool_calls": CALLS, "reasoning_content": "hm"},
    {"role": "tool", "content": "r", "tool_call_id": "1"},
    {"role": "assistant", "tool_calls": CALLS},
    {"role": "tool", "content": [{"type": "text", "text": "s"}], "tool_call_id": "1"},
    {"role": "user", "content": [PICTURE, {"type": "text", "text": "b"}]},
]


def sent(line: dict[str, object], path: Path, *, cache: str = "production", endpoint: str = "chat/completions") -> dict[str, object]:
    """The body of the one request of a file."""
    path.write_text(json.dumps(line))
    wanted = Measure(cache=cache)  # type: ignore[arg-type]
    (prompt,) = measure.prompts_of(str(path), wanted, block=0, count=1)
    found: dict[str, object] = json.loads(
        measure.body(prompt, model="m", settings=wanted, options=measure.Options(path=f"/v1/{endpoint}", salt="s"))
    )
    return found


def test_recorded_messages_are_sent_as_they_stand_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "agent.jsonl"
    for line in ({"messages": AGENT}, {"custom_id": "a", "body": {"messages": AGENT}}):
        assert sent(line, path)["messages"] == AGENT
    cold = sent({"messages": AGENT}, path, cache="cold")["messages"]
    assert isinstance(cold, list)
    assert cold[1:] == AGENT[1:]
    assert sent({"messages": AGENT}, path, endpoint="completions")["prompt"] == "\n\n".join(("Be brief.", "a", "", "r", "", "s", "b"))
    odd = [{"from": "human", "value": "a", "name": "ann"}, {"role": "gpt", "content": "b"}]
    assert sent({"messages": odd}, path)["messages"] == [
        {"role": "user", "content": "a", "name": "ann"},
        {"role": "assistant", "content": "b"},
    ]


def test_messages_of_role_and_text_alone_are_kept_once() -> None:
    line = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]}
    ((turn,),) = promptfile.parse("mine.jsonl", json.dumps(line)).sessions
    assert turn.recorded == ""
    assert turn.messages == (("user", "a"), ("assistant", "b"), ("user", "c"))


@pytest.mark.parametrize(
    ("first", "marked"),
    [
        ({"role": "user", "content": "a"}, "[%s] a"),
        ({"role": "user", "content": "a", "name": "ann"}, "[%s] a"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, PICTURE]}, [{"type": "text", "text": "[%s] a"}, PICTURE]),
        ({"role": "user", "content": [PICTURE]}, [{"type": "text", "text": "[%s] "}, PICTURE]),
        ({"role": "user", "content": []}, [{"type": "text", "text": "[%s] "}]),
        ({"role": "assistant", "content": None, "tool_calls": CALLS}, "[%s] "),
        ({"role": "assistant", "tool_calls": CALLS}, "[%s] "),
    ],
)
def test_a_cold_prompt_begins_with_its_nonce_whatever_its_first_content_is(
    tmp_path: Path, first: dict[str, object], marked: object
) -> None:
    path = tmp_path / "mine.jsonl"
    found = sent({"messages": [first, {"role": "user", "content": "b"}]}, path, cache="cold")["messages"]
    (prompt,) = measure.prompts_of(str(path), Measure(), block=0, count=1)
    expected = json.loads(json.dumps(marked) % measure.nonce(prompt.prompt_id, "s"))
    assert found == [{**first, "content": expected}, {"role": "user", "content": "b"}]
    text = sent({"messages": [first]}, path, cache="cold", endpoint="completions")["prompt"]
    assert isinstance(text, str)
    assert re.match(r"\[[a-z]{8}\] a?$", text)


def test_what_is_recorded_beside_the_text_is_part_of_the_digest(tmp_path: Path) -> None:
    digests = set()
    for name in ("1", "2"):
        path = tmp_path / f"{name}.jsonl"
        path.write_text(json.dumps({"messages": [{"role": "tool", "content": "r", "tool_call_id": name}]}))
        digests.add(measure.digest(Measure(workloads=(str(path),))))
    assert len(digests) == 2


def test_blocks_of_a_file_do_not_overlap_until_it_is_used_up() -> None:
    source = promptfile.parse("mine.jsonl", "\n".join(json.dumps({"prompt": f"P{n}"}) for n in range(12)))
    blocks = [workload.from_file(source, seed=1, block=b, count=4, max_tokens=8) for b in range(3)]
    assert sorted(p.messages[0][1] for block in blocks for p in block) == sorted(f"P{n}" for n in range(12))
    again = workload.from_file(source, seed=1, block=3, count=4, max_tokens=8)
    assert {p.messages for p in again} == {p.messages for p in blocks[0]}
    assert {p.prompt_id for p in again}.isdisjoint(p.prompt_id for p in blocks[0])
    with pytest.raises(BadWorkload, match="too few"):
        workload.from_file(source, seed=1, block=3, count=4, max_tokens=8, repeat=False)


def sessions(*lengths: int) -> promptfile.PromptFile:
    return promptfile.parse(
        "s.jsonl", "\n".join(json.dumps({"prompt": f"{s}.{t}", "session": s}) for s, length in enumerate(lengths) for t in range(length))
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=9).map(lambda lengths: sessions(*lengths)), st.integers(1, 8))
def test_no_prompt_of_a_file_stands_in_two_blocks(source: promptfile.PromptFile, count: int) -> None:
    seen: list[tuple[tuple[str, str], ...]] = []
    for block in itertools.count():
        try:
            prompts = workload.from_file(source, seed=1, block=block, count=count, max_tokens=8, repeat=False)
        except BadWorkload:
            break
        assert len(prompts) == count
        assert {prompt.after for prompt in prompts} <= {"", *(prompt.prompt_id for prompt in prompts)}
        seen.extend(prompt.messages for prompt in prompts)
    assert len(set(seen)) == len(seen)


def test_a_session_that_does_not_fit_its_block_ends_there() -> None:
    source = sessions(3, 3, 3, 3)
    blocks = [workload.from_file(source, seed=1, block=block, count=4, max_tokens=8, repeat=False) for block in range(2)]
    assert [[prompt.messages[0][1][2:] for prompt in block] for block in blocks] == [["0", "1", "2", "0"]] * 2
    with pytest.raises(BadWorkload, match="too few for block 2 of 4"):
        workload.from_file(source, seed=1, block=2, count=4, max_tokens=8, repeat=False)


def test_a_far_block_of_a_file_is_found_at_once() -> None:
    """The warm-up's block, which stands a million blocks behind those that are measured, begins where going there one by one would lead."""
    source = sessions(1, 2, 3)
    lengths = {"0": 1, "1": 2, "2": 3}
    order = [p.messages[0][1][0] for p in workload.from_file(source, seed=1, block=0, count=6, max_tokens=8) if p.messages[0][1][2:] == "0"]
    skip, at = 1000 * 7, 0
    while skip > 0:
        skip -= lengths[order[at % 3]]
        at += 1
    first = workload.from_file(source, seed=1, block=1000, count=7, max_tokens=8)[0]
    assert (first.prompt_id, first.messages[0][1]) == (f"{first.prompt_id.split('-')[0]}-1-1000-{at}.0", f"{order[at % 3]}.0")
    start = time.monotonic()
    workload.from_file(source, seed=1, block=10**12, count=64, max_tokens=8)
    assert time.monotonic() - start < 1.0


def test_sessions_follow_the_recorded_answers() -> None:
    talk = {"conversations": [{"from": f, "value": v} for f, v in (("human", "a"), ("gpt", "b"), ("human", "c"), ("gpt", "d"))]}
    prompts = workload.from_file(promptfile.parse("s.json", json.dumps([talk])), seed=1, block=0, count=2, max_tokens=8)
    assert prompts[1].messages == (("user", "a"), ("assistant", "b"), ("user", "c"))
    assert (prompts[0].after, prompts[1].after) == ("", prompts[0].prompt_id)


def test_recorded_times_count_from_the_first() -> None:
    lines = [{"prompt": "a", "at_s": 100.0}, {"prompt": "b", "timestamp": 100500}, {"prompt": "c", "at_s": 102, "session": 1}]
    lines.append({"prompt": "d", "session": 1, "delay_s": 2})
    source = promptfile.parse("r.jsonl", "\n".join(map(json.dumps, lines)))
    prompts = workload.from_file(source, seed=1, block=0, count=4, max_tokens=8)
    assert [p.due_s for p in prompts] == [0.0, 0.5, 2.0, None]
    assert (prompts[3].after, prompts[3].delay_s) == (prompts[2].prompt_id, 2.0)


def test_a_timed_file_is_one_block_at_its_own_times(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"P{n}", "at_s": 50 + 10 * n, "delay_s": 1}) for n in range(7)))
    level = Level(workload=str(path), concurrency=2)
    for rate in (None, 9.0):
        assert measure.block_size(msgspec.structs.replace(level, rate_rps=rate), Measure()) == 7
    first, other = (measure.prompts_of(str(path), Measure(), block=block, count=7) for block in (0, 3))
    assert [prompt.due_s for prompt in first] == [prompt.due_s for prompt in other] == [10.0 * n for n in range(7)]
    assert [prompt.messages for prompt in first] == [prompt.messages for prompt in other]
    assert {prompt.prompt_id for prompt in first}.isdisjoint(prompt.prompt_id for prompt in other)
    warm_up = measure.warm_up_prompts(level, Measure(warmup_requests=5))
    assert [(prompt.due_s, prompt.delay_s) for prompt in warm_up] == [(None, 0.0)] * 10
    once = Measure(cache="production")
    measure.check_prompts([level], once, blocks=1)
    with pytest.raises(BadWorkload, match="one block, there is no block 1"):
        measure.check_prompts([level], once, blocks=2)


def test_later_turns_of_a_session_keep_their_times() -> None:
    lines = [{"prompt": f"P{n}", "session": n % 2, "at_s": 10.0 + n, "delay_s": n // 2} for n in range(4)]
    source = promptfile.parse("r.jsonl", "\n".join(map(json.dumps, lines)))
    prompts = workload.from_file(source, seed=1, block=0, count=4, max_tokens=8)
    assert [(p.messages[0][1], p.due_s, p.delay_s) for p in prompts] == [("P0", 0, 0), ("P2", 2, 1), ("P1", 1, 0), ("P3", 3, 1)]
    assert [p.after for p in prompts] == ["", prompts[0].prompt_id, "", prompts[2].prompt_id]


def test_a_time_within_a_session_makes_no_timed_file() -> None:
    """The answer before says when such a request is sent."""
    lines = [{"prompt": "a", "session": 1}, {"prompt": "b", "session": 1, "at_s": 5}]
    source = promptfile.parse("r.jsonl", "\n".join(map(json.dumps, lines)))
    assert not source.timed
    assert [prompt.due_s for prompt in workload.from_file(source, seed=1, block=0, count=2, max_tokens=8)] == [None, None]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no prompt"),
        ('{"prompt": "a"}\n{"prompt"', "line 2 is no JSON"),
        ("[1]", "entry 1 is no JSON object"),
        ('{"question": "a"}', "its keys: question"),
        ('{"messages": [{"role": "user"}]}', "message without text"),
        ("[{", "JSON array"),
        ("[" * 100_000, "begins like a JSON array but is none"),
        ('{"prompt": ' * 100_000, "line 1 is no JSON"),
        ('{"messages": []}', "neither messages"),
        ('{"prompt": "a", "at_s": "1.5"}', "entry 1 has at_s '1.5'"),
        ('{"prompt": "a"}\n{"prompt": "b", "at_s": NaN}', "entry 2 has at_s nan"),
        ('{"prompt": "a", "delay_s": true}', "entry 1 has delay_s True"),
        ('{"prompt": "a", "delay_s": -5}', "entry 1 has delay_s -5"),
        ('{"prompt": "a\\ud83d"}', "entry 1 has half of a surrogate pair"),
        ('{"messages": [{"role": "user", "content": "a\\ude00"}]}', "entry 1 has half of a surrogate pair"),
        ('{"prompt": "a", "tools": [{"name": "\\ud83d"}]}', "entry 1 has half of a surrogate pair"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(text: str, says: str) -> None:
    with pytest.raises(BadWorkload, match=says):
        promptfile.parse("mine.jsonl", text)


def test_what_looks_wrong_and_is_not_is_read() -> None:
    lines = [
        '{"prompt": "\\ud83d\\ude00", "at_s": null, "delay_s": 0}',
        '{"messages": [{"role": "user", "content": [{"text": null}, {"text": "a"}]}]}',
    ]
    sessions = promptfile.parse("mine.jsonl", "\n".join(lines)).sessions
    assert [turn.messages[0][1] for (turn,) in sessions] == ["\U0001f600", "a"]


def test_sharegpt_is_read_as_it_is_published() -> None:
    talks = [
        [],
        [("gpt", "a")],
        [("human", "b"), ("bing", "c"), ("user", "d"), ("chatgpt", "e")],
        [("system", "f"), ("human", "g"), ("bard", "h")],
    ]
    entries = [{"id": str(n), "conversations": [{"from": who, "value": said} for who, said in talk]} for n, talk in enumerate(talks)]
    entries.append({"conversation": [{"content": "i"}, {"content": "j"}]})  # sglang.bench_serving reads either key
    sessions = promptfile.parse("sharegpt.json", json.dumps(entries)).sessions
    assert [[turn.messages for turn in session] for session in sessions] == [
        [(("user", "b"),), (("user", "b"), ("assistant", "c"), ("user", "d"))],
        [(("system", "f"), ("user", "g"))],
        [(("user", "i"),)],
    ]
    with pytest.raises(BadWorkload, match="holds no prompt"):
        promptfile.parse("sharegpt.json", json.dumps(entries[:2]))


def test_random_tokens_are_refused_unless_forced(tmp_path: Path) -> None:
    pieces = (Path(__file__).parent / "data" / "workload" / "pieces.txt").read_text().split("\n")

    def draw(n: int) -> str:
        return pieces[int.from_bytes(hashlib.blake2b(str(n).encode(), digest_size=4).digest(), "little") % len(pieces)]

    lines = [json.dumps({"prompt": "".join(draw(100 * line + n) for n in range(100))}) for line in range(20)]
    path = tmp_path / "random.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(BadWorkload, match="random tokens"):
        measure.prompts_of(str(path), Measure(), block=0, count=2)
    assert len(measure.prompts_of(f"!{path}", Measure(), block=0, count=2)) == 2


@pytest.mark.parametrize("name", workload.BUILT_IN)
def test_real_text_is_not_taken_for_random(name: str) -> None:
    texts = [content for prompt in workload.blocks(name, seed=1, block=0, count=64, max_tokens=8) for _, content in prompt.messages]
    assert not promptfile.looks_random(texts)


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = promptfile.parse

    def counting(name: str, text: str, *, force: bool) -> promptfile.PromptFile:
        parsed.append(text)
        return parse(name, text, force=force)

    monkeypatch.setattr(promptfile, "parse", counting)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.jsonl"
    for text in ('{"prompt": "a"}', '{"prompt": "bb"}'):
        path.write_text(text)
        for name in (str(path), "./mine.jsonl"):
            for block in range(3):
                measure.prompts_of(name, Measure(), block=block, count=1)
    assert parsed == ['{"prompt": "a"}', '{"prompt": "bb"}']


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadWorkload, match="cannot be read"):
        measure.prompts_of(str(tmp_path / "none.jsonl"), Measure(), block=0, count=1)


def test_slugs() -> None:
    assert workload.slug(Level(workload="chat", concurrency=4)) == "chat-c=4"
    assert workload.slug(Level(workload="/a/b.jsonl", concurrency=0, rate_rps=2.5)) == "b.jsonl-2.5-per-s"
