"""llama.cpp's ``llama-server``: its flags, its log, what it reports.

Flags and defaults are those of build 11549 (the *current* generation: ``--spec-type`` decides, ``-md`` alone only loads the
draft).  The *old* generation (``-md`` speculates by itself, depth in ``--draft-max``) is read and written in its own
spelling; the two refuse each other's flags, so they are never mixed.

What ``off`` writes: every speculative flag goes, ``-md`` included, because the server loads a draft model that it never
uses (measured 285 instead of 154 MB) and doubles the KV cache for it.  ``--spec-draft-n-max 0`` is not off: it still
drafts.  A command that is off as found stays as it is, byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ..errors import CannotRewrite, ConfigError, NothingToTune, UnknownKnob
from ..records import OFF, Acceptance, Candidate, Capacity, LaunchFile, Record, Reported, RequestResult
from . import Axis, Footprint, Loading, Parsed, Underway
from .prometheus import underway

DRAFT_TYPES = ("draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark")
"""Methods that need a second model (``-md``)."""
NGRAM_TYPES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
TYPES = (*DRAFT_TYPES, "draft-mtp", *NGRAM_TYPES, "ngram-mod", "ngram-cache")
DRAFT_DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)
NGRAM_CACHE_DEPTH = 8
"""Fixed in the source of build 11434."""


class _Flag(Record, frozen=True):
    """A flag the adapter knows: its spellings (the first is written when the flag is new) and what it belongs to."""

    spellings: tuple[str, ...]
    family: str = ""
    """``start`` or ``draft`` or the n-gram method; empty = not speculative."""
    value: bool = True


def _ngram_flags(kind: str) -> dict[str, _Flag]:
    return {
        f"{kind}.{name}": _Flag(spellings=(f"--spec-{kind}-{name.replace('_', '-')}",), family=kind)
        for name in ("size_n", "size_m", "min_hits")
    }


def _draft_flags(**spellings: str) -> dict[str, _Flag]:
    return {name: _Flag(spellings=tuple(text.split()), family="draft") for name, text in spellings.items()}


FLAGS: dict[str, _Flag] = {
    "spec_type": _Flag(spellings=("--spec-type",), family="start"),
    "spec_default": _Flag(spellings=("--spec-default",), family="start", value=False),
    **_draft_flags(
        draft_model="--spec-draft-model -md --model-draft",
        draft_hf="--spec-draft-hf -hfd -hfrd --hf-repo-draft",
        n_max="--spec-draft-n-max",
        n_min="--spec-draft-n-min",
        p_min="--spec-draft-p-min --draft-p-min",
        p_split="--spec-draft-p-split --draft-p-split",
        draft_cache_type_k="--spec-draft-type-k -ctkd --cache-type-k-draft",
        draft_cache_type_v="--spec-draft-type-v -ctvd --cache-type-v-draft",
        draft_threads="--spec-draft-threads -td --threads-draft",
        draft_threads_batch="--spec-draft-threads-batch -tbd --threads-batch-draft",
        draft_cpu_mask="--spec-draft-cpu-mask -Cd --cpu-mask-draft",
        draft_cpu_range="--spec-draft-cpu-range -Crd --cpu-range-draft",
        draft_cpu_strict="--spec-draft-cpu-strict --cpu-strict-draft",
        draft_prio="--spec-draft-prio --prio-draft",
        draft_poll="--spec-draft-poll --poll-draft",
        draft_override_tensor="--spec-draft-override-tensor -otd --override-tensor-draft",
        draft_n_cpu_moe="--spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft",
        draft_device="--spec-draft-device -devd --device-draft",
        draft_gpu_layers="--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft",
        draft_ctx_size="-cd --ctx-size-draft",
        old_n_max="--draft-max --draft --draft-n",
        old_n_min="--draft-min --draft-n-min",
    ),
    "draft_cpu_moe": _Flag(spellings=("--spec-draft-cpu-moe", "-cmoed", "--cpu-moe-draft"), family="draft", value=False),
    "draft_backend_sampling": _Flag(
        spellings=("--spec-draft-backend-sampling", "--no-spec-draft-backend-sampling"), family="draft", value=False
    ),
    **_ngram_flags("ngram-simple"),
    **_ngram_flags("ngram-map-k"),
    **_ngram_flags("ngram-map-k4v"),
    "ngram-mod.n_match": _Flag(spellings=("--spec-ngram-mod-n-match",), family="ngram-mod"),
    "ngram-mod.n_min": _Flag(spellings=("--spec-ngram-mod-n-min",), family="ngram-mod"),
    "ngram-mod.n_max": _Flag(spellings=("--spec-ngram-mod-n-max",), family="ngram-mod"),
    "removed_ngram": _Flag(spellings=("--spec-ngram-size-n", "--spec-ngram-size-m", "--spec-ngram-min-hits")),
    "synth": _Flag(spellings=("--spec-synth-len", "--spec-synth-rates")),
    "model": _Flag(spellings=("--model", "-m")),
    "hf_repo": _Flag(spellings=("--hf-repo", "-hf", "-hfr")),
    "model_url": _Flag(spellings=("--model-url", "-mu")),
    "docker_repo": _Flag(spellings=("--docker-repo", "-dr")),
    "models_dir": _Flag(spellings=("--models-dir",)),
    "models_preset": _Flag(spellings=("--models-preset",)),
    "host": _Flag(spellings=("--host",)),
    "port": _Flag(spellings=("--port",)),
    "reuse_port": _Flag(spellings=("--reuse-port",), value=False),
    "api_key": _Flag(spellings=("--api-key",)),
    "api_key_file": _Flag(spellings=("--api-key-file",)),
    "alias": _Flag(spellings=("--alias", "-a")),
    "parallel": _Flag(spellings=("--parallel", "-np")),
    "ctx_size": _Flag(spellings=("--ctx-size", "-c")),
    "threads": _Flag(spellings=("--threads", "-t")),
    "threads_batch": _Flag(spellings=("--threads-batch", "-tb")),
    "batch": _Flag(spellings=("--batch-size", "-b")),
    "ubatch": _Flag(spellings=("--ubatch-size", "-ub")),
    "gpu_layers": _Flag(spellings=("--gpu-layers", "-ngl", "--n-gpu-layers")),
    "cache_type_k": _Flag(spellings=("--cache-type-k", "-ctk")),
    "cache_type_v": _Flag(spellings=("--cache-type-v", "-ctv")),
    "cache_ram": _Flag(spellings=("--cache-ram", "-cram")),
    "verbosity": _Flag(spellings=("--verbosity", "-lv", "--log-verbosity")),
    "metrics": _Flag(spellings=("--metrics",), value=False),
    "no_slots": _Flag(spellings=("--no-slots",), value=False),
    "kv_unified": _Flag(spellings=("--kv-unified", "-kvu"), value=False),
    "sleep_idle": _Flag(spellings=("--sleep-idle-seconds",)),
}
"""Every flag the adapter reads, by canonical name (the keys of :attr:`Parsed.knobs`)."""

TUNABLE = ("parallel", "ctx_size", "threads", "threads_batch", "batch", "ubatch", "gpu_layers", "cache_type_k", "cache_type_v", "cache_ram")
"""Knobs outside speculation that a candidate's settings may pin."""

