"""Find the engine's own arguments inside a unit's ``ExecStart``, change them in place, write them back in the same style. Pure.

Understood, alone and inside each other where that makes sense::

    /opt/venv/bin/vllm serve MODEL …                     plain, quoted and continued lines
    /usr/bin/env A=1 numactl -N 0 vllm serve MODEL …     launchers that run the rest of their line
    /bin/bash -c 'cd /srv && exec vllm serve MODEL …'    shell text
    /opt/run.sh --model …                                a script whose last command is  exec … "$@"
    /usr/bin/docker run … IMAGE ARGS                     a container

A change is a replacement of words at their place in the source; all other text stays byte for byte.  What is not certain
(variables whose value is not known, shell text beyond simple commands, two engines in one line) is refused with what to
change in the unit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from . import shelltext, splice, unitfile
from .containers import container_image, entrypoints, published_ports
from .engines import recognise
from .errors import CannotRewrite, NotAnEngine
from .records import Record
from .splice import Slot, env_fix
from .unitfile import Word

IsEngine = Callable[[Sequence[str]], bool]


class Surroundings(Record, frozen=True):
    """What is known of the host, passed in as data."""

    unit: str = "service"
    env: tuple[tuple[str, str], ...] = ()
    """Variables that are certain (``Environment=``, readable ``EnvironmentFile=``)."""
    env_complete: bool = False
    """Whether a variable that is not in ``env`` is certainly unset."""
    env_gap: str = ""
    """Why it is not complete."""
    scripts: tuple[tuple[str, str], ...] = ()
    """Path -> text of the scripts that could be read."""
    specifiers: tuple[tuple[str, str], ...] = ()
    """Specifiers that depend on the host, where they are known."""


def surroundings(
    unit: str,
    environment: Mapping[str, str],
    files: Sequence[tuple[str, bool, str | None]] = (),
    *,
    passed: bool = False,
    scripts: Sequence[tuple[str, str]] = (),
) -> Surroundings:
    """What is certain about a unit's variables.

    ``environment`` is its ``Environment=``, ``files`` its ``EnvironmentFile=`` as (path, may be missing, text or ``None``), in order;
    ``passed`` tells that ``PassEnvironment=`` or ``UnsetEnvironment=`` is in play.
    """
    env, gap = dict(environment), "PassEnvironment or UnsetEnvironment is set" if passed else ""
    for path, may_miss, text in files:
        values = unitfile.parse_environment_file(text) if text is not None else None
        if values is None and not (text is None and may_miss):
            gap = f"{path} could not be read" if text is None else f"{path} uses quoting that is not understood"
        env.update(values or {})
    return Surroundings(unit=unit, env=tuple(env.items()), env_complete=not gap, env_gap=gap, scripts=tuple(scripts))


class ExecStart(Record, frozen=True):
    """An ExecStart and the engine's arguments in it."""

    source: str
    """As written in the unit, continuation lines included."""
    argv: tuple[str, ...]
    """The engine's own arguments, from the word that starts it."""
    style: str
    """``plain``, ``launcher``, ``shell``, ``script`` or ``container``."""
    slots: tuple[Slot, ...]
    text: str
    """The text that ``slots`` index: ``source`` itself, or the shell text inside one of its words."""
    where: str
    inner: Word | None = None
    """The word of ``source`` that holds ``text`` when a shell is in between."""
    variables: bool = True
    """False behind the ``:`` prefix: systemd leaves ``$`` alone."""
    shown: tuple[str, ...] = ()
    """What ``systemctl show`` must print as the argument vector (variables not expanded)."""
    notes: tuple[str, ...] = ()

    def replace(self, argv: Sequence[str]) -> str:
        """The ExecStart text whose engine arguments are ``argv``. Raises :class:`~leadline.errors.CannotRewrite`."""
        changes = splice.edits(self.slots, self.argv, argv, self.text, self._writer(), self.where)
        if self.inner is None:
            return splice.apply(self.source, changes)
        word, source = self.inner, self.source
        outer = []
        for start, end, new in changes:
            mark = word.quote_at(start if start == end else start + 1)
            a, b = word.place(start), (word.chars[end - 1].end if end > start else word.place(start))
            outer.append((a, b, unitfile.embed(new, mark, variables=self.variables)))
        return splice.apply(source, outer)

    def _writer(self) -> Callable[[str, Slot | None], str]:
        if self.inner is not None:
            # inside a single-quoted systemd word a single quote reads as the end to a person, though not to systemd
            avoid = '"' if self.inner.quote_at(1) == "'" else ""
            return lambda value, like: shelltext.quote(value, (like.quote if like else "") or ("" if _bare(value) else avoid))
        return lambda value, like: _like(value, like, self.variables)


