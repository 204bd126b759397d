"""SGLang 0.5.9 and later: command line, log, endpoints, counters.

Facts by release stand in ``sglang_facts``, log formats in ``sglang_log``, capacity in ``leadline.frontier.sglang``.
A chain has one free variable (``num_draft_tokens`` = ``num_steps`` + 1 at topk 1), so a rendered candidate always writes all three flags.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence

from ..errors import CannotRewrite, UnknownKnob
from ..records import OFF, Acceptance, Candidate, Capacity, LaunchFile, Reported, RequestResult
from . import Axis, Footprint, Loading, Parsed, Underway
from . import sglang_facts as facts
from .arguments import read, without, write
from .prometheus import counters, underway
from .releases import known, release
from .sglang_log import decodes, kernel_step_tokens, last_boot, loading

_MODULES = ("sglang.launch_server", "sglang.cli.main", "sglang.cli.serve")
_SWITCHED_OFF = re.compile(r"speculative_adaptive disabled: (.*?)\.? Falling back")
ADAPTIVE_KNOB = "adaptive_config"
"""A candidate's setting: the path of a table as found, or the table itself (JSON), which becomes a file of the launch."""
_LOADS = "/v1/loads?include=core"
"""Asks the schedulers themselves. The gauges are set with the decode lines and, when nothing runs, every 30 s only."""
_KEPT_WITH_FOUND = ("adaptive_config", "speculative_adaptive", "ngram_max_bfs_breadth", "ngram_max_trie_depth")
_DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
_NGRAM_DEPTHS = (3, 5, 7, 11, 15)
_TREES = ((4, 8), (4, 16), (8, 32))
"""(topk, num_draft_tokens) of the tree shapes offered when trees are asked for."""