_SPELLED = {spelling: name for name, flag in FLAGS.items() for spelling in flag.spellings}
_PRESETS = re.compile(r"--fim-qwen-\w+b-spec|--gpt-oss-\w+-default|--vision-\w[\w-]*-default|--fim-[\w.-]+-default")
_EXECUTABLE = re.compile(r"llama-server(?:[-_.][\w.-]+)?$")
_WRAPPERS = {"env", "nice", "ionice", "numactl", "taskset", "chrt", "stdbuf", "setsid", "exec", "time", "prlimit", "nohup", "systemd-run"}
_PYTHON = re.compile(r"python(?:\d+(?:\.\d+)?)?$")


class _Found(Record, frozen=True):
    """A flag on the command line. ``width`` tokens from ``index``; ``joined`` when written ``--flag=value``."""

    name: str
    spelling: str
    index: int
    width: int
    value: str
    joined: bool = False


class LlamaCpp:
    """Adapter of ``llama-server`` (and of leadline's launcher, which takes the same flags).

    ``generation`` is ``"current"``, ``"old"`` or ``None`` when only the command line tells; see :func:`generation_of`.
    """

    name = "llamacpp"
    health_path = "/health"
    info_paths: tuple[str, ...] = ("/props", "/slots")
    metrics_path = "/metrics"
    load_paths: tuple[str, ...] = ("/slots",)
    gauges = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
    metrics_flag = "--metrics"
    stop_first = "TERM"
    # With a request in flight a TERM is never answered (a second one is): two seconds, then KILL.
    stop_grace_s = 2.0

    def __init__(self, generation: str | None = None) -> None:
        self.generation = generation

    def parse(self, argv: Sequence[str]) -> Parsed | None:
        start = _start(argv)
        if start is None:
            return None
        hidden = [word.split("=")[0] for word in argv[:start] if word.startswith("LLAMA_ARG_SPEC") and "=" in word]
        if hidden:
            raise CannotRewrite(where="the command", why=f"speculation is set in the environment ({hidden[0]})", fix="write it as a flag")
        flags = _scan(argv, start)
        values = {flag.name: flag.value for flag in flags}
        _refuse(argv, start, flags)
        old = self._old(flags)
        candidate = _candidate(values, old)
        return Parsed(
            engine=self.name,
            argv=tuple(argv),
            start=start,
            candidate=candidate,
            host=values.get("host", "127.0.0.1"),
            port=_number(values, "port", 8080),
            model=next((values[key] for key in ("model", "hf_repo", "model_url", "docker_repo") if key in values), ""),
            knobs=tuple(sorted(values.items())),
            notes=tuple(_notes(values, flags, candidate, old)),
        )

    def _old(self, flags: Sequence[_Found]) -> bool:
        """Whether the old generation's spelling is in use. Raises CannotRewrite for a flag that this build removed."""
        removed = {"old_n_max": "--spec-draft-n-max", "old_n_min": "--spec-draft-n-min"}
        olds = [flag for flag in flags if flag.name in removed]
        news = [flag for flag in flags if flag.spelling.startswith("--spec-")]
        if olds and (news or self.generation == "current"):
            flag = olds[0]
            why = f"{flag.spelling} has been removed from builds that know {news[0].spelling if news else '--spec-type'}"
            raise CannotRewrite(where="the command", why=why, fix=f"write {removed[flag.name]} {flag.value} and --spec-type draft-simple")
        return bool(olds) or self.generation == "old"

    def render(self, parsed: Parsed, candidate: Candidate) -> tuple[str, ...]:
        if candidate == parsed.candidate:
            return parsed.argv
        flags = _scan(parsed.argv, parsed.start)
        old = self._old(flags)
        wanted = _wanted(candidate, old)
        types = () if candidate.off else tuple(candidate.algorithm.split(","))
        if any(kind in DRAFT_TYPES for kind in types) and not _has_draft({flag.name for flag in flags}):
            raise NothingToTune(why=f"{candidate.label} needs a draft model", fix="add -md PATH to the command")
        families = {_family(kind) for kind in types}
        return _edited(parsed.argv, flags, wanted, families)

    def files(self, candidate: Candidate) -> tuple[LaunchFile, ...]:
        return ()

    def axes(self, parsed: Parsed, asked: Sequence[str] = ()) -> tuple[Axis, ...]:
        knobs = dict(parsed.knobs)
        old = self._old(_scan(parsed.argv, parsed.start))
        draft = _has_draft(knobs)
        unknown = [kind for kind in asked if kind not in TYPES]
        if unknown:
            raise UnknownKnob(engine="llama.cpp", knob=unknown[0], known=", ".join(TYPES))
        if not asked:
            found = parsed.candidate.algorithm
            drafting = found if found in (*DRAFT_TYPES, "draft-mtp") else "draft-simple"
            asked = [*([drafting] if draft or drafting == "draft-mtp" else []), *([] if old else ["ngram-simple"])]
            if found in (*NGRAM_TYPES, "ngram-mod") and found not in asked:
                asked.append(found)
        found_axes: list[Axis] = []
        for kind in asked:
            if kind in DRAFT_TYPES and not draft:
                raise NothingToTune(why=f"{kind} needs a draft model and the command names none", fix="add -md PATH to the command")
            if old and kind != "draft-simple":
                raise NothingToTune(
                    why=f"builds with --draft-max are tuned by draft-simple only, not {kind}", fix="use a newer llama-server"
                )
            found_axes.extend(_axes_of(kind))
        return tuple(found_axes)

    def loading(self, log_tail: str) -> Loading:
        current = Loading(phase="starting")
        for line in log_tail.splitlines():
            for pattern, phase in _PHASES:
                if pattern in line:
                    current = Loading(phase=phase, line=line.strip())
        return current

    def reported(self, parsed: Parsed, infos: Mapping[str, object]) -> Reported:
        props = infos.get("/props")
        slots = infos.get("/slots")
        facts: list[tuple[str, str]] = []
        version = model = None
        n_ctx = total = None
        if isinstance(props, dict):
            version = _text(props.get("build_info"))
            model = _text(props.get("model_path"))
            total = _whole(props.get("total_slots"))
            settings = props.get("default_generation_settings")
            n_ctx = _whole(settings.get("n_ctx")) if isinstance(settings, dict) else None
        algorithm = None
        if isinstance(slots, list) and slots:
            rows = [slot for slot in slots if isinstance(slot, dict)]
            total = total or len(rows)
            speculative = [slot.get("speculative") for slot in rows if isinstance(slot.get("speculative"), bool)]
            if speculative:
                facts.append(("speculative", str(any(speculative)).lower()))
            algorithm = OFF if speculative and not any(speculative) else _slot_algorithm(rows)
        if isinstance(props, dict) and isinstance(props.get("endpoint_metrics"), bool):
            facts.append(("endpoint_metrics", str(props["endpoint_metrics"]).lower()))
        return Reported(
            engine=self.name,
            version=version,
            model=model,
            algorithm=algorithm,
            max_running_requests=total,
            context_tokens=n_ctx,
            facts=tuple(sorted(facts)),
        )

    def mismatch(self, candidate: Candidate, reported: Reported, log: str) -> str:
        speculative = dict(reported.facts).get("speculative")
        if candidate.off:
            if speculative == "true":
                return "the server speculates (/slots says so) although speculation was to be off"
            return ""
        refused = next((text for pattern, text in _SILENT if pattern in log), "")
        if speculative == "false" or (speculative is None and refused):
            return f"the server runs without speculation: {refused or 'its /slots say speculative = false'}"
        types = candidate.algorithm.split(",")
        if reported.algorithm not in (None, OFF) and set((reported.algorithm or "").split(",")) != set(types):
            return f"the server speculates by {reported.algorithm}, not by {candidate.algorithm}"
        if any(kind in NGRAM_TYPES for kind in types):
            size_n = int(dict(candidate.settings).get("ngram_n", "12"))
            if candidate.depth < size_n:
                return f"{candidate.algorithm} with size-m {candidate.depth} below size-n {size_n} never drafts"
        return ""

    def capacity(self, reported: Reported, log: str) -> Capacity:
        slots, per_slot = reported.max_running_requests, reported.context_tokens
        total = slots * per_slot if slots and per_slot else None
        line = _last(r"n_slots = (\d+), n_ctx_slot = (\d+), kv_unified = '(true|false)'", log)
        if line is not None:
            slots, per_slot = int(line.group(1)), int(line.group(2))
            total = per_slot if line.group(3) == "true" else slots * per_slot
        return Capacity(max_total_num_tokens=total, max_running_requests=slots, context_tokens=per_slot)

    def round_facts(self, log: str) -> tuple[tuple[str, str], ...]:
        return ()

    def footprint(self, log: str) -> Footprint:
        """Nothing: sizes are printed at ``-lv 4`` only. The model files tell."""
        return Footprint()

    def weight_files(self, argv: Sequence[str]) -> tuple[str, ...]:
        """The GGUF files of model and draft; a file in parts with all of them. What comes from a repository has no path here.

        A draft that is named while nothing drafts is loaded, but no round reads it: it is left out.
        """
        found = self.parse(argv)
        values = dict(found.knobs) if found is not None else {}
        if found is None or "model" not in values or "draft_hf" in values:
            return ()
        drafts = any(kind in DRAFT_TYPES for kind in found.candidate.algorithm.split(","))
        names = ("model", "draft_model") if drafts else ("model",)
        return tuple(part for name in names if name in values for part in _parts(values[name]))

    def underway(self, metrics: str, infos: Mapping[str, object]) -> Underway | None:
        """From the gauges, else from the slots at work, which do not tell of requests that wait for one."""
        slots = infos.get("/slots")
        busy = [slot.get("is_processing") for slot in slots if isinstance(slot, dict)] if isinstance(slots, list) else []
        return underway(metrics, *self.gauges) or (Underway(running=sum(one is True for one in busy), waiting=0) if busy else None)

    def acceptance(self, candidate: Candidate, before: str, after: str, requests: Sequence[RequestResult], log: str) -> Acceptance | None:
        """From ``/metrics`` (exact, per position), else the log's line per request, else the requests' own timings.

        Rounds are those in which something was drafted; a step without a draft (n-gram without a hit) is none.
        """
        if candidate.off:
            return None
        return _from_metrics(before, after) or _from_log(log) or _from_requests(requests)


