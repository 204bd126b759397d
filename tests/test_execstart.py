"""ExecStart: 45 units read, changed and written back; quoting as a property; refusals with their reasons."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from leadline import containers, execstart, shelltext, unitfile
from leadline.errors import CannotRewrite, LeadlineError, NotAnEngine
from leadline.execstart import ExecStart, Surroundings, parse, surroundings

UNITS = Path(__file__).parent / "data" / "units"
CASES: dict[str, dict[str, Any]] = json.loads((UNITS / "cases.json").read_text())


def engine(argv: Sequence[str]) -> bool:
    """The shapes of the commands leadline knows, without any adapter."""
    words = list(argv)
    name = words[0].rpartition("/")[2] if words else ""
    if name in ("vllm", "sglang"):
        return words[1:2] == ["serve"]
    modules = ("sglang.launch_server", "vllm.entrypoints.openai.api_server")
    return name == "llama-server" or (name.startswith("python") and words[1:2] == ["-m"] and words[2:3] != [] and words[2] in modules)


def read(name: str) -> tuple[str, ExecStart]:
    text = (UNITS / f"{name}.service").read_text()
    case = CASES[name]
    files: dict[str, str] = case.get("files", {})
    environment: dict[str, str] = {}
    for found in unitfile.effective(text, "Environment"):
        environment.update(unitfile.parse_environment(found.value))
    env_files = [
        (a.value.lstrip("-"), a.value.startswith("-"), files.get(a.value.lstrip("-"))) for a in unitfile.effective(text, "EnvironmentFile")
    ]
    scripts = [(path, held) for path, held in files.items() if held.startswith("#!")]
    around = surroundings(f"{name[3:]}.service", environment, env_files, scripts=scripts)
    source = unitfile.effective(text, "ExecStart")[-1].value
    return source, parse(source, around, engine=engine)


def test_there_are_at_least_forty_units_and_each_has_a_case() -> None:
    names = {path.name.removesuffix(".service") for path in UNITS.glob("*.service")}
    assert names == set(CASES)
    assert len(names) >= 40


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "argv" in case])
def test_unit_is_read_changed_and_written_back(name: str) -> None:
    case = CASES[name]
    source, found = read(name)
    assert list(found.argv) == case["argv"]
    assert found.style == case["style"]
    assert found.replace(found.argv) == source, "unchanged arguments leave the text as it was"

    old, new = case["change"]
    changed = tuple(new if arg == old else arg for arg in found.argv)
    assert changed != found.argv
    text = found.replace(changed)
    around = Surroundings(unit=f"{name[3:]}.service", env=(("X", ""),), env_complete=True, scripts=tuple(case.get("files", {}).items()))
    if "$" in text:
        around = _same_surroundings(name)
    again = parse(text, around, engine=engine)
    assert again.argv == changed
    if "${" not in source and "$" + "SPEC" not in source and '"$' not in source:
        assert again.replace(found.argv) == source, "the change undone gives the unit's own text, byte for byte"
    assert _words_changed(source, text) <= 2, "nothing but the changed argument differs"


def _same_surroundings(name: str) -> Surroundings:
    text, files = (UNITS / f"{name}.service").read_text(), CASES[name].get("files", {})
    environment: dict[str, str] = {}
    for found in unitfile.effective(text, "Environment"):
        environment.update(unitfile.parse_environment(found.value))
    env_files = [(a.value, False, files.get(a.value)) for a in unitfile.effective(text, "EnvironmentFile")]
    return surroundings(f"{name[3:]}.service", environment, env_files, scripts=[(p, t) for p, t in files.items() if t.startswith("#!")])


def _words_changed(before: str, after: str) -> int:
    """Blank-separated pieces of ``before`` that are not in ``after``."""
    left = after.split()
    gone = 0
    for piece in before.split():
        if piece in left:
            left.remove(piece)
        else:
            gone += 1
    return gone


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "refused" in case])
def test_refusal_names_its_reason_and_a_remedy(name: str) -> None:
    with pytest.raises(LeadlineError) as caught:
        read(name)
    assert caught.value.id == CASES[name]["error"]
    assert CASES[name]["refused"] in caught.value.message
    assert len(caught.value.next) > 20


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "fixed" in case])
def test_what_stands_elsewhere_cannot_be_changed(name: str) -> None:
    old, new, why = CASES[name]["fixed"]
    _, found = read(name)
    with pytest.raises(CannotRewrite, match=why):
        found.replace([new if arg == old else arg for arg in found.argv])


def plain(source: str, **known: Any) -> ExecStart:
    return parse(source, Surroundings(unit="llm.service", env_complete=True, **known), engine=engine)


def test_an_added_flag_follows_the_style_of_the_lines() -> None:
    found = plain("/x/llama-server \\\n  -m m.gguf \\\n  --port 8080")
    assert (
        found.replace([*found.argv, "--spec-type", "ngram-mod"])
        == "/x/llama-server \\\n  -m m.gguf \\\n  --port 8080 \\\n  --spec-type ngram-mod"
    )


def test_removed_flags_leave_no_gap() -> None:
    found = plain("/x/llama-server -m m.gguf --spec-type 'ngram mod' --port 8080")
    assert found.replace(["/x/llama-server", "-m", "m.gguf", "--port", "8080"]) == "/x/llama-server -m m.gguf --port 8080"
    assert found.replace(["/x/llama-server"]) == "/x/llama-server"


def test_a_flag_put_first_stands_behind_the_program() -> None:
    found = plain("/x/llama-server -m m.gguf")
    assert found.replace(["/x/llama-server", "-v", "-m", "m.gguf"]) == "/x/llama-server -v -m m.gguf"


def test_variables_that_certainly_are_unset_vanish() -> None:
    found = plain("/x/llama-server -m m.gguf $MORE ${NONE} --port 1")
    assert found.argv == ("/x/llama-server", "-m", "m.gguf", "", "--port", "1")
    changed = found.replace(["/x/llama-server", "-m", "m.gguf", "", "--port", "2"])
    assert changed == "/x/llama-server -m m.gguf $MORE ${NONE} --port 2"


@pytest.mark.parametrize("variable", ["$HOME", "${INVOCATION_ID}", "$PATH"])
def test_variables_set_by_systemd_are_never_certain(variable: str) -> None:
    with pytest.raises(CannotRewrite, match="not certain"):
        plain(f"/x/llama-server {variable}")


def test_a_nul_is_refused() -> None:
    with pytest.raises(CannotRewrite, match="NUL"):
        plain("/x/llama-server -m m").replace(["/x/llama-server", "-m", "a\0b"])


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("", "empty"),
        ("-", "names no program"),
        ("/x/llama-server -m $A --port 1", "not certain"),
        ("/bin/bash /opt/start-llm.sh", "runs the script"),
        ("/bin/bash -c 'exec llama-server -m %i'", "specifier"),
        ("/bin/bash -c 'exec llama-server -m $$HOME'", "doubled"),
        ("/bin/bash -c 'llama-server -m m &'", "background"),
        ("/bin/bash -c 'cat <<X | llama-server\nX'", "here-document"),
        ("/bin/bash -c '(cd /x; llama-server -m m)'", "subshell"),
        ("/bin/bash -c 'llama-server -m $(pick)'", "could hold any argument|subshell"),
        ("/bin/bash -c 'llama-server -m *.gguf'", "pattern"),
        ("/bin/bash -c 'llama-server -m ~/m.gguf'", "home folder"),
        ("/bin/bash -c 'llama-server {a,b}'", "brace"),
        ("/bin/bash -c 'llama-server \"x'", "never closed"),
        ("/bin/bash -c 'echo hello'", "no inference engine"),
        ("/usr/bin/docker run --rm --gpus all", "no image"),
        ("/usr/bin/docker start llm", "does not `run`"),
        ("/usr/bin/docker run image bash -c llama-server", "inside the container"),
        ("/usr/bin/docker run alpine true", "no inference engine"),
        ("/x/llama-server ;", "several commands"),
    ],
)
def test_refused(source: str, why: str) -> None:
    with pytest.raises((CannotRewrite, NotAnEngine)) as caught:
        parse(source, Surroundings(unit="llm.service", env_gap="it is not known"), engine=engine)
    assert re.search(why, f"{caught.value.message} {caught.value.next}")


def test_container_options() -> None:
    assert containers.published_ports(["-p", "8000:8000", "--publish=127.0.0.1:1:2/tcp", "-p9:9", "-p", "7"]) == [
        ("8000", "8000"),
        ("1", "2"),
        ("9", "9"),
    ]
    assert containers.entrypoints("x", ["--entrypoint", "vllm"]) == [("vllm",)]
    assert containers.entrypoints("x", ["--entrypoint=/bin/llama-server"]) == [("/bin/llama-server",)]
    assert containers.entrypoints("ghcr.io/ggml-org/llama.cpp:server-cuda", []) == [("llama-server",)]
    assert containers.entrypoints("lmsysorg/sglang:latest", [])[0][1] == "-m"
    assert containers.container_image(["docker", "container", "run", "-it", "-v/a:/b", "-u", "0", "--", "img"], 0, "x") == 8


def test_launchers_lead_to_shells_and_containers() -> None:
    assert plain("/usr/bin/env A=1 bash -c 'exec llama-server -m m --port 1'").argv[0] == "llama-server"
    assert plain("/usr/bin/nice -n 5 docker run --net host llama.cpp:server -m m").argv == ("llama-server", "-m", "m")


def test_scripts() -> None:
    assert execstart.shelltext_tail('#!/bin/sh\nexec "$@"\n') == ()
    assert execstart.shelltext_tail('#!/bin/sh\nexec nice -n 5 "$@"\n') == ("nice", "-n", "5")
    assert execstart.shelltext_tail('#!/bin/sh\nexec "$X" "$@"\n') is None
    assert execstart.shelltext_tail("#!/bin/sh\nexec $@\n") is None
    assert execstart.shelltext_tail("#!/bin/sh\n") is None
    assert execstart.shelltext_tail('#!/bin/sh\ncat <<A\nA\nexec "$@"\n') == ()
    assert execstart.shelltext_tail("#!/bin/sh\ncat <<A\nA\nexec 'x\n") is None
    run = (("/opt/run.sh", '#!/bin/sh\nexec "$@"\n'),)
    assert plain("/opt/run.sh bash -c 'llama-server -m m'", scripts=run).style == "shell"
    assert plain("/opt/run.sh docker run llama.cpp -m m", scripts=run).style == "container"
    with pytest.raises(NotAnEngine):
        plain("/opt/run.sh true", scripts=run)
    with pytest.raises(NotAnEngine, match="true"):
        plain("/opt/run.sh x", scripts=(("/opt/run.sh", '#!/bin/sh\nexec true "$@"\n'),))
    with pytest.raises(NotAnEngine):
        plain("/opt/run.sh x", scripts=(("/opt/run.sh", "#!/bin/sh\ntrue\n"),))


def test_a_shell_that_stays_is_noted() -> None:
    assert plain("/bin/bash -c 'cd /x && llama-server -m m'").notes
    assert not plain("/bin/bash -c 'cd /x && exec llama-server -m m'").notes


# -- properties --------------------------------------------------------------------------------------------------------

HOSTILE = st.text(st.sampled_from(list("ab1-=.,/ '\"\\$%;&|`(){}<>*?[]~#!@:\n\t\r\x07é雪")), max_size=14)
BARE = plain("/x/llama-server -m m.gguf --port 8080")
CONTINUED = plain("/x/llama-server \\\n  -m 'm m.gguf' \\\n  --port=8080")
NO_VARIABLES = plain(":/x/llama-server -m m.gguf --port 8080")
SHELL = plain("/bin/sh -c 'cd / && exec llama-server -m m.gguf --port 8080'")
SHELL_DOUBLE = plain('/bin/sh -c "exec llama-server -m m.gguf --port \\"8080\\" "')


@settings(deadline=None, max_examples=300)
@given(st.lists(HOSTILE, max_size=5), st.sampled_from([BARE, CONTINUED, NO_VARIABLES]), st.integers(1, 4))
def test_any_arguments_come_back_as_they_are(extra: list[str], found: ExecStart, at: int) -> None:
    """Blanks, quotes, ``$``, ``%``, newlines, ``;``: what is written into ExecStart is read back as exactly those arguments."""
    argv = [*found.argv[:at], *extra, *found.argv[at:]]
    text = found.replace(argv)
    again = parse(text, Surroundings(unit="llm.service"), engine=engine)
    assert list(again.argv) == argv
    lines = text.split("\n")
    assert all(line.endswith("\\") for line in lines[:-1]), "no line break of ours ends the assignment"
    assert not any(line.lstrip().startswith(("#", ";", "[")) for line in lines[1:])


@pytest.fixture(scope="module")
def stub_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH on which ``llama-server`` prints its arguments, each with a NUL behind it."""
    folder = tmp_path_factory.mktemp("bin")
    stub = folder / "llama-server"
    stub.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    stub.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