class SGLang:
    """The adapter of SGLang; see :class:`leadline.engines.Engine`."""

    name = "sglang"
    health_path = "/health"
    info_paths: tuple[str, ...] = ("/server_info", "/get_server_info", "/model_info", "/get_model_info", "/v1/models")
    metrics_path = "/metrics"
    load_paths: tuple[str, ...] = (_LOADS,)
    gauges = ("sglang:num_running_reqs", "sglang:num_queue_reqs")
    metrics_flag = "--enable-metrics"
    stop_first = "TERM"
    stop_grace_s = 90.0

    def parse(self, argv: Sequence[str]) -> Parsed | None:
        start = _start(argv)
        if start is None:
            return None
        argv = tuple(argv)
        found, notes = _candidate(argv, start)
        return Parsed(
            engine=self.name,
            argv=argv,
            start=start,
            candidate=found,
            host=read(argv, facts.HOST, start) or "127.0.0.1",
            port=_number(read(argv, facts.PORT, start)) or 30000,
            model=read(argv, facts.MODEL, start) or _positional(argv, start),
            knobs=_knobs(argv, start),
            notes=(*notes, *_traps(argv, start, found)),
        )

    def render(self, parsed: Parsed, candidate: Candidate) -> tuple[str, ...]:
        settings = dict(candidate.settings)
        for name in settings:
            if name not in facts.KNOBS and name not in facts.SWITCHES:
                raise UnknownKnob(engine=self.name, knob=name, known=", ".join(sorted((*facts.KNOBS, *facts.SWITCHES))))
        argv, start = parsed.argv, parsed.start
        if candidate.off:
            argv = _silenced(argv, start)
            settings = {name: value for name, value in settings.items() if name not in ("topk", "num_draft_tokens")}
        else:
            argv = _speculating(parsed, candidate)
        named = {file.text: file.name for file in self.files(candidate)}
        for name, value in settings.items():
            value = named.get(value, value)
            argv = _with_knob(argv, start, name, value)
        return argv

    def files(self, candidate: Candidate) -> tuple[LaunchFile, ...]:
        return _files(candidate)

    def axes(self, parsed: Parsed, asked: Sequence[str] = ()) -> tuple[Axis, ...]:
        found = parsed.candidate
        wanted = {name.upper() for name in asked}
        axes: list[Axis] = []
        drafted = (
            found.algorithm
            if not found.off
            else next((name for name in asked if facts.canonical(name) in ("EAGLE", "EAGLE3", "STANDALONE")), "")
        )
        if drafted and facts.canonical(drafted) not in (*facts.BLOCK, *facts.DRAFT_FREE):
            axes.append(_chain(drafted, found))
        if facts.canonical(found.algorithm) in facts.BLOCK:
            axes.append(
                Axis(algorithm=found.algorithm, depths=(found.depth,), why="the draft is trained for one block length", modelled=False)
            )
        if not wanted or "NGRAM" in wanted or found.algorithm == "NGRAM":
            axes.append(Axis(algorithm="NGRAM", depths=_NGRAM_DEPTHS, why="needs no draft model", modelled=False))
        if drafted and ("TREE" in wanted or dict(found.settings).get("topk", "1") != "1"):
            axes += _trees(drafted)
        keep = {"TREE", *(facts.canonical(name) for name in wanted)}
        return tuple(axis for axis in axes if not wanted or facts.canonical(axis.algorithm) in keep)

    def loading(self, log_tail: str) -> Loading:
        return loading(log_tail)

    def reported(self, parsed: Parsed, infos: Mapping[str, object]) -> Reported:
        info = _first(infos, "/server_info", "/get_server_info")
        model = _first(infos, "/model_info", "/get_model_info")
        states = _states(info)
        algorithm, depth = _speculation(info)
        effective = [n for n in (state.get("effective_max_running_requests_per_dp") for state in states) if isinstance(n, int)]
        tokens = info.get("max_total_num_tokens")
        path = info.get("model_path") or model.get("model_path")
        context = next((s["context_length"] for s in states if isinstance(s.get("context_length"), int)), info.get("context_length"))
        return Reported(
            engine=self.name,
            version=str(info["version"]) if "version" in info else parsed.version,
            model=str(path) if path else None,
            algorithm=algorithm,
            depth=depth,
            max_running_requests=sum(effective) if effective else None,
            max_total_num_tokens=tokens if isinstance(tokens, int) else None,
            context_tokens=context if isinstance(context, int) else None,
            facts=_facts(info, states),
        )

    def mismatch(self, candidate: Candidate, reported: Reported, log: str) -> str:
        told = dict(reported.facts)
        if reported.algorithm is not None and facts.canonical(reported.algorithm) != facts.canonical(candidate.algorithm):
            return f"it says algorithm {reported.algorithm}, {facts.canonical(candidate.algorithm)} was launched"
        if reported.depth is not None and reported.depth != candidate.depth:
            return f"it says {reported.depth} draft tokens a round, {candidate.depth} were asked for"
        for name, value in candidate.settings:
            if name in told and not _equal(told[name], value):
                return f"it says {name} = {told[name]}, {value} was asked for"
        return _log_disagrees(candidate, reported, log)

    def capacity(self, reported: Reported, log: str) -> Capacity:
        boot = last_boot(log)
        slots = dict(reported.facts).get("max_mamba_cache_size")
        return Capacity(
            max_total_num_tokens=reported.max_total_num_tokens if reported.max_total_num_tokens is not None else boot.tokens,
            max_running_requests=reported.max_running_requests if reported.max_running_requests is not None else boot.running,
            state_slots=boot.state.slots if boot.state else _number(slots),
            free_memory_bytes=boot.free_bytes,
            context_tokens=reported.context_tokens if reported.context_tokens is not None else boot.context,
        )

    def round_facts(self, log: str) -> tuple[tuple[str, str], ...]:
        tokens = kernel_step_tokens(log)
        return (("kernel_step_tokens", str(tokens)),) if tokens is not None else ()

    def footprint(self, log: str) -> Footprint:
        boot = last_boot(log)
        pool = boot.pools[0] if boot.pools else None
        each = pool.size_bytes / pool.tokens if pool is not None and pool.tokens and pool.size_bytes else None
        return Footprint(weight_bytes=boot.weight_bytes, kv_bytes_per_token=each)

    def weight_files(self, argv: Sequence[str]) -> tuple[str, ...]:
        return ()

    def underway(self, metrics: str, infos: Mapping[str, object]) -> Underway | None:
        return _loads(infos.get(_LOADS)) or underway(metrics, *self.gauges)

    def acceptance(self, candidate: Candidate, before: str, after: str, requests: Sequence[RequestResult], log: str) -> Acceptance | None:
        if candidate.off:
            return None
        return _from_requests(candidate, requests) or _from_counters(before, after) or _from_log(log)


# -- the command line ------------------------------------------------------------------------------------------------------------