def generation_of(help_text: str) -> str | None:
    """``"current"`` or ``"old"`` from the text of ``llama-server --help``; ``None`` when it shows neither."""
    if "--spec-draft-n-max" in help_text:
        return "current"
    return "old" if re.search(r"--draft-max\b", help_text) else None


# -- the command line ----------------------------------------------------------------------------------------------


def _start(argv: Sequence[str]) -> int | None:
    """Index of the first argument of the server; ``None`` when this is another program."""
    for index, word in enumerate(argv):
        base = word.rsplit("/", 1)[-1].removesuffix(".exe")
        first = argv[0].rsplit("/", 1)[-1]
        if _EXECUTABLE.fullmatch(base) and (index == 0 or first in _WRAPPERS or _PYTHON.fullmatch(first)):
            return index + 1
        if _PYTHON.fullmatch(base) and _module(argv, index) is not None:
            return _module(argv, index)
        if index == 0 and base not in _WRAPPERS and not _PYTHON.fullmatch(base):
            return None
    return None


def _module(argv: Sequence[str], index: int) -> int | None:
    for at in range(index + 1, len(argv) - 1):
        if argv[at] == "-m":
            return at + 2 if argv[at + 1] == "leadline.launcher" else None
        if not argv[at].startswith("-"):
            return None
    return None