@settings(deadline=None, max_examples=60)
@given(st.lists(HOSTILE, min_size=1, max_size=4), st.sampled_from([SHELL, SHELL_DOUBLE]))
def test_any_arguments_come_through_a_shell_as_they_are(stub_path: str, extra: list[str], found: ExecStart) -> None:
    """Through systemd's rules and then a real shell."""
    argv = [*found.argv, *extra]
    text = found.replace(argv)
    assert "\n" not in text
    words = unitfile.words(text, "test")
    passed = unitfile.expand_variables(unitfile.expand_specifiers(words[-1].value, {"%": "%"}) or "", {})
    assert passed is not None
    done = subprocess.run(["sh", "-c", passed[0]], capture_output=True, check=True, env={"PATH": stub_path})
    assert done.stdout.decode().split("\0")[:-1] == argv[1:]


@settings(deadline=None, max_examples=25)
@given(st.lists(HOSTILE, min_size=1, max_size=6))
def test_a_real_shell_reads_the_same_words(args: list[str]) -> None:
    """Both ways in which text of ours meets a shell: inside ``sh -c`` of a unit, and as the command that ssh carries."""
    show = ["python3", "-c", "import sys, json; print(json.dumps(sys.argv[1:]))", *args]
    for command in (
        " ".join(shelltext.quote(word) for word in show),
        " ".join(shelltext.quote(word, '"') for word in show),
        shlex.join(show),
    ):
        done = subprocess.run(["sh", "-c", command], capture_output=True, check=True)
        assert json.loads(done.stdout) == args