def _bare(value: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z0-9_@%+=:,./-]+", value))


def _like(value: str, like: Slot | None, variables: bool) -> str:
    """``value`` as a word, quoted as the word it replaces was: ``--flag='…'`` keeps its bare head."""
    if like is not None and like.quote:
        head = re.match(r"[A-Za-z0-9_.-]+=(?=['\"])", like.raw)
        if head and value.startswith(head.group(0)):
            return head.group(0) + unitfile.quote(value[head.end() :], prefer=like.quote, variables=variables)
        if not head:
            return unitfile.quote(value, prefer=like.quote, variables=variables)
    return unitfile.quote(value, variables=variables)


# -- finding -----------------------------------------------------------------------------------------------------------


def is_engine(argv: Sequence[str]) -> bool:
    """Whether one of the adapters knows this argument vector."""
    try:
        recognise(argv)
    except NotAnEngine:
        return False
    return True


def parse(source: str, around: Surroundings, *, engine: IsEngine = is_engine) -> ExecStart:
    """Read one ``ExecStart=`` value. Raises CannotRewrite, NotAnEngine."""
    where = f"ExecStart of {around.unit}"
    found = unitfile.words(source, where)
    if not found:
        raise NotAnEngine(command="(empty ExecStart)", hint=f"{around.unit} starts nothing")
    prefix = re.match(r"[@\-:+!|]*", found[0].value)
    marks = prefix.group(0) if prefix else ""
    if "@" in marks:
        raise CannotRewrite(where=where, why="the @ prefix gives the program another name than its path", fix="remove the @ from ExecStart")
    if not found[0].value[len(marks) :].strip():
        raise NotAnEngine(command=source[:200], hint="ExecStart names no program")
    return _Reader(source, around, engine, where, found, len(marks), ":" not in marks).read()


def _basename(path: str) -> str:
    return path.rpartition("/")[2]


_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})
_CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
_LAUNCHERS = frozenset(
    [
        "env",
        "numactl",
        "nice",
        "ionice",
        "taskset",
        "chrt",
        "setsid",
        "nohup",
        "stdbuf",
        "prlimit",
        "setpriv",
        "time",
        "timeout",
        "catchsegv",
        "nsys",
        "uv",
        "poetry",
        "pipenv",
        "pdm",
        "hatch",
        "conda",
        "micromamba",
        "mamba",
        "tini",
        "dumb-init",
        "gosu",
        "runuser",
        "sudo",
    ]
)


