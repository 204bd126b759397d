"""vLLM 0.20 and later: command line, log, endpoints, counters.

The speculative setting may stand as one JSON word, as dotted members of it, or (from 0.25) partly in short flags; it is changed where
it stands.  Depth 0 cannot be expressed: speculation off means no speculative config at all.
Facts by release stand in ``vllm_facts``, log formats in ``vllm_log``, capacity in ``leadline.frontier.vllm``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ..errors import CannotRewrite, UnknownKnob
from ..records import OFF, Acceptance, Candidate, Capacity, LaunchFile, Record, Reported, RequestResult
from . import Axis, Footprint, Loading, Parsed, Underway
from . import vllm_facts as facts
from .arguments import drop_member, find, find_members, members, read, replace, without, words, write, write_member
from .prometheus import counters, underway
from .vllm_log import last_boot, loading, periods

_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")
_DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
_NGRAM_DEPTHS = (2, 3, 4, 5, 8)
_WHERE = "--speculative-config"


class VLLM:
    """The adapter of vLLM; see :class:`leadline.engines.Engine`."""

    name = "vllm"
    health_path = "/health"
    info_paths: tuple[str, ...] = ("/version", "/v1/models", "/server_info")
    metrics_path = "/metrics"
    load_paths: tuple[str, ...] = ()
    gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    metrics_flag = ""
    stop_first = "TERM"
    stop_grace_s = 60.0

    def parse(self, argv: Sequence[str]) -> Parsed | None:
        start = _start(argv)
        if start is None:
            return None
        argv = tuple(argv)
        config = speculative(argv, start)
        found, notes = _candidate(config)
        return Parsed(
            engine=self.name,
            argv=argv,
            start=start,
            candidate=found,
            host=read(argv, facts.HOST, start) or "127.0.0.1",
            port=int(read(argv, facts.PORT, start) or 8000),
            model=read(argv, facts.MODEL, start) or _positional(argv, start),
            knobs=_knobs(argv, start, config),
            notes=(*notes, *_traps(argv, start, config)),
        )

    def render(self, parsed: Parsed, candidate: Candidate) -> tuple[str, ...]:
        settings, argv, start = dict(candidate.settings), parsed.argv, parsed.start
        for name in settings:
            if name not in facts.KNOBS and name not in facts.SWITCHES and name not in facts.SPECULATIVE_KEYS:
                known = sorted((*facts.KNOBS, *facts.SWITCHES, *facts.SPECULATIVE_KEYS))
                raise UnknownKnob(engine=self.name, knob=name, known=", ".join(known))
        keys = {name: _json(value) for name, value in settings.items() if name in facts.SPECULATIVE_KEYS and name not in facts.KNOBS}
        argv = _silenced(argv, start) if candidate.off else _speculating(parsed, candidate, keys)
        for name, value in settings.items():
            if name in facts.KNOBS:
                argv = write(argv, facts.KNOBS[name], value, start)
            elif name in facts.SWITCHES:
                argv = write(argv, facts.SWITCHES[name], None, start) if value == "true" else without(argv, facts.SWITCHES[name], start)
        return argv

    def files(self, candidate: Candidate) -> tuple[LaunchFile, ...]:
        return ()

    def axes(self, parsed: Parsed, asked: Sequence[str] = ()) -> tuple[Axis, ...]:
        found = parsed.candidate
        method = facts.canonical(found.algorithm)
        axes: list[Axis] = []
        if method in facts.BLOCK:
            axes.append(
                Axis(algorithm=found.algorithm, depths=(found.depth,), why="the draft is trained for one block length", modelled=False)
            )
        elif not found.off and method not in facts.DRAFT_FREE:
            depths = tuple(sorted({*_DEPTHS, found.depth}))
            axes.append(Axis(algorithm=found.algorithm, depths=depths, why="the draft that is configured; depth is num_speculative_tokens"))
        if "mtp" in asked and found.off:
            axes.append(Axis(algorithm="mtp", depths=_DEPTHS, why="drafts with the target's own prediction layers"))
        for free in facts.DRAFT_FREE:
            if free == method or free in asked or (free == "ngram" and not asked):
                depths = tuple(sorted({*_NGRAM_DEPTHS, found.depth})) if free == method else _NGRAM_DEPTHS
                why = "needs no draft model; rounds without a match draft nothing"
                axes.append(Axis(algorithm=free, depths=depths, why=why, modelled=False))
        return tuple(axis for axis in axes if not asked or facts.canonical(axis.algorithm) in {facts.canonical(name) for name in asked})

    def loading(self, log_tail: str) -> Loading:
        return loading(log_tail)

    def reported(self, parsed: Parsed, infos: Mapping[str, object]) -> Reported:
        """From ``/version``, ``/v1/models``, ``/server_info`` (only with VLLM_SERVER_DEV_MODE=1) and the text of ``/metrics`` if passed."""
        version, models, server = infos.get("/version"), infos.get("/v1/models"), infos.get("/server_info")
        told = last_boot(str(server.get("vllm_config", ""))) if isinstance(server, Mapping) else last_boot("")
        pool = cache(str(infos.get("/metrics", "")))
        model, context = _model(models)
        limit = dict(parsed.knobs).get("max_running_requests")
        depth = told.depth if told.depth is not None else pool.depth
        return Reported(
            engine=self.name,
            version=str(version["version"]) if isinstance(version, Mapping) and "version" in version else parsed.version,
            model=model,
            algorithm=told.method or (OFF if depth == 0 else None),
            depth=depth,
            max_running_requests=int(limit) if limit else None,
            max_total_num_tokens=pool.tokens,
            context_tokens=context,
            facts=pool.facts,
        )

    def mismatch(self, candidate: Candidate, reported: Reported, log: str) -> str:
        boot = last_boot(log)
        for who, algorithm, depth in (
            ("it says", reported.algorithm, reported.depth),
            ("this launch's log says", OFF if boot.speculative is False else boot.method, boot.depth),
        ):
            if depth is not None and depth != candidate.depth:
                return f"{who} {depth} draft tokens a round, {candidate.depth} were asked for"
            if algorithm is not None and facts.canonical(algorithm) != facts.canonical(candidate.algorithm):
                return f"{who} method {algorithm}, {candidate.algorithm} was launched"
        if boot.tokens is not None and reported.max_total_num_tokens not in (None, boot.tokens):
            return f"it says {reported.max_total_num_tokens:,} tokens, this launch's log {boot.tokens:,}: another server answers"
        if boot.error and not boot.ready:
            return f"this launch's own log ends with {boot.error!r}, so another server answers"
        return ""

    def capacity(self, reported: Reported, log: str) -> Capacity:
        boot = last_boot(log)
        asked = dict(boot.asked).get("max_num_seqs")
        limits = [n for n in (reported.max_running_requests, int(asked) if asked else None, boot.active_limit) if n is not None]
        return Capacity(
            max_total_num_tokens=reported.max_total_num_tokens if reported.max_total_num_tokens is not None else boot.tokens,
            max_running_requests=min(limits) if limits else None,
            context_tokens=reported.context_tokens if reported.context_tokens is not None else boot.length,
        )

    def round_facts(self, log: str) -> tuple[tuple[str, str], ...]:
        return ()

    def footprint(self, log: str) -> Footprint:
        boot = last_boot(log)
        each = boot.available_bytes / boot.tokens if boot.available_bytes and boot.tokens else None
        return Footprint(weight_bytes=boot.weight_bytes, kv_bytes_per_token=each)

    def weight_files(self, argv: Sequence[str]) -> tuple[str, ...]:
        return ()

    def underway(self, metrics: str, infos: Mapping[str, object]) -> Underway | None:
        return underway(metrics, *self.gauges)

    def acceptance(self, candidate: Candidate, before: str, after: str, requests: Sequence[RequestResult], log: str) -> Acceptance | None:
        if candidate.off:
            return None
        return from_counters(before, after) or _from_log(log)


# -- the command line ------------------------------------------------------------------------------------------------------------


def _start(argv: Sequence[str]) -> int | None:
    """Index of the first engine argument; ``None`` when this is no vLLM server."""
    for i, word in enumerate(argv):
        following = argv[i + 1] if i + 1 < len(argv) else ""
        if word.rpartition("/")[2] == "vllm" and following == "serve":
            return i + 2
        if word == "-m" and following in _MODULES:
            at = i + 2
            return at + 1 if following.endswith("cli.main") and at < len(argv) and argv[at] == "serve" else at
        if word.endswith("vllm/entrypoints/openai/api_server.py"):
            return i + 1
    return None


def _positional(argv: Sequence[str], start: int) -> str:
    return argv[start] if start < len(argv) and not argv[start].startswith("-") else ""


def _json(text: str) -> object:
    """A member's value as vLLM reads it: JSON where it is JSON, else the text itself."""
    try:
        value: object = json.loads(text)
    except json.JSONDecodeError:
        return text
    return value