def _start(argv: Sequence[str]) -> int | None:
    """Index of the first engine argument; ``None`` when this is no SGLang server."""
    for i, word in enumerate(argv):
        base = word.rpartition("/")[2]
        following = argv[i + 1] if i + 1 < len(argv) else ""
        if word == "-m" and following in _MODULES:
            at = i + 2
            return at + 1 if following != "sglang.launch_server" and at < len(argv) and argv[at] == "serve" else at
        if base == "launch_server.py" and "sglang" in word:
            return i + 1
        if base == "sglang" and following == "serve":
            return i + 2
    return None


def _positional(argv: Sequence[str], start: int) -> str:
    """``sglang serve MODEL``: a model without its flag."""
    return argv[start] if start < len(argv) and not argv[start].startswith("-") else ""


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def _knobs(argv: Sequence[str], start: int) -> tuple[tuple[str, str], ...]:
    pairs = {name: read(argv, flag, start) for name, flag in (*facts.KNOBS.items(), *facts.SWITCHES.items())}
    algorithm, path = read(argv, facts.ALGORITHM, start), read(argv, facts.DRAFT_PATH, start)
    pairs |= {"speculative_algorithm": algorithm, "speculative_draft_model_path": path}
    return tuple(sorted((name, value) for name, value in pairs.items() if value is not None))


def _candidate(argv: Sequence[str], start: int) -> tuple[Candidate, tuple[str, ...]]:
    """What the arguments ask for, with the engine's own completions, and what had to be assumed."""
    algorithm = read(argv, facts.ALGORITHM, start)
    if algorithm is None:
        return Candidate(algorithm=OFF, depth=0), ()
    name = algorithm.upper()
    steps, topk, drafts = (_number(read(argv, flag, start)) for flag in (facts.STEPS, facts.TOPK, facts.DRAFT_TOKENS))
    if name in facts.DRAFT_FREE:
        return Candidate(algorithm=name, depth=max(1, (drafts or facts.NGRAM_DRAFT_TOKENS) - 1), settings=_kept(argv, start)), ()
    if name in facts.BLOCK:
        block = _number(read(argv, facts.DFLASH_BLOCK, start)) or drafts
        note = () if block else (f"the block length of {name} is not on the command line: it comes from the draft, 16 is assumed",)
        return Candidate(algorithm=name, depth=max(1, (block or facts.BLOCK_DRAFT_TOKENS) - 1)), note
    notes: tuple[str, ...] = ()
    if steps is None:
        steps, topk, drafts = facts.AUTOMATIC_TRIPLE
        notes = (
            "num_steps is not on the command line: the engine chooses 3 steps, or 5 steps as a tree of 8 with topk 4 for Llama and Grok "
            "targets; leadline writes all three flags",
        )
    settings = dict(_kept(argv, start))
    if topk not in (None, 1):
        settings |= {"topk": str(topk), "num_draft_tokens": str(drafts or steps + 1)}
    elif drafts is not None and drafts != steps + 1:
        notes = (*notes, f"num_draft_tokens {drafts} is ignored: at topk 1 the engine uses num_steps + 1 = {steps + 1}")
    return Candidate(algorithm=name, depth=max(1, steps), settings=tuple(sorted(settings.items()))), notes


def _kept(argv: Sequence[str], start: int) -> tuple[tuple[str, str], ...]:
    flags = {**facts.KNOBS, **facts.SWITCHES}
    pairs = ((name, read(argv, flags[name], start)) for name in _KEPT_WITH_FOUND)
    return tuple(sorted((name, value) for name, value in pairs if value is not None))


def _traps(argv: Sequence[str], start: int, found: Candidate) -> list[str]:
    notes: list[str] = []
    limit = read(argv, facts.KNOBS["max_running_requests"], start)
    if not found.off and limit is None:
        notes.append(
            "max_running_requests is not given: with speculation the engine silently takes 48, without it there is no such cap; "
            "pin it on both sides of a comparison"
        )
    if found.off and any(word.startswith("--speculative-") for word in argv[start:]):
        notes.append("speculative flags without --speculative-algorithm have no effect: speculation is off")
    if read(argv, facts.CONFIG, start) is not None:
        notes.append("--config adds flags leadline does not see; a flag on the command line wins, but one in the file cannot be taken away")
    if read(argv, facts.ADAPTIVE, start) is not None:
        notes.append("--speculative-adaptive changes the depth by itself; a fixed depth is measured without it")
    if read(argv, facts.SWITCHES["enable_metrics"], start) is None:
        notes.append("--enable-metrics is not given: acceptance is read from the log")
    return notes