@settings(deadline=None, max_examples=200)
@given(HOSTILE)
def test_any_text_is_read_or_refused(text: str) -> None:
    assume("\0" not in text)
    try:
        found = plain("/x/llama-server " + text)
    except (CannotRewrite, NotAnEngine):
        return
    assert found.replace(found.argv) == found.source


@settings(deadline=None, max_examples=200)
@given(HOSTILE, st.sampled_from(["", "'", '"']), st.booleans())
def test_quote_and_words_are_inverse(value: str, prefer: str, variables: bool) -> None:
    text = unitfile.quote(value, prefer=prefer, variables=variables)
    assert "\n" not in text
    words = unitfile.words("x " + text, "test")
    assert len(words) == 2
    loaded = unitfile.expand_specifiers(words[1].value, {"%": "%"})
    assert loaded is not None
    assert (unitfile.expand_variables(loaded, {}) if variables else [loaded]) == [value]


def test_shell_words() -> None:
    text = 'A=1 cmd a\\ b "c \\" \\x \\\n`d`" # note\n2>&1 other >f <g \'x\'y\\\nz \\\n last # end'
    first, second = shelltext.commands(text, "t")
    assert [w.value for w in first.words] == ["A=1", "cmd", "a b", 'c " \\x `d`']
    assert first.words[-1].why == "a command substitution"
    assert [w.value for w in second.words] == ["other", "xyz", "last"]
    assert shelltext.commands('a "$b" $c', "t")[0].words[1].why == "a shell variable"
    with pytest.raises(CannotRewrite, match="single quote"):
        shelltext.commands("a 'b", "t")