def speculative(argv: Sequence[str], start: int) -> dict[str, object]:
    """The speculative config of an argument vector, from all places it may stand in; empty = off.

    Raises :class:`~leadline.errors.ConfigError` for broken JSON. Dashes in keys become underscores, as in vLLM.
    """
    config: dict[str, object] = {}
    text = read(argv, facts.CONFIG, start)
    if text is not None:
        whole = json.loads(text) if members(text, _WHERE) else {}
        config |= {key.replace("-", "_"): value for key, value in whole.items()}
    dotted = find_members(argv, facts.CONFIG, start)
    if dotted:  # vLLM collects the dotted members into a value of their own, which replaces the JSON
        config = {hit.member[0].replace("-", "_"): _json(hit.value or "") for hit in dotted if len(hit.member) == 1}
    for key, flag in facts.SHORT.items():
        value = read(argv, flag, start)
        if value is not None:
            config[key] = _json(value)
    return config


def _candidate(config: Mapping[str, object]) -> tuple[Candidate, tuple[str, ...]]:
    if not config:
        return Candidate(algorithm=OFF, depth=0), ()
    method = facts.canonical(str(config.get("method") or facts.inferred(str(config.get("model", "")))))
    depth = config.get("num_speculative_tokens")
    notes: tuple[str, ...] = ()
    if not isinstance(depth, int) or depth < 1:
        depth = facts.SUFFIX_DEPTH if method == "suffix" else 1
        notes = (f"num_speculative_tokens is not given: the engine takes it from the draft; {depth} is assumed",)
    schedule = config.get(facts.SCHEDULE)
    pins = ((facts.SCHEDULE, json.dumps(schedule, separators=(",", ":"))),) if schedule else ()
    return Candidate(algorithm=method, depth=depth, settings=pins), notes