_TUNED = (facts.ALGORITHM, facts.STEPS, facts.TOPK, facts.DRAFT_TOKENS)


def _silenced(argv: tuple[str, ...], start: int) -> tuple[str, ...]:
    """Without any speculative flag, the ones of later releases included."""
    argv = without(argv, facts.MULTI_LAYER, start)
    while True:
        at = next((i for i in range(start, len(argv)) if re.match(r"--speculative-", argv[i])), None)
        if at is None:
            return argv
        word, equals, _ = argv[at].partition("=")
        has_value = not equals and at + 1 < len(argv) and not argv[at + 1].startswith("--") and not _is_switch(word)
        argv = (*argv[:at], *argv[at + (2 if has_value else 1) :])


def _is_switch(word: str) -> bool:
    return (
        facts.ADAPTIVE.spelled(word)
        or word.startswith(("--speculative-use-", "--speculative-enable-"))
        or word == "--speculative-skip-dp-mlp-sync"
    )


def _speculating(parsed: Parsed, candidate: Candidate) -> tuple[str, ...]:
    """The arguments with another algorithm or depth: all coupled flags written, those of another algorithm taken away."""
    argv, start, settings = parsed.argv, parsed.start, dict(candidate.settings)
    if not parsed.candidate.off and facts.canonical(parsed.candidate.algorithm) != facts.canonical(candidate.algorithm):
        argv = _silenced_except_path(argv, start, candidate)
    if "speculative_adaptive" not in settings:
        argv = without(without(argv, facts.ADAPTIVE, start), facts.ADAPTIVE_CONFIG, start)
    if read(argv, facts.ALGORITHM, start) is None or parsed.candidate.algorithm != candidate.algorithm:
        argv = write(argv, facts.ALGORITHM, candidate.algorithm, start)
    if candidate.algorithm in facts.DRAFT_FREE or candidate.algorithm in facts.BLOCK:
        for flag in (facts.STEPS, facts.TOPK, facts.DFLASH_BLOCK):
            argv = without(argv, flag, start)
        return write(argv, facts.DRAFT_TOKENS, str(candidate.depth + 1), start, beside=_TUNED)
    topk = settings.get("topk", "1")
    tokens = settings.get("num_draft_tokens", str(candidate.depth + 1))
    if topk == "1" and tokens != str(candidate.depth + 1):
        raise CannotRewrite(
            where="the candidate",
            why=f"at topk 1 a round of {candidate.depth} steps drafts {candidate.depth + 1} tokens, not {tokens}",
            fix="leave num_draft_tokens out, or ask for topk above 1",
        )
    argv = write(argv, facts.STEPS, str(candidate.depth), start, beside=_TUNED)
    argv = write(argv, facts.TOPK, topk, start, beside=_TUNED)
    return write(argv, facts.DRAFT_TOKENS, tokens, start, beside=_TUNED)


def _silenced_except_path(argv: tuple[str, ...], start: int, candidate: Candidate) -> tuple[str, ...]:
    path = read(argv, facts.DRAFT_PATH, start)
    silent = _silenced(argv, start)
    needs = path is not None and candidate.algorithm not in facts.DRAFT_FREE
    return write(silent, facts.DRAFT_PATH, path, start) if needs else silent


def _files(candidate: Candidate) -> tuple[LaunchFile, ...]:
    """The table of an adaptive candidate, which the engine reads from a file; none where its path is given instead."""
    text = dict(candidate.settings).get(ADAPTIVE_KNOB, "")
    if not text.startswith("{"):
        return ()
    return (LaunchFile(name=f"leadline-schedule-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json", text=text),)


def _with_knob(argv: tuple[str, ...], start: int, name: str, value: str) -> tuple[str, ...]:
    if name in facts.KNOBS:
        return write(argv, facts.KNOBS[name], value, start, beside=_TUNED)
    flag = facts.SWITCHES[name]
    if value == "true":
        return write(argv, flag, None, start, beside=_TUNED)
    return without(argv, flag, start)


# -- the space ---------------------------------------------------------------------------------------------------------------------


def _chain(algorithm: str, found: Candidate) -> Axis:
    depths = tuple(sorted({*_DEPTHS, found.depth} - {0}))
    return Axis(algorithm=algorithm, depths=depths, why="a chain of the draft that is configured: depth is its one free variable")