# -- systemd's text rules ----------------------------------------------------------------------------------------------


def test_assignments_follow_sections_files_and_continuations() -> None:
    text = (
        "# /etc/a.service\n[Service]\nA=1 \\\n# c\n  2\nB =x\nnonsense\n[Unit]\nA=u\n# /run/a.d/b.conf\nA=no section\n[Service]\nA=\nA=3\\"
    )
    found = list(unitfile.assignments(text))
    assert [(a.section, a.key, a.value) for a in found][:2] == [("Service", "A", "1 \\\n  2"), ("Service", "B", "x")]
    assert found[3].section == ""
    assert [a.value for a in unitfile.effective(text, "A")] == ["3\\"]
    assert "no section" not in unitfile.without_file(text, "/run/a.d/b.conf")
    assert unitfile.without_file(text, "/run/a.d/b.conf").endswith("A=u\n")


def test_escapes() -> None:
    assert [w.value for w in unitfile.words(r"a\x41 \u00e9 \U0001F600 \101 a\sb \; '\''", "t")] == ["aA", "é", "😀", "A", "a b", ";", "'"]
    for bad in (r"\x4", r"\q", "\\", r"\9"):
        with pytest.raises(CannotRewrite):
            unitfile.words(bad, "t")
    assert unitfile.words("'a\\\n b'", "t")[0].value == "a  b"