def _scan(argv: Sequence[str], start: int) -> tuple[_Found, ...]:
    """Every known flag, in order. Raises ConfigError for a flag whose value is missing."""
    found: list[_Found] = []
    index = start
    while index < len(argv):
        word = argv[index]
        head, equals, tail = word.partition("=")
        # llama.cpp reads `_` in a long flag as `-`
        name = _SPELLED.get(_dashed(word)) or (_SPELLED.get(_dashed(head)) if equals and word.startswith("--") else None)
        if name is None:
            index += 1
            continue
        joined = _dashed(word) not in _SPELLED
        width = 1 if joined or not FLAGS[name].value else 2
        if index + width > len(argv):
            raise ConfigError(place=f"the command, at {word}", what="the flag has no value", fix=f"write {word} VALUE")
        value = tail if joined else (argv[index + 1] if width == 2 else "true")
        found.append(_Found(name=name, spelling=_dashed(head if joined else word), index=index, width=width, value=value, joined=joined))
        index += width
    return tuple(found)


def _dashed(word: str) -> str:
    return word.replace("_", "-") if word.startswith("--") else word


def _refuse(argv: Sequence[str], start: int, flags: Sequence[_Found]) -> None:
    names = {flag.name: flag for flag in flags}
    preset = next((word for word in argv[start:] if _PRESETS.fullmatch(word)), None)
    if preset:
        raise CannotRewrite(where="the command", why=f"{preset} sets model and speculation together", fix="write the flags it stands for")
    router = names.get("models_dir") or names.get("models_preset")
    if router:
        raise CannotRewrite(
            where="the command", why=f"{router.spelling} makes it a router of several servers", fix="name one model with -m"
        )
    if names.get("host") and names["host"].value.endswith(".sock"):
        raise CannotRewrite(where="the command", why="it listens on a UNIX socket", fix="give --host 127.0.0.1 and --port")
    if "removed_ngram" in names:
        flag = names["removed_ngram"]
        new = flag.spelling.replace("--spec-ngram-", "--spec-ngram-simple-")
        raise CannotRewrite(
            where="the command",
            why=f"{flag.spelling} was removed from llama-server",
            fix=f"write {new} {flag.value} (or of another method)",
        )