def _trees(algorithm: str) -> list[Axis]:
    return [
        Axis(
            algorithm=algorithm,
            depths=(3, 4, 5, 6),
            settings=(("num_draft_tokens", str(tokens)), ("topk", str(topk))),
            why="a tree: acceptance of a chain says nothing about it, so every shape is searched",
            modelled=False,
        )
        for topk, tokens in _TREES
    ]


# -- what it says about itself -----------------------------------------------------------------------------------------------------


def _first(infos: Mapping[str, object], *paths: str) -> Mapping[str, object]:
    found = next((infos[path] for path in paths if isinstance(infos.get(path), Mapping)), None)
    return found if isinstance(found, Mapping) else {}


def _states(info: Mapping[str, object]) -> list[Mapping[str, object]]:
    states = info.get("internal_states")
    return [s for s in states if isinstance(s, Mapping)] if isinstance(states, Sequence) else []


def _speculation(info: Mapping[str, object]) -> tuple[str | None, int | None]:
    """(algorithm, depth) of the resolved arguments; (None, None) where they are not told."""
    if "speculative_algorithm" not in info:
        return None, None
    algorithm = info["speculative_algorithm"]
    if algorithm is None:
        return OFF, 0
    name = facts.canonical(str(algorithm))
    steps, topk, tokens = (info.get(f"speculative_{key}") for key in ("num_steps", "eagle_topk", "num_draft_tokens"))
    if name in (*facts.DRAFT_FREE, *facts.BLOCK) or topk in (None, 1):
        if isinstance(tokens, int):
            return name, tokens - 1
        return name, steps if isinstance(steps, int) else None
    return name, steps if isinstance(steps, int) else None


def _loads(said: object) -> Underway | None:
    """``/v1/loads``: one entry a data-parallel rank."""
    rows = said.get("loads") if isinstance(said, Mapping) else None
    ranks = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, Sequence) else []
    counts = [(row.get("num_running_reqs"), row.get("num_waiting_reqs")) for row in ranks]
    known = [(running, waiting) for running, waiting in counts if isinstance(running, int) and isinstance(waiting, int)]
    if not known or len(known) < len(ranks):
        return None
    return Underway(running=sum(running for running, _ in known), waiting=sum(waiting for _, waiting in known))


def _facts(info: Mapping[str, object], states: Sequence[Mapping[str, object]]) -> tuple[tuple[str, str], ...]:
    """Resolved knobs under leadline's names; ``max_running_requests`` here is the requested one."""
    names = {"topk": "speculative_eagle_topk", "num_draft_tokens": "speculative_num_draft_tokens"}
    pairs = {name: info.get(names.get(name, name)) for name in (*facts.KNOBS, *facts.SWITCHES)}
    pairs["speculative_draft_model_path"] = info.get("speculative_draft_model_path")
    if states and states[0].get("max_mamba_cache_size") is not None:
        pairs["max_mamba_cache_size"] = states[0]["max_mamba_cache_size"]
    return tuple(sorted((name, str(value)) for name, value in pairs.items() if isinstance(value, (str, int, float))))


def _equal(told: str, asked: str) -> bool:
    if told.lower() == asked.lower():
        return True
    try:
        return float(told) == float(asked)
    except ValueError:
        return False


def _log_disagrees(candidate: Candidate, reported: Reported, log: str) -> str:
    """Whether this launch's own log shows another server than the one that answers."""
    boot = last_boot(log)
    switched_off = _SWITCHED_OFF.search(log)
    if switched_off and dict(candidate.settings).get("speculative_adaptive") == "true":
        return f"the engine switched its adaptive table off ({switched_off.group(1)}) and runs one fixed depth"
    if boot.pool_error or boot.error:
        return f"this launch's own log ends with {(boot.error or boot.pool_error).strip()!r}, so another server answers"
    if boot.tokens is not None and reported.max_total_num_tokens not in (None, boot.tokens):
        return f"it says {reported.max_total_num_tokens:,} tokens, this launch's log {boot.tokens:,}: another server answers"
    logged = boot.argument("speculative_num_draft_tokens")
    tree = dict(candidate.settings).get("num_draft_tokens")
    wanted = 0 if candidate.off else int(tree or candidate.depth + 1)
    if boot.arguments and int(logged or 0) != wanted:
        return f"the log says {logged or 'no'} draft tokens, {wanted or 'none'} were launched"
    return ""


# -- acceptance ------------------------------------------------------------------------------------------------------------------------