def _knobs(argv: Sequence[str], start: int, config: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    pairs = {name: read(argv, flag, start) for name, flag in (*facts.KNOBS.items(), *facts.SWITCHES.items())}
    pairs |= {f"speculative.{key}": value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
    return tuple(sorted((name, value) for name, value in pairs.items() if value is not None))


def _traps(argv: Sequence[str], start: int, config: Mapping[str, object]) -> list[str]:
    notes = []
    if read(argv, facts.FILE, start) is not None:
        notes.append("--config adds settings leadline does not see; a speculative config in that file cannot be taken away from here")
    if config and find(argv, facts.CONFIG, start) and find_members(argv, facts.CONFIG, start):
        notes.append(
            "the speculative config stands both as JSON and as dotted members; the dotted ones replace the JSON: write one of them"
        )
    if config.get("rejection_sample_method") == "synthetic":
        notes.append("acceptance is synthetic and the output is not the model's: remove rejection_sample_method before serving")
    if config.get("rejection_sample_method") == "fly":
        notes.append("rejection_sample_method fly changes what the model answers; it is left as it is")
    if config and facts.canonical(str(config.get("method", ""))) in ("ngram", "suffix"):
        notes.append("this method switches asynchronous scheduling off: without it the engine is not the same minus drafts")
    return notes


def _silenced(argv: tuple[str, ...], start: int) -> tuple[str, ...]:
    for flag in (facts.CONFIG, *facts.SHORT.values()):
        argv = without(argv, flag, start)
    return argv


def _speculating(parsed: Parsed, candidate: Candidate, keys: Mapping[str, object]) -> tuple[str, ...]:
    argv, start, found = parsed.argv, parsed.start, parsed.candidate
    config = speculative(argv, start)
    if find(argv, facts.CONFIG, start) and find_members(argv, facts.CONFIG, start):
        raise CannotRewrite(where=_WHERE, why="it stands both as JSON and as dotted members", fix="write it as one JSON word")
    if found.off or facts.canonical(found.algorithm) != facts.canonical(candidate.algorithm):
        return _fresh(argv, start, candidate, keys, config)
    changes: dict[str, object] = {"num_speculative_tokens": candidate.depth, **keys}
    argv = _changed(argv, start, changes)
    return argv if facts.SCHEDULE in keys else _dropped(argv, start, facts.SCHEDULE)


def _fresh(
    argv: tuple[str, ...], start: int, candidate: Candidate, keys: Mapping[str, object], config: Mapping[str, object]
) -> tuple[str, ...]:
    """Another method: a whole new JSON word; a draft model is taken over where there is one."""
    new: dict[str, object] = {"method": candidate.algorithm}
    if candidate.algorithm in ("eagle", "eagle3", "draft_model", *facts.BLOCK):
        if "model" not in config:
            raise CannotRewrite(
                where=_WHERE,
                why=f"method {candidate.algorithm} needs a draft model and the command line names none",
                fix='name one, for example --speculative-config \'{"method": "eagle3", "model": "...", "num_speculative_tokens": 3}\'',
            )
        new["model"] = config["model"]
    new |= {"num_speculative_tokens": candidate.depth, **keys}
    places = find(argv, facts.CONFIG, start)
    if places and places[-1].value is not None:
        argv = replace(argv, places[-1], words(places[-1].spelling, json.dumps(new), joined=places[-1].joined))
        for flag in facts.SHORT.values():
            argv = without(argv, flag, start)
        return argv
    return write(_silenced(argv, start), facts.CONFIG, json.dumps(new), start)


def _changed(argv: tuple[str, ...], start: int, changes: Mapping[str, object]) -> tuple[str, ...]:
    """Each key changed where it stands, or added in the style found."""
    for key, value in changes.items():
        text = value if isinstance(value, str) else json.dumps(value)
        short = facts.SHORT.get(key)
        dotted = find_members(argv, facts.CONFIG, start)
        same = [hit for hit in dotted if hit.member == (key,) or hit.member == (key.replace("_", "-"),)]
        if short is not None and read(argv, short, start) is not None:
            argv = write(argv, short, text, start)
        elif same:
            argv = replace(argv, same[-1], words(same[-1].spelling, text, joined=same[-1].joined))
        elif dotted:
            head, _, _ = dotted[-1].spelling.partition(".")
            new = words(f"{head}.{key}", text, joined=dotted[-1].joined)
            at = dotted[-1].index + dotted[-1].width
            argv = (*argv[:at], *new, *argv[at:])
        else:
            argv = _in_json(argv, start, key, value)
    return argv


def _in_json(argv: tuple[str, ...], start: int, key: str, value: object) -> tuple[str, ...]:
    places = find(argv, facts.CONFIG, start)
    if not places:
        return write(argv, facts.CONFIG, json.dumps({key: value}), start, beside=tuple(facts.SHORT.values()))
    last = places[-1]
    text = last.value or "{}"
    dashed = key.replace("_", "-")
    name = dashed if any(member.key == dashed for member in members(text, _WHERE)) else key
    return replace(argv, last, words(last.spelling, write_member(text, name, value, _WHERE), joined=last.joined))


def _dropped(argv: tuple[str, ...], start: int, key: str) -> tuple[str, ...]:
    for hit in reversed(find_members(argv, facts.CONFIG, start)):
        if hit.member == (key,):
            argv = replace(argv, hit, ())
    for hit in find(argv, facts.CONFIG, start):
        if hit.value is not None and any(member.key == key for member in members(hit.value, _WHERE)):
            argv = replace(argv, hit, words(hit.spelling, drop_member(hit.value, key, _WHERE), joined=hit.joined))
    return argv


# -- what it says about itself -----------------------------------------------------------------------------------------------------


class Cache(Record, frozen=True):
    """What ``/metrics`` tells about the pool and the speculation that is configured."""

    depth: int | None = None
    """Number of position series; 0 when the pool is described and no speculative series exist; ``None`` without metrics."""
    tokens: int | None = None
    blocks: int | None = None
    block_tokens: int | None = None
    facts: tuple[tuple[str, str], ...] = ()


def cache(text: str) -> Cache:
    """Read ``vllm:cache_config_info`` (per data-parallel engine; the first is taken) and count the position series."""
    metrics = counters(text)
    info = metrics.named("vllm:cache_config_info")
    labels = dict(info[0].labels) if info else {}
    positions = metrics.by("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position")
    keep = (
        "num_gpu_blocks",
        "block_size",
        "kv_cache_max_concurrency",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "mamba_cache_mode",
    )
    return Cache(
        depth=len(positions) if positions else (0 if info else None),
        tokens=_digits(labels.get("kv_cache_size_tokens")),
        blocks=_digits(labels.get("num_gpu_blocks")),
        block_tokens=_digits(labels.get("block_size")),
        facts=tuple(sorted((name, labels[name]) for name in keep if labels.get(name, "None") != "None")),
    )


def _digits(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _model(models: object) -> tuple[str | None, int | None]:
    data = models.get("data") if isinstance(models, Mapping) else None
    first = data[0] if isinstance(data, Sequence) and data else None
    if not isinstance(first, Mapping):
        return None, None
    length = first.get("max_model_len")
    return str(first.get("root") or first.get("id")), length if isinstance(length, int) else None


# -- acceptance ------------------------------------------------------------------------------------------------------------------------


def from_counters(before: str, after: str) -> Acceptance | None:
    """Deltas of the speculative counters between two scrapes; ``None`` where nothing was drafted.

    ``num_drafts`` counts only rounds that had a draft: n-gram and suffix rounds without a match are missing from it.
    """
    old, new = counters(before), counters(after)

    def delta(name: str) -> int:
        return round(new.total(f"vllm:spec_decode_{name}_total") - old.total(f"vllm:spec_decode_{name}_total"))

    rounds, drafted, accepted = delta("num_drafts"), delta("num_draft_tokens"), delta("num_accepted_tokens")
    if rounds <= 0:
        return None
    key = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    was, now = old.by(key, "position"), new.by(key, "position")
    per_position = tuple(round(now[p] - was.get(p, 0.0)) for p in sorted(now, key=int))
    return Acceptance(
        rounds=rounds,
        drafted=drafted,
        accepted=accepted,
        per_position=per_position,
        histogram=_histogram(rounds, per_position),
        length=1 + accepted / rounds,
        source="counters",
    )


def _histogram(rounds: int, per_position: Sequence[int]) -> tuple[int, ...]:
    """Rounds that accepted exactly j drafts, from rounds whose first j were accepted."""
    if not per_position:
        return ()
    ladder = (rounds, *per_position, 0)
    return tuple(ladder[j] - ladder[j + 1] for j in range(len(ladder) - 1))


def _from_log(log: str) -> Acceptance | None:
    found = periods(log)
    if not found:
        return None
    rounds = [round(p.accepted / (p.length - 1)) if p.length > 1 else round(p.drafted / max(1, len(p.shares))) for p in found]
    accepted, total = sum(p.accepted for p in found), sum(rounds)
    if not total:
        return None
    return Acceptance(
        rounds=total, drafted=sum(p.drafted for p in found), accepted=accepted, length=1 + accepted / total, source="periodic log"
    )


# -- the engine's own schedule -------------------------------------------------------------------------------------------------------------


def schedule(depths: Mapping[int, int], most: int = 512) -> str:
    """The value of ``num_speculative_tokens_per_batch_size``: rows [first batch size, last, depth], inclusive; 0 switches drafting off.

    ``depths`` maps the smallest batch size of a row to its depth; the first row is made to start at 1 and the last ends at ``most``.
    A schedule drops full graphs on the V1 runner and must be measured end to end.

    >>> schedule({1: 5, 3: 2, 9: 0}, 64)
    '[[1,2,5],[3,8,2],[9,64,0]]'
    """
    firsts = sorted(depths)
    lasts = [first - 1 for first in firsts[1:]] + [max(most, firsts[-1])]
    rows = [[1 if i == 0 else first, last, depths[first]] for i, (first, last) in enumerate(zip(firsts, lasts, strict=True))]
    return json.dumps(rows, separators=(",", ":"))


def read_schedule(text: str) -> dict[int, int]:
    """Inverse of :func:`schedule`: smallest batch size of each row -> depth."""
    return {int(first): int(depth) for first, _, depth in json.loads(text)}
