"""What a service is and could be, from its texts: engine, knobs, capacity now, and the frontier of depths as a table or as JSON.

Pure: the command, the log, the endpoints' JSON and the model's config come in as texts and parsed JSON, from files or from a host.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence

from . import execstart, frontier
from .engines import Parsed, named, recognise, sglang_log, vllm_log
from .errors import ConfigError, NotAnEngine, Unsupported
from .frontier import sglang, vllm
from .records import OFF, Candidate, Capacity, FrontierRow, Record

DEPTHS = frontier.DEPTHS


class Texts(Record, frozen=True):
    """Everything that was given or read about a service; what is missing is empty."""

    command: str = ""
    log: str = ""
    server_info: Mapping[str, object] | None = None
    metrics: str = ""
    model_config: Mapping[str, object] | None = None
    draft_config: Mapping[str, object] | None = None
    engine: str = ""
    version: str | None = None


class Inspection(Record, frozen=True):
    """One service, inspected."""

    engine: str
    version: str | None
    found: Candidate
    now: Capacity
    rows: tuple[FrontierRow, ...]
    said: tuple[str, ...] = ()
    """What can and what cannot be known from the start that was seen."""
    notes: tuple[str, ...] = ()
    """Traps in the command line."""
    labels: tuple[sglang.Label, ...] = ()
    """Figures noted elsewhere, each with the depth whose figures they are."""

    def json(self) -> dict[str, object]:
        """The shape that ``leadline inspect --json`` prints: one row a depth of the method that is configured."""
        shape: dict[str, object] = {
            "engine": self.engine,
            "version": self.version,
            "now": {
                "algorithm": self.found.algorithm,
                "depth": self.found.depth,
                "max_running_requests": self.now.max_running_requests,
                "max_total_num_tokens": self.now.max_total_num_tokens,
                "context_tokens": self.now.context_tokens,
            },
            "frontier": [
                {
                    "depth": row.candidate.depth,
                    "max_running_requests": row.capacity.max_running_requests,
                    "max_total_num_tokens": row.capacity.max_total_num_tokens,
                    "starts": row.starts,
                    "reason": row.reason,
                    "remedy": row.remedy,
                }
                for row in self._depths()
            ],
        }
        if self.labels:
            shape["noted"] = [
                {"depth": n.depth, "max_running_requests": n.running, "max_total_num_tokens": n.tokens, "behaves_like": n.behaves_like}
                for n in self.labels
            ]
        return shape

    def _depths(self) -> tuple[FrontierRow, ...]:
        """Speculation off and the depths of one method, nothing else pinned: one row a depth, shallow to deep."""
        methods = [row.candidate.algorithm for row in self.rows if not row.candidate.off]
        method = self.found.algorithm if not self.found.off else (methods[0] if methods else OFF)
        rows: dict[int, FrontierRow] = {}
        for row in self.rows:
            if row.candidate.algorithm in (OFF, method) and (not row.candidate.settings or row.candidate == self.found):
                rows.setdefault(row.candidate.depth, row)
        return tuple(rows[depth] for depth in sorted(rows))

    def table(self, tokens_in: int, tokens_out: int, width: int = 110) -> str:
        """The frontier for people: one line a depth, reasons and remedies below it.

        ``fit`` counts the requests of ``tokens_in`` + ``tokens_out`` tokens that run at once.
        """
        version = f" {self.version}" if self.version else ""
        head = f"{self.engine}{version}, {self.found.label}"
        now = f"now: {_figure(self.now.max_running_requests)} running requests, {_figure(self.now.max_total_num_tokens)} tokens"
        lines = [head, now, "", f"{'':{self._label}}  starts  running    tokens  fit {tokens_in}+{tokens_out}  known"]
        for row in self.rows:
            lines += self._lines(row, tokens_in, tokens_out, width)
        for sentence in (*(label.text for label in self.labels), *self.said, *self.notes):
            lines += ["", *textwrap.wrap(sentence, width)]
        return "\n".join(lines) + "\n"

    @property
    def _label(self) -> int:
        return max((len(row.candidate.label) for row in self.rows), default=5)

    def _lines(self, row: FrontierRow, tokens_in: int, tokens_out: int, width: int) -> list[str]:
        starts = {True: "yes", False: "no", None: "?"}[row.starts]
        fit = _figure(fits(self.engine, row.candidate, row.capacity, tokens_in, tokens_out))
        running, tokens = _figure(row.capacity.max_running_requests), _figure(row.capacity.max_total_num_tokens)
        mark = "exact" if row.exact else "about"
        column = max(3, len(f"fit {tokens_in}+{tokens_out}"))
        lines = [f"{row.candidate.label:{self._label}}  {starts:<6}  {running:>7}  {tokens:>8}  {fit:>{column}}  {mark}"]
        for word, sentence in (("why", row.reason), ("do", row.remedy)):
            if sentence:
                lines += textwrap.wrap(sentence, width - 12, initial_indent=f"{'':7}{word + ':':5}", subsequent_indent=" " * 12)
        return lines


def _figure(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def fits(engine: str, candidate: Candidate, capacity: Capacity, tokens_in: int, tokens_out: int) -> int | None:
    """Requests of this length that run at once: min(running, floor(tokens / (in + out + what a round reserves))).

    A round reserves 2 max(topk x depth, draft tokens) tokens a request on SGLang, depth tokens on vLLM (docs/frontier.md).
    """
    if capacity.max_total_num_tokens is None:
        return None
    settings = dict(candidate.settings)
    topk = int(settings.get("topk", "1"))
    drafts = int(settings.get("num_draft_tokens", candidate.depth + 1)) if candidate.depth else 0
    reserve = 2 * max(topk * candidate.depth, drafts) if engine == "sglang" else candidate.depth
    by_tokens = capacity.max_total_num_tokens // max(1, tokens_in + tokens_out + reserve)
    return by_tokens if capacity.max_running_requests is None else min(by_tokens, capacity.max_running_requests)


def of(engine: str, version: str | None, found: Candidate, now: Capacity, rows: Sequence[FrontierRow]) -> Inspection:
    """An inspection of rows that were computed elsewhere (a running service)."""
    return Inspection(engine=engine, version=version, found=found, now=now, rows=tuple(rows))


def inspect(texts: Texts, depths: Sequence[int] = DEPTHS, noted: Sequence[tuple[int, int, int | None]] = ()) -> Inspection:
    """Inspect a service by its texts; ``noted`` are rows (depth, tokens, running) of a table to hold against it. Raises :class:`~leadline.errors.NotAnEngine` when nothing tells the engine."""
    parsed = _parsed(texts)
    info = texts.server_info or {}
    version = texts.version or (str(info["version"]) if "version" in info else None) or _logged_version(texts) or parsed.version
    engine = named(parsed.engine)
    infos = dict.fromkeys(engine.info_paths[:1], info) if texts.server_info else {}
    reported = engine.reported(parsed, {**infos, "/metrics": texts.metrics})
    rows = frontier.predict_frontier(
        engine.name,
        version,
        parsed,
        log=texts.log,
        server_info=texts.server_info,
        model_config=texts.model_config,
        draft_config=texts.draft_config,
        metrics=texts.metrics,
        depths=depths,
    )
    return Inspection(
        engine=engine.name,
        version=version,
        found=parsed.candidate,
        now=engine.capacity(reported, texts.log),
        rows=rows,
        said=(*_said(texts, parsed, version), *_unlike(parsed.candidate, rows)),
        notes=parsed.notes,
        labels=_labels(texts, parsed, version, noted),
    )


def noted_row(text: str) -> tuple[int, int, int | None]:
    """``DEPTH:TOKENS`` or ``DEPTH:TOKENS/RUNNING``. Raises ConfigError.

    >>> noted_row("3:377207/21")
    (3, 377207, 21)
    """
    found = re.fullmatch(r"(\d+):([\d,_]+)(?:/(\d+))?", text.strip())
    if found is None:
        raise ConfigError(
            place="--noted", what=f"{text!r} is no noted row", fix="write DEPTH:TOKENS/RUNNING, for example --noted 3:377207/21"
        )
    return int(found[1]), int(found[2].replace(",", "").replace("_", "")), int(found[3]) if found[3] else None


def _labels(texts: Texts, parsed: Parsed, version: str | None, noted: Sequence[tuple[int, int, int | None]]) -> tuple[sglang.Label, ...]:
    if not noted:
        return ()
    if parsed.engine != "sglang":
        raise Unsupported(what="--noted", where=f"for {parsed.engine}", fix="leave it out: its capacity does not tell the depth")
    inputs = sglang.gather(version, parsed, texts.log, texts.server_info, texts.model_config)
    return sglang.check_labels(sglang.readings(inputs), noted)


def _said(texts: Texts, parsed: Parsed, version: str | None) -> tuple[str, ...]:
    if parsed.engine == "sglang":
        inputs = sglang.gather(version, parsed, texts.log, texts.server_info, texts.model_config)
        return sglang.statement(inputs, sglang.readings(inputs))
    if parsed.engine == "vllm":
        return vllm.statement(vllm.gather(parsed, texts.log, texts.metrics, texts.model_config, texts.draft_config))
    return ()


def _unlike(found: Candidate, rows: Sequence[FrontierRow]) -> tuple[str, ...]:
    """Where speculation on and off admit different numbers of requests, the load at which a comparison measures a queue."""
    on = next((row for row in rows if row.candidate == found and not found.off), None)
    off = next((row for row in rows if row.candidate.off), None)
    if on is None or off is None:
        return ()
    limits = on.capacity.max_running_requests, off.capacity.max_running_requests
    if None in limits or limits[0] == limits[1]:
        return ()
    least = min(limit for limit in limits if limit is not None)
    return (
        f"Not like for like: {found.label} runs {limits[0]} requests at once, speculation off {limits[1]}. Above {least} concurrent requests one side queues: "
        f"compare up to {least}, or pin the same limit on both sides.",
    )


def _logged_version(texts: Texts) -> str | None:
    return vllm_log.last_boot(texts.log).version


def _parsed(texts: Texts) -> Parsed:
    """The command as read, or one pieced together from what log and endpoint resolved."""
    if texts.command:
        return _command(texts.command)
    name = texts.engine or _engine_of(texts)
    return (
        _from_sglang(texts)
        if name == "sglang"
        else _from_vllm(texts)
        if name == "vllm"
        else Parsed(engine=named(name).name, argv=(), start=0, candidate=Candidate(algorithm=OFF, depth=0))
    )


def _command(text: str) -> Parsed:
    """A command line as typed, or an ExecStart with the engine inside a shell."""
    try:
        return recognise(shlex.split(text))[1]
    except NotAnEngine:
        return recognise(execstart.parse(text, execstart.Surroundings(unit="--command")).argv)[1]


def _engine_of(texts: Texts) -> str:
    info = texts.server_info or {}
    if "internal_states" in info or "speculative_num_steps" in info or "server_args=" in texts.log or "max_total_num_tokens=" in texts.log:
        return "sglang"
    if "vllm" in texts.metrics or "KV cache size:" in texts.log or "vLLM" in texts.log or "vllm_config" in info:
        return "vllm"
    raise NotAnEngine(command="(none given)", hint="give --command, or the log or the server info of an engine leadline knows")


def _from_sglang(texts: Texts) -> Parsed:
    told = {name: str(value) for name, value in (texts.server_info or {}).items() if isinstance(value, (str, int, float))}
    resolved = {**dict(sglang_log.last_boot(texts.log).arguments), **told}
    algorithm, steps = resolved.get("speculative_algorithm", "None"), resolved.get("speculative_num_steps", "None")
    drafts = resolved.get("speculative_num_draft_tokens", "None")
    depth = (
        int(steps) if steps.isdigit() and resolved.get("speculative_eagle_topk") != "None" else int(drafts) - 1 if drafts.isdigit() else 0
    )
    found = Candidate(algorithm=OFF, depth=0) if algorithm == "None" or depth < 1 else Candidate(algorithm=algorithm, depth=depth)
    return Parsed(engine="sglang", argv=(), start=0, candidate=found, model=resolved.get("model_path", ""))


def _from_vllm(texts: Texts) -> Parsed:
    boot = vllm_log.last_boot(texts.log)
    names = {"max_num_seqs": "max_running_requests", "tensor_parallel_size": "tp_size"}
    knobs = tuple(sorted((names.get(name, name), value) for name, value in boot.asked))
    found = Candidate(algorithm=boot.method, depth=boot.depth) if boot.method and boot.depth else Candidate(algorithm=OFF, depth=0)
    return Parsed(engine="vllm", argv=(), start=0, candidate=found, knobs=knobs, model=boot.model or "")