def test_specifiers() -> None:
    known = unitfile.specifiers(r"a-b\x2dc@x-y.service")
    assert (known["n"], known["N"], known["p"], known["i"], known["I"]) == (
        r"a-b\x2dc@x-y.service",
        r"a-b\x2dc@x-y",
        r"a-b\x2dc",
        "x-y",
        "x/y",
    )
    assert (known["P"], known["j"], known["J"]) == ("a/b-c", r"b\x2dc", "b-c")
    assert unitfile.specifiers("a.service")["i"] == ""
    assert unitfile.expand_specifiers("%%%n%h", known) is None


def test_environment() -> None:
    assert unitfile.parse_environment('A=1 "B=x y" C') == {"A": "1", "B": "x y"}
    assert unitfile.parse_environment_file("# c\nA=1\n; c\nB='x y'\n\nnothing\n C = 3 \n") == {"A": "1", "B": "x y", "C": "3"}
    assert unitfile.parse_environment_file('A="a\\"b"\n') is None
    around = surroundings("u", {}, [("/a", False, 'A="\\""'), ("/b", True, None)])
    assert "quoting" in around.env_gap
    assert surroundings("u", {}, [("/b", True, None)]).env_complete
    assert not surroundings("u", {}, passed=True).env_complete
    assert unitfile.expand_variables("$A", {"A": "x 'y'"}) is None
    assert unitfile.expand_variables("p$A", {"A": "x"}) == ["p$A"]


def test_empty_words_have_places() -> None:
    word = unitfile.words("''", "t")[0]
    assert (word.value, word.quote_at(0), word.place(0)) == ("", "", 2)


def test_every_unit_text_has_one_command_word_at_least() -> None:
    for path in UNITS.glob("*.service"):
        assert re.search(r"^ExecStart=\S", path.read_text(), re.MULTILINE), path