class _Reader:
    """One ExecStart on its way to being understood."""

    def __init__(self, source: str, around: Surroundings, engine: IsEngine, where: str, found: list[Word], skip: int, variables: bool):
        self.source, self.around, self.engine, self.where = source, around, engine, where
        self.words, self.skip, self.variables = found, skip, variables
        known = {**unitfile.specifiers(around.unit), **dict(around.specifiers)}
        self.loaded = [unitfile.expand_specifiers(word.value, known) for word in found]
        self.slots = tuple(self._slot(index) for index in range(len(found)))
        self.args = tuple(value for slot in self.slots for value in slot.values)

    def _slot(self, index: int) -> Slot:
        word = self.words[index]
        start = word.start + self.skip if index == 0 else word.start
        raw = self.source[start : word.end]
        value, fixed = self.loaded[index], ""
        if value is None:
            value, fixed = word.value, "it holds a specifier that depends on the host"
        values: tuple[str, ...] = (value[self.skip :],) if index == 0 else (value,)
        if index > 0 and self.variables and "$" in value:
            values, fixed = self._expanded(value, values, fixed)
        mark = next((char.quote for char in word.chars if char.quote), "")
        return Slot(values=values, start=start, end=word.end, fixed=fixed, quote=mark, raw=raw)

    def _expanded(self, value: str, values: tuple[str, ...], fixed: str) -> tuple[tuple[str, ...], str]:
        env = {name: held for name, held in self.around.env if name not in unitfile.SET_BY_SYSTEMD}
        names = re.findall(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)", value)
        if self.around.env_complete:
            env.update({name: "" for name in names if name not in env and name not in unitfile.SET_BY_SYSTEMD})
        expanded = unitfile.expand_variables(value, env)
        if expanded is not None:
            return tuple(expanded), fixed
        return values, f"the value of ${' $'.join(names)} is not certain" + (f" ({self.around.env_gap})" if self.around.env_gap else "")

    # -- the cases, most specific first --------------------------------------------------------------------------------

    def read(self) -> ExecStart:
        program = _basename(self.args[0])
        if program in _CONTAINERS:
            return self._container(0)
        if self.engine(self.args):
            return self._ends(0, "plain")
        if program in _SHELLS:
            return self._shell(0)
        script = dict(self.around.scripts).get(self.slots[0].values[0])
        if script is not None and script.startswith("#!"):
            return self._script(script)
        inner = self._first_engine(1)
        if program in _LAUNCHERS and inner is not None:
            kind, index = inner
            if kind == "shell":
                return self._shell(index)
            return self._container(index) if kind == "container" else self._ends(index, "launcher")
        if inner is not None:
            raise CannotRewrite(
                where=self.where,
                why=f"{self.args[0]} stands before the engine and what it does with its arguments is not known",
                fix=f'let ExecStart start the engine directly, or make {self.args[0]} a readable script that ends in: exec "$@"',
            )
        raise self._no_engine()

    def _no_engine(self) -> NotAnEngine:
        return NotAnEngine(command=" ".join(self.args)[:200], hint=f"it stands in {self.where}")

    def _first_engine(self, start: int) -> tuple[str, int] | None:
        for index in range(start, len(self.args)):
            program = _basename(self.args[index])
            if program in _SHELLS and any(re.fullmatch(r"-[a-z]*c", arg) for arg in self.args[index + 1 : index + 4]):
                return "shell", index
            if program in _CONTAINERS and "run" in self.args[index + 1 : index + 3]:
                return "container", index
            if self.engine(self.args[index:]):
                return "plain", index
        return None

    def _ends(self, index: int, style: str, *, lead: tuple[str, ...] = (), notes: tuple[str, ...] = (), why_lead: str = "") -> ExecStart:
        """The engine's arguments are ``lead`` (which stands elsewhere) and everything from argument ``index`` on."""
        first, count = 0, 0
        while first < len(self.slots) and count < index:
            count += len(self.slots[first].values)
            first += 1
        if count != index:
            raise CannotRewrite(
                where=self.where,
                why=f"the engine starts in the middle of {self.slots[first - 1].raw}",
                fix="write the command out in ExecStart",
            )
        slots = self.slots[first:]
        unsure = next((slot for slot in slots if slot.fixed.startswith("the value of")), None)
        if unsure is not None:
            raise CannotRewrite(where=self.where, why=f"{unsure.fixed}, so {unsure.raw} could hold any argument", fix=env_fix(unsure.raw))
        ahead = tuple(Slot(values=(value,), start=-1, end=slots[0].start if slots else len(self.source), fixed=why_lead) for value in lead)
        argv = (*lead, *(value for slot in slots for value in slot.values))
        return ExecStart(
            source=self.source,
            argv=argv,
            style=style,
            slots=(*ahead, *slots),
            text=self.source,
            where=self.where,
            variables=self.variables,
            shown=self._shown(),
            notes=notes,
        )

    def _shown(self) -> tuple[str, ...]:
        values = [loaded if loaded is not None else "\0" for loaded in self.loaded]
        return (values[0][self.skip :], *values[1:])

    def _shell(self, index: int) -> ExecStart:
        option = next(
            (i for i in range(index + 1, len(self.args)) if not re.fullmatch(r"-[a-z]*[abd-z]|--[a-z]+", self.args[i])), len(self.args)
        )
        if option + 1 >= len(self.args) or not re.fullmatch(r"-[a-z]*c", self.args[option]):
            script = self.args[option] if option < len(self.args) else ""
            raise CannotRewrite(
                where=self.where,
                why=f"a shell runs the script {script or '(none)'}",
                fix='start the engine in ExecStart, or the script itself (ending in: exec "$@")',
            )
        if any(len(slot.values) != 1 for slot in self.slots[: option + 2]):
            raise CannotRewrite(where=self.where, why="a variable stands before the shell text", fix="write it out in ExecStart")
        word, text = self.words[option + 1], self.words[option + 1].value
        commands = shelltext.commands(self._as_the_shell_sees(text), self.where)
        hits = [found for command in commands if (found := self._in_command(command)) is not None]
        if not hits:
            raise NotAnEngine(command=text[:200], hint=f"it stands in the shell text of {self.where}")
        if len(hits) > 1:
            raise CannotRewrite(
                where=self.where, why="its shell text starts more than one engine", fix="give each engine a unit of its own"
            )
        if any(command.keyword for command in commands):
            raise CannotRewrite(
                where=self.where, why="its shell text holds a condition or a loop", fix="let ExecStart start the engine directly"
            )
        command, words = hits[0][0], tuple(self._resolved(word, text) for word in hits[0][1])
        if command.operator == "&":
            raise CannotRewrite(
                where=self.where, why="the engine runs in the background (&)", fix="remove the &; systemd follows the main process"
            )
        slots = tuple(
            Slot(
                values=(w.value,),
                start=w.start,
                end=w.end,
                fixed="" if w.certain else f"it holds {w.why}",
                quote=text[w.start] if text[w.start] in "'\"" else "",
                raw=text[w.start : w.end],
            )
            for w in words
        )
        open_word = next(
            (slot for slot in slots if slot.fixed and not re.match(r"--?[A-Za-z][\w-]*=", slot.raw) and not self._behind_flag(slot, slots)),
            None,
        )
        if open_word is not None:
            raise CannotRewrite(
                where=self.where,
                why=f"{open_word.raw} could hold any argument: {open_word.fixed}",
                fix="write its value out, or set it with Environment= in the unit",
            )
        notes = (
            ()
            if any(w.value == "exec" for w in command.words) or (command.operator in ("", "\n") and len(commands) == 1)
            else ("the shell stays between systemd and the engine: write `exec` before the engine's command so that signals reach it",)
        )
        return ExecStart(
            source=self.source,
            argv=tuple(value for slot in slots for value in slot.values),
            style="shell",
            slots=slots,
            text=text,
            where=self.where,
            inner=word,
            variables=self.variables,
            shown=self._shown(),
            notes=notes,
        )

    def _resolved(self, word: shelltext.ShellWord, text: str) -> shelltext.ShellWord:
        """A word whose only open parts are variables of the unit's own environment, with their values.

        Outside of double quotes a value must be one plain word; a variable that the shell text itself sets stays open.
        """
        raw = text[word.start : word.end]
        quoted = raw.startswith('"') and raw.endswith('"') and '"' not in raw[1:-1]
        body = raw[1:-1] if quoted else raw
        names = re.findall(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?", body)
        env = {name: value for name, value in self.around.env if name not in unitfile.SET_BY_SYSTEMD and not re.search(rf"\b{name}=", text)}
        if word.certain or word.why != "a shell variable" or any(name not in env for name in names):
            return word
        if body.count("$") != len(names) or re.search(r"[\\`'\"]|\$\{\w+[^\w}]", body):
            return word
        if not quoted and not all(re.fullmatch(r"[A-Za-z0-9_@%+=:,./-]+", env[name]) for name in names):
            return word
        value = re.sub(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?", lambda hit: env[hit.group(1)], body)
        return shelltext.ShellWord(value=value, start=word.start, end=word.end)

    def _as_the_shell_sees(self, text: str) -> str:
        """The shell text with systemd's doubled ``%`` and ``$`` shown at their own length, so that places stay equal."""
        shell = text.replace("%%", "%\0") if "%%" in text else text
        if re.search(r"%[^\0]", shell):
            raise CannotRewrite(
                where=self.where,
                why="a specifier (%) stands inside the shell text",
                fix="write its value out, or write %% for a percent sign",
            )
        if "$$" in shell or "%\0" in shell:
            raise CannotRewrite(
                where=self.where, why="a doubled $$ or %% stands inside the shell text", fix="start the engine without a shell"
            )
        return shell

    @staticmethod
    def _behind_flag(slot: Slot, slots: tuple[Slot, ...]) -> bool:
        """A quoted variable right behind ``--flag`` is that flag's value: exactly one argument, whatever it holds."""
        at = slots.index(slot)
        return slot.quote == '"' and "$@" not in slot.raw and at > 0 and bool(re.fullmatch(r"--?[A-Za-z][\w.-]*", slots[at - 1].values[0]))

    def _in_command(self, command: shelltext.ShellCommand) -> tuple[shelltext.ShellCommand, tuple[shelltext.ShellWord, ...]] | None:
        words = list(command.words)
        while words and shelltext.ASSIGNMENT.match(words[0].value):
            words.pop(0)
        while words and (words[0].value in ("exec", "command", "builtin") or words[0].value in shelltext.KEYWORDS):
            words.pop(0)
        values = [word.value for word in words]
        if values and self.engine(values):
            return command, tuple(words)
        if values and _basename(values[0]) in _LAUNCHERS:
            for index in range(1, len(values)):
                if self.engine(values[index:]):
                    return command, tuple(words[index:])
        return None

    def _script(self, script: str) -> ExecStart:
        path = self.args[0]
        last = shelltext_tail(script)
        if last is None:
            if self.engine(self._script_words(script)):
                raise CannotRewrite(
                    where=self.where,
                    why=f"the engine's arguments stand in {path}, which a drop-in cannot change",
                    fix=f'move them to ExecStart and end {path} with: exec "$@"',
                )
            inner = self._first_engine(1)
            if inner is None:
                raise self._no_engine()
            raise CannotRewrite(
                where=self.where, why=f'{path} does not end in exec … "$@"', fix=f'end {path} with: exec "$@" (all arguments, quoted)'
            )
        if not last:
            inner = self._first_engine(1)
            if inner is None:
                raise self._no_engine()
            kind, index = inner
            if kind == "plain":
                return self._ends(index, "script")
            return self._shell(index) if kind == "shell" else self._container(index)
        argv = (*last, *self.args[1:])
        if not self.engine(argv):
            raise NotAnEngine(command=" ".join(argv)[:200], hint=f"that is what {path} executes")
        return self._ends(1, "script", lead=last, why_lead=f"it stands in {path}, which a drop-in cannot change")

    def _script_words(self, script: str) -> list[str]:
        line = script.replace("\\\n", " ").rstrip().rpartition("\n")[2]
        return [word for word in re.sub(r"^\s*(exec\s+)?", "", line).split() if word != '"$@"']

    def _container(self, index: int) -> ExecStart:
        image = container_image(self.args, index, self.where)
        options, name = self.args[index:image], self.args[image]
        for host, inside in published_ports(options):
            if host != inside:
                raise CannotRewrite(
                    where=self.where,
                    why=f"the container's port {inside} is published as {host}, so the port in the engine's arguments is not the one to ask",
                    fix=f"let both be equal: -p {host}:{host} and --port {host}, or use --network host",
                )
        if any(re.fullmatch(r"-[a-z]*d[a-z]*|--detach(=true)?", option) for option in options):
            raise CannotRewrite(
                where=self.where,
                why="the container is detached (-d), so systemd does not follow the engine",
                fix="remove -d from ExecStart",
            )
        rest = self.args[image + 1 :]
        notes = ("the engine runs in a container: its processes are not in the unit's own cgroup",)
        if rest and self.engine(rest):
            return self._ends(image + 1, "container", notes=notes)
        if rest and _basename(rest[0]) in _SHELLS:
            raise CannotRewrite(
                where=self.where, why="a shell runs inside the container", fix="give the engine's command directly after the image"
            )
        for lead in entrypoints(name, options):
            if self.engine((*lead, *rest)):
                return self._ends(image + 1, "container", lead=lead, why_lead="it is the image's entrypoint", notes=notes)
        raise NotAnEngine(command=" ".join(self.args[image:])[:200], hint=f"that is what the container of {self.where} runs")


def shelltext_tail(script: str) -> tuple[str, ...] | None:
    """The words before ``"$@"`` in a script's last command ``exec … "$@"``; ``None`` when it does not end so.

    ``()`` means that the script runs its arguments as they are.
    """
    try:
        commands = shelltext.commands(script.partition("\n")[2], "script")
    except CannotRewrite:  # something earlier in the script is beyond us; the last line may still be plain
        line = script.replace("\\\n", "  ").rstrip().rpartition("\n")[2]
        try:
            commands = shelltext.commands(line.strip(), "script")
        except CannotRewrite:
            return None
    words = commands[-1].words if commands else ()
    if len(words) < 2 or words[0].value != "exec" or words[-1].value != "$@" or words[-1].end - words[-1].start != 4:
        return None
    middle = words[1:-1]
    return tuple(word.value for word in middle) if all(word.certain for word in middle) else None