def from_histogram(histogram: Sequence[int], source: str = "histogram", *, simulated: bool = False) -> Acceptance:
    """Acceptance from counts of rounds that accepted exactly j drafts, j = 0 .. depth (``meta_info`` of ``/generate``).

    >>> from_histogram((10, 20, 70)).per_position
    (90, 70)
    """
    counts = tuple(int(n) for n in histogram)
    rounds = sum(counts)
    tail = list(itertools.accumulate(reversed(counts)))[::-1]
    accepted = sum(j * n for j, n in enumerate(counts))
    return Acceptance(
        rounds=rounds,
        drafted=rounds * (len(counts) - 1),
        accepted=accepted,
        per_position=tuple(tail[1:]),
        histogram=counts,
        length=1 + accepted / rounds if rounds else None,
        source=source,
        simulated=simulated,
    )


def from_meta_infos(metas: Sequence[Mapping[str, object]], depth: int) -> Acceptance | None:
    """Sum the histograms of many ``meta_info`` objects; both names of the key are read. ``None`` when none has one."""
    total = [0] * (depth + 1)
    seen = False
    for meta in metas:
        found = meta.get("spec_correct_drafts_histogram", meta.get("spec_accept_histogram"))
        if not isinstance(found, Sequence):
            continue
        seen = True
        for j, count in enumerate(found[: depth + 1]):
            total[j] += int(count)
    return from_histogram(total, "meta_info") if seen else None


def _from_requests(candidate: Candidate, requests: Sequence[RequestResult]) -> Acceptance | None:
    if "speculative_adaptive" in dict(candidate.settings):  # how many drafts a round had is not one number then
        return None
    told = [r for r in requests if r.drafted is not None and r.accepted is not None]
    drafted, accepted = sum(r.drafted or 0 for r in told), sum(r.accepted or 0 for r in told)
    if not drafted:
        return None
    per_round = int(dict(candidate.settings).get("num_draft_tokens", candidate.depth + 1)) - 1
    rounds = round(drafted / per_round)
    return Acceptance(rounds=rounds, drafted=drafted, accepted=accepted, length=1 + accepted / max(1, rounds), source="requests")


def _from_counters(before: str, after: str) -> Acceptance | None:
    """Δ generation tokens / Δ verify calls (0.5.13 and later); counters move when a request finishes."""
    old, new = counters(before), counters(after)
    rounds = new.total("sglang:spec_verify_calls_total") - old.total("sglang:spec_verify_calls_total")
    tokens = new.total("sglang:generation_tokens_total") - old.total("sglang:generation_tokens_total")
    if rounds <= 0 or tokens < rounds:
        return None
    return Acceptance(rounds=round(rounds), accepted=round(tokens - rounds), length=tokens / rounds, source="counters")


def _from_log(log: str) -> Acceptance | None:
    """Mean ``accept len`` of the decode lines, weighted by running requests (each line covers equally many steps)."""
    lines = [(d.running, d.accept_length) for d in decodes(log) if d.accept_length is not None and d.running]
    weight = sum(running for running, _ in lines)
    if not weight:
        return None
    return Acceptance(length=sum(running * length for running, length in lines) / weight, source="decode log")


# -- the engine's own schedule -------------------------------------------------------------------------------------------------------------


def schedule(depths: Mapping[int, int], version: str | None = None) -> str:
    """The file for ``--speculative-adaptive-config``: one candidate a batch-size slot, so a fixed depth by concurrency.

    ``depths`` maps the smallest batch size of a slot to its depth.  Drafting can be switched off in a slot (0) from 0.5.14.
    Only EAGLE and EAGLE3 at topk 1; ``--speculative-num-steps`` must be one of the depths.  Raises CannotRewrite where the release
    has no such table.

    >>> schedule({1: 5, 32: 1}, "0.5.23")
    '{"1": {"candidate_steps": [5]}, "32": {"candidate_steps": [1]}}'
    """
    told = known(version)
    if told is not None and told < release("0.5.13"):
        raise CannotRewrite(
            where="the adaptive table",
            why=f"release {version} has one list of steps for all batch sizes",
            fix="use one depth for all, or upgrade to 0.5.13 or later",
        )
    if told is not None and told < release("0.5.14") and 0 in depths.values():
        raise CannotRewrite(
            where="the adaptive table", why=f"release {version} cannot switch drafting off in a slot", fix="use depth 1 there"
        )
    slots = {str(size): {"candidate_steps": [depth]} for size, depth in sorted(depths.items())}
    return json.dumps(slots)