def _number(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        spelling = FLAGS[name].spellings[0]
        raise ConfigError(place=f"the command, at {spelling}", what=f"{text!r} is not a number", fix=f"write {spelling} N") from None


def _parts(path: str) -> tuple[str, ...]:
    """
    >>> _parts("m-00001-of-00002.gguf")
    ('m-00001-of-00002.gguf', 'm-00002-of-00002.gguf')
    """
    found = re.fullmatch(r"(.*-)00001-of-(\d{5})\.gguf", path)
    if found is None:
        return (path,)
    return tuple(f"{found.group(1)}{number:05d}-of-{found.group(2)}.gguf" for number in range(1, int(found.group(2)) + 1))


def _has_draft(names: Mapping[str, str] | set[str]) -> bool:
    return "draft_model" in names or "draft_hf" in names


def _candidate(values: Mapping[str, str], old: bool) -> Candidate:
    """What the arguments ask for. ``--spec-default`` stands for ngram-mod with 24/48/64 in build 11549."""
    if old:
        depth = max(1, _number(values, "old_n_max", 16))
        return Candidate(algorithm="draft-simple", depth=depth) if _has_draft(values) else Candidate(algorithm=OFF, depth=0)
    text = values.get("spec_type", "ngram-mod" if "spec_default" in values else "none")
    types = [kind for kind in text.split(",") if kind and kind != "none"]
    unknown = [kind for kind in types if kind not in TYPES]
    if unknown:
        raise ConfigError(
            place="the command, at --spec-type", what=f"unknown method {unknown[0]!r}", fix=f"known: none, {', '.join(TYPES)}"
        )
    if not types:
        return Candidate(algorithm=OFF, depth=0)
    kind = types[0]
    settings: tuple[tuple[str, str], ...] = ()
    if kind in NGRAM_TYPES or kind == "ngram-mod":
        settings = (("ngram_n", str(_number(values, *_lookup(kind)))),)
    # 0 still drafts (measured), so the smallest depth there is stands for it
    return Candidate(algorithm=",".join(types), depth=max(1, _number(values, *_depth(kind))), settings=settings)


def _depth(kind: str) -> tuple[str, int]:
    """Canonical flag of the depth of a method, and its default."""
    if kind in NGRAM_TYPES:
        return f"{kind}.size_m", 48
    if kind == "ngram-mod":
        return "ngram-mod.n_max", 64
    return ("ngram_cache", NGRAM_CACHE_DEPTH) if kind == "ngram-cache" else ("n_max", 3)


def _lookup(kind: str) -> tuple[str, int]:
    return ("ngram-mod.n_match", 24) if kind == "ngram-mod" else (f"{kind}.size_n", 12)


def _family(kind: str) -> str:
    return "draft" if kind.startswith("draft-") else kind


def _wanted(candidate: Candidate, old: bool) -> dict[str, str]:
    """Canonical flag -> value that the candidate needs. Raises UnknownKnob, CannotRewrite."""
    wanted: dict[str, str] = {}
    kind = candidate.algorithm.split(",")[0]
    named: dict[str, str] = {name: name for name in TUNABLE}
    if not candidate.off:
        if old and candidate.algorithm != "draft-simple":
            raise CannotRewrite(where="the command", why=f"builds with --draft-max have no {candidate.algorithm}", fix="use a newer server")
        if any(each not in TYPES for each in candidate.algorithm.split(",")):
            raise UnknownKnob(engine="llama.cpp", knob=candidate.algorithm, known=", ".join(TYPES))
        if not old:
            wanted["spec_type"] = candidate.algorithm
        if kind != "ngram-cache":
            wanted["old_n_max" if old else _depth(kind)[0]] = str(candidate.depth)
        elif candidate.depth != NGRAM_CACHE_DEPTH:
            raise UnknownKnob(engine="llama.cpp", knob=f"ngram-cache {candidate.depth}", known=f"ngram-cache {NGRAM_CACHE_DEPTH} (fixed)")
        if kind in NGRAM_TYPES:
            named |= {"ngram_n": f"{kind}.size_n", "ngram_min_hits": f"{kind}.min_hits"}
        elif kind == "ngram-mod":
            named |= {"ngram_n": "ngram-mod.n_match", "ngram_min": "ngram-mod.n_min"}
        elif kind.startswith("draft-"):
            named |= {"n_min": "old_n_min" if old else "n_min", "p_min": "p_min"}
    for name, value in candidate.settings:
        if name not in named:
            raise UnknownKnob(engine="llama.cpp", knob=name, known=", ".join(sorted(named)))
        wanted[named[name]] = value
    return wanted


def _edited(argv: tuple[str, ...], flags: Sequence[_Found], wanted: Mapping[str, str], families: set[str]) -> tuple[str, ...]:
    """``argv`` with the wanted values in place, flags of other methods gone, and what is new after the last of them."""
    at = {flag.index: flag for flag in flags}
    missing = dict(wanted)
    out: list[str] = []
    insert: int | None = None
    index = 0
    while index < len(argv):
        flag = at.get(index)
        if flag is None:
            out.append(argv[index])
            index += 1
            continue
        family = FLAGS[flag.name].family
        words = list(argv[index : index + flag.width])
        if flag.name in wanted:
            value = wanted[flag.name]
            words = [f"{words[0].partition('=')[0]}={value}"] if flag.joined else [words[0], value]
            missing.pop(flag.name, None)
            out.extend(words)
        elif not family or family in families:
            out.extend(words)
        if family:
            insert = len(out)
        index += flag.width
    new = [word for name, value in missing.items() for word in (FLAGS[name].spellings[0], value)]
    place = len(out) if insert is None else insert
    return (*out[:place], *new, *out[place:])


def _axes_of(kind: str) -> Iterator[Axis]:
    if kind.startswith("draft-"):
        yield Axis(algorithm=kind, depths=DRAFT_DEPTHS, why="a draft model proposes, the target verifies")
    elif kind in NGRAM_TYPES:
        # size-m below size-n never drafts; a short lookup finds more, the build's default 12/48 is the control
        why = "repeats what already stands in the context; costs no second model"
        yield Axis(algorithm=kind, depths=(8, 16), settings=(("ngram_n", "4"),), why=why, modelled=False)
        yield Axis(algorithm=kind, depths=(48,), settings=(("ngram_n", "12"),), why="the build's default sizes", modelled=False)
    elif kind == "ngram-mod":
        why = "a hash table shared by all requests; it memorises earlier answers, so only fresh prompts measure it"
        yield Axis(algorithm=kind, depths=(16, 32), settings=(("ngram_min", "8"), ("ngram_n", "12")), why=why, modelled=False)
        yield Axis(algorithm=kind, depths=(64,), settings=(("ngram_n", "24"),), why="the build's default sizes", modelled=False)
    else:
        yield Axis(algorithm=kind, depths=(NGRAM_CACHE_DEPTH,), why="depth fixed by the engine", modelled=False)


def _notes(values: Mapping[str, str], flags: Sequence[_Found], candidate: Candidate, old: bool) -> Iterator[str]:
    draft = _has_draft(values)
    types = candidate.algorithm.split(",")
    if candidate.off and draft:
        yield "a draft model is given without --spec-type: it is loaded and never used; if the verdict is off, leave out -md to free its memory"
    if any(kind in DRAFT_TYPES for kind in types) and not draft:
        yield f"--spec-type {candidate.algorithm} without -md does not speculate: the server only logs an error and serves on; add -md PATH"
    if not old and values.get("n_max") == "0" and any(kind.startswith("draft-") for kind in types):
        yield "--spec-draft-n-max 0 is not off (the server still drafts); leave out --spec-type to switch speculation off"
    for kind in types:
        if kind in NGRAM_TYPES:
            size_n, size_m = _number(values, *_lookup(kind)), _number(values, *_depth(kind))
            if size_m < size_n:
                yield f"{kind} with size-m {size_m} below size-n {size_n} never drafts; raise --spec-{kind}-size-m to {size_n} or more"
    if "ngram-mod" in types:
        yield "ngram-mod keeps one table for all requests: repeated prompts look better than they are"
    if "synth" in values:
        yield "--spec-synth-* makes acceptance up: figures with it say nothing about real traffic; remove it"
    if "metrics" not in values:
        yield "without --metrics acceptance per position cannot be read; add --metrics"
    if "no_slots" in values:
        yield "--no-slots hides whether the server speculates; remove it so that leadline can check"
    if values.get("cache_ram") is None:
        yield "--cache-ram is not set: the server keeps up to 8192 MiB of prompts in host memory; set it to what the host can spare (0 = none)"
    if "reuse_port" in values:
        yield "--reuse-port lets two servers answer on one port; remove it while measuring"
    if "sleep_idle" in values and values["sleep_idle"] != "-1":
        yield "--sleep-idle-seconds unloads the model between measurements; remove it while measuring"
    if old:
        yield "old flags (--draft-max): newer builds refuse them and want --spec-draft-n-max with --spec-type"
    for flag in flags:
        if flag.joined:
            yield f"llama-server refuses {flag.spelling}=VALUE; write {flag.spelling} VALUE"


# -- what it prints and reports -------------------------------------------------------------------------------------

_PHASES = (
    ("initializing ...", "starting"),
    ("loading model", "loading weights"),
    ("llama_model_loader", "loading weights"),
    ("loading draft model", "loading weights"),
    ("threadpool init", "allocating"),
    ("llama_kv_cache", "allocating"),
    ("initializing, n_slots", "allocating"),
    ("warming up the model", "warming up"),
    ("model loaded", "serving"),
    ("listening on http", "serving"),
)

_SILENT = (
    ("draft-simple requires a draft context", "draft-simple was asked for without a draft model (-md)"),
    ("vocabs are not compatible", "the vocabularies of target and draft are not compatible; use a draft of the same model family"),
    ("draft model vocab type must match", "the vocabularies of target and draft are not compatible; use a draft of the same model family"),
    ("failed to initialize speculative decoding context", "its speculative context could not be made (see the log)"),
)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _slot_algorithm(slots: Sequence[Mapping[str, object]]) -> str | None:
    """The method a slot used for its last task: ``speculative.types``, e.g. ``none,draft-simple``; ``None`` before any."""
    for slot in slots:
        params = slot.get("params")
        types = params.get("speculative.types") if isinstance(params, dict) else None
        if isinstance(types, str):
            named = [kind for kind in types.split(",") if kind and kind != "none"]
            if named:
                return ",".join(named)
    return None


def _last(pattern: str, text: str) -> re.Match[str] | None:
    found = None
    for found in re.finditer(pattern, text):  # noqa: B007
        pass
    return found


def _counters(text: str) -> dict[str, int]:
    pattern = re.compile(r'^llamacpp:spec_decode_(num_\w+?)_total(?:\{position="(\d+)"\})? (\S+)$', re.MULTILINE)
    return {name + (f"/{position}" if position else ""): int(float(value)) for name, position, value in pattern.findall(text)}


def _from_metrics(before: str, after: str) -> Acceptance | None:
    old, new = _counters(before), _counters(after)
    # a counter that ran backwards belongs to another launch
    delta = {name: value - old.get(name, 0) for name, value in new.items()}
    rounds = delta.get("num_drafts", 0)
    if rounds <= 0 or min(delta.values()) < 0:
        return None
    positions = sorted((int(name.split("/")[1]), value) for name, value in delta.items() if "/" in name)
    per_position = [value for _, value in positions]
    while per_position and per_position[-1] == 0:
        per_position.pop()
    return Acceptance(
        rounds=rounds,
        drafted=delta.get("num_draft_tokens"),
        accepted=delta.get("num_accepted_tokens"),
        per_position=tuple(per_position),
        source="metrics",
    )


def _from_log(log: str) -> Acceptance | None:
    """Sums of the line that the server prints per request; rounds follow from its mean length (1 + accepted / rounds)."""
    pattern = r"draft acceptance = \S+ \(\s*(\d+) accepted /\s*(\d+) generated\), mean len =\s*([\d.]+)"
    lines = [(int(a), int(g), float(mean)) for a, g, mean in re.findall(pattern, log)]
    if not lines:
        return None
    # with nothing accepted the mean length is 1 whatever the number of rounds
    known = all(mean > 1 for accepted, _, mean in lines)
    rounds = sum(round(accepted / (mean - 1)) for accepted, _, mean in lines) if known else None
    return Acceptance(rounds=rounds, drafted=sum(g for _, g, _ in lines), accepted=sum(a for a, _, _ in lines), source="log")


def _from_requests(requests: Sequence[RequestResult]) -> Acceptance | None:
    """Sums of ``draft_n`` and ``draft_n_accepted``; the mean length counts every step, also those without a draft."""
    drafted = [r for r in requests if r.drafted is not None and r.accepted is not None]
    if not drafted:
        return None
    accepted = sum(r.accepted or 0 for r in drafted)
    tokens = sum(r.tokens_out for r in drafted)
    length = tokens / (tokens - accepted) if tokens > accepted else None
    return Acceptance(drafted=sum(r.drafted or 0 for r in drafted), accepted=accepted, length=length, source="timings")
