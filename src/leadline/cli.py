"""The command line: data on stdout, narration on stderr, documented exit codes. With ``--json`` it is the public API."""

from __future__ import annotations

import atexit
import errno
import gc
import json
import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from .errors import ConfigError, DiskFull, Interrupted, LeadlineError

if TYPE_CHECKING:
    from .bench import BenchResult, Compared
    from .config import Settings

app = typer.Typer(
    name="leadline",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Find how deep an LLM inference service can speculate before it runs aground, and leave it at the best point that holds.",
    epilog="TARGET is ssh://[user@]host[:port]/NAME.service, systemd:NAME.service, systemd-user:NAME.service, process:COMMAND "
    "(all that follows belongs to the command), or, for bench and doctor, an http(s):// URL. "
    "Exit codes: 0 done, 2 usage, 10-19 input, 20-29 host, 30-39 service, 40-49 journal, 50-59 measuring; doctor: 0 nothing failed, 1 failed, 2 unknown.",
)

COLLECT_AFTER = (50_000, 20, 20)
"""For :func:`gc.set_threshold`: records make no cycles, and looking through all that is imported after every 700 new objects is a tenth of a
short run."""

TargetArg = Annotated[str, typer.Argument(metavar="TARGET", help="the service, see below")]
JsonFlag = Annotated[bool, typer.Option("--json", help="print the result as JSON on stdout")]
ConfigOpt = Annotated[Path | None, typer.Option("--config", "-c", help="leadline.toml to read (default: ./leadline.toml if it is there)")]
ObserveOpt = Annotated[
    str | None, typer.Option("--observe-traffic", metavar="TIME", help="watch the service's own traffic for so long first, e.g. 10m")
]
PrometheusOpt = Annotated[str | None, typer.Option(metavar="URL", help="take the traffic of the last hour from this Prometheus server")]
MatchOpt = Annotated[str | None, typer.Option(metavar="MATCHERS", help="the service's series there, e.g. 'instance=\"gpu1:30000\"'")]
InputOpt = Annotated[int | None, typer.Option(help="input tokens a request, as the server counts them (default: the prompts as they are)")]
CampaignArg = Annotated[str | None, typer.Argument(metavar="[CAMPAIGN]", help="id or beginning of one; the newest when left out")]


def emit(value: object) -> None:
    """Data on stdout, as JSON."""
    import msgspec

    sys.stdout.write(json.dumps(msgspec.to_builtins(value, enc_hook=str), indent=2) + "\n")


def settings_from(config: Path | None, changes: dict[str, dict[str, Any]]) -> Settings:
    """``leadline.toml`` with the flags that were given on top. Raises ConfigError."""
    import msgspec

    from .config import Settings, parse

    path = config or Path("leadline.toml")
    if config is not None and not path.exists():
        raise ConfigError(place=path, what="no such file", fix="give the path of a leadline.toml, or leave --config out")
    settings = parse(path.read_text(), str(path)) if path.exists() else Settings()
    merged = msgspec.to_builtins(settings)
    for section, values in changes.items():
        merged[section].update({key: value for key, value in values.items() if value is not None})
    try:
        return msgspec.convert(merged, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(place="command line", what=str(error), fix="see --help for what each option takes") from None


def numbers(text: str | None, option: str) -> list[int] | None:
    """``"1,4,16"`` -> [1, 4, 16]. Raises ConfigError."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(place=option, what=f"{text!r} is no list of whole numbers", fix=f"write for example {option} 1,4,16") from None


def words(text: str | None) -> list[str] | None:
    """``"chat,copy"`` -> ["chat", "copy"]."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def minutes(text: str | None, option: str) -> float | None:
    """``"10m"`` -> 10.0; ``90s``, ``10m`` or ``1h``. Raises ConfigError."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if found is None or not float(found.group(1)):
        raise ConfigError(place=option, what=f"{text!r} is no length of time", fix=f"write for example {option} 10m (or 90s, 1h)")
    return float(found.group(1)) * {"s": 1 / 60, "m": 1.0, "h": 60.0}[found.group(2)]


def traffic_changes(observe: str | None, prometheus: str | None, match: str | None) -> dict[str, Any]:
    """The ``[traffic]`` that the flags ask for; naming one source on the command line leaves the other of the file out."""
    changes: dict[str, Any] = {"watch_minutes": minutes(observe, "--observe-traffic"), "prometheus": prometheus, "match": match}
    if observe is not None and prometheus is None:
        changes["prometheus"] = ""
    if prometheus is not None and observe is None:
        changes["watch_minutes"] = 0.0
    return changes


def text_of(path: Path | None, option: str) -> str:
    """A file's text, empty when none was given. Raises ConfigError."""
    if path is None:
        return ""
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        raise ConfigError(place=option, what=f"{path} cannot be read: {error.strerror}", fix="give the path of a readable file") from None


def json_of(path: Path | None, option: str) -> dict[str, object] | None:
    """A file's JSON object, ``None`` when none was given. Raises ConfigError."""
    if path is None:
        return None
    fix = "give the file as the engine or the model wrote it"
    try:
        found = json.loads(text_of(path, option))
    except json.JSONDecodeError as error:
        raise ConfigError(place=f"{option} {path}", what=f"not valid JSON: {error}", fix=fix) from None
    if not isinstance(found, dict):
        raise ConfigError(place=f"{option} {path}", what="not a JSON object", fix=fix)
    return found


# -- verbs -------------------------------------------------------------------------------------------------------------


@app.command(epilog="Example: leadline tune process:llama-server -m model.gguf -md draft.gguf --port 8080")
def tune(
    target: TargetArg,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask before the first launch")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="start a new campaign even if one of this target was interrupted")] = False,
    concurrency: Annotated[str | None, typer.Option(help="levels, for example 1,4,16")] = None,
    workloads: Annotated[str | None, typer.Option("--workload", help="workloads, for example chat,copy, or a JSONL file")] = None,
    objective: Annotated[str | None, typer.Option(help="single, peak, balanced, goodput, a mix such as 1:0.7,4:0.3, or observed")] = None,
    observe_traffic: ObserveOpt = None,
    prometheus: PrometheusOpt = None,
    prometheus_match: MatchOpt = None,
    ask: Annotated[list[str] | None, typer.Option(help="a candidate to launch in any case, e.g. 'EAGLE 10' (repeatable)")] = None,
    algorithms: Annotated[
        str | None, typer.Option("--algorithm", help="methods to consider, in the engine's words, e.g. draft-simple")
    ] = None,
    depths: Annotated[str | None, typer.Option(help="depths to consider, for example 1,2,3,5,8")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="output tokens a request")] = None,
    input_tokens: InputOpt = None,
    max_launches: Annotated[int | None, typer.Option(help="budget of launches")] = None,
    max_minutes: Annotated[float | None, typer.Option(help="budget of time")] = None,
    config: ConfigOpt = None,
    as_json: JsonFlag = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no narration")] = False,
) -> None:
    """Run a campaign: plan, confirm, trials, verdict. The service is restored as found; `apply` makes the winner permanent."""
    from . import verbs

    watched = observe_traffic is not None or prometheus is not None
    settings = settings_from(
        config,
        {
            "tune": {
                "objective": objective or ("observed" if watched else None),
                "ask": ask,
                "algorithms": words(algorithms),
                "depths": numbers(depths, "--depths"),
                "max_launches": max_launches,
                "max_minutes": max_minutes,
            },
            "measure": {
                "concurrency": numbers(concurrency, "--concurrency"),
                "workloads": words(workloads),
                "max_tokens": max_tokens,
                "input_tokens": input_tokens,
            },
            "traffic": traffic_changes(observe_traffic, prometheus, prometheus_match),
        },
    )
    known = verbs.tune(target, settings, yes=yes, fresh=fresh, quiet=quiet)
    _print_report(known, as_json)


@app.command(epilog="Example: leadline demo --yes")
def demo(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask before the first launch")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="start anew even if a demo was interrupted")] = False,
    as_json: JsonFlag = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no narration")] = False,
) -> None:
    """The same campaign on a real llama.cpp server with a real small model, on this machine."""
    from . import verbs

    known = verbs.demo(yes=yes, fresh=fresh, quiet=quiet)
    _print_report(known, as_json)


@app.command(epilog="Example: leadline status --json")
def status(
    campaign: CampaignArg = None,
    everything: Annotated[bool, typer.Option("--all", help="every campaign of this machine")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Where a campaign stands: trials, best so far, what is left to do."""
    from . import verbs

    rows = verbs.status(None if everything else campaign, everything=everything)
    if as_json:
        emit(rows)
        return
    for row in rows:
        sys.stdout.write(
            f"{row.campaign_id}  {row.state:12}  {row.trials} trials, {row.failed} failed  {row.target}\n"
            + (f"    {row.sentence}\n" if row.sentence else "")
        )


@app.command(epilog="Example: leadline inspect --server-log server.log --model-config config.json --json")
def inspect(
    target: Annotated[
        str | None, typer.Argument(metavar="[TARGET]", help="the service, see below; leave it out to read files only")
    ] = None,
    server_log: Annotated[Path | None, typer.Option(help="the engine's log of one start")] = None,
    server_info: Annotated[Path | None, typer.Option(help="JSON of /server_info")] = None,
    model_config: Annotated[Path | None, typer.Option(help="the model's config.json")] = None,
    draft_config: Annotated[Path | None, typer.Option(help="the draft model's config.json")] = None,
    metrics: Annotated[Path | None, typer.Option(help="text of /metrics")] = None,
    command: Annotated[str, typer.Option(help="the command that starts the server")] = "",
    engine: Annotated[str, typer.Option(help="sglang or vllm, where nothing else tells")] = "",
    version: Annotated[str | None, typer.Option(help="the engine's release, where nothing else tells")] = None,
    depths: Annotated[str | None, typer.Option(help="depths to show without a target, for example 0,1,2,3,5,8,10")] = None,
    noted: Annotated[list[str] | None, typer.Option(help="a row of a table, DEPTH:TOKENS/RUNNING, to hold against it (repeatable)")] = None,
    tokens_in: Annotated[int, typer.Option(min=1, help="prompt tokens of a request, for the column of requests that fit")] = 4096,
    tokens_out: Annotated[int, typer.Option(min=1, help="output tokens of a request")] = 1024,
    observe_traffic: ObserveOpt = None,
    prometheus: PrometheusOpt = None,
    prometheus_match: MatchOpt = None,
    config: ConfigOpt = None,
    as_json: JsonFlag = False,
) -> None:
    """Look at a service: engine, version, knobs, capacity now, and what other depths would hold. Touches nothing."""
    from . import inspecting, verbs
    from .inspection import DEPTHS, Texts, noted_row, of
    from .inspection import inspect as look

    watch = observe_traffic is not None or prometheus is not None
    if target is None and watch:
        raise ConfigError(place="--observe-traffic", what="files have no traffic", fix="name the service as TARGET")
    if target is None:
        given = Texts(
            command=command,
            engine=engine,
            version=version,
            log=text_of(server_log, "--server-log"),
            metrics=text_of(metrics, "--metrics"),
            server_info=json_of(server_info, "--server-info"),
            model_config=json_of(model_config, "--model-config"),
            draft_config=json_of(draft_config, "--draft-config"),
        )
        found = look(given, numbers(depths, "--depths") or DEPTHS, [noted_row(row) for row in noted or ()])
        if as_json:
            emit(found.json())
        else:
            sys.stdout.write(found.table(tokens_in, tokens_out))
        return
    changes = {"traffic": traffic_changes(observe_traffic, prometheus, prometheus_match)}
    seen = verbs.inspect(target, settings_from(config, changes), watch=watch)
    found = of(seen.engine, seen.version, seen.found, seen.capacity, seen.frontier)
    if as_json:
        import msgspec

        emit({**found.json(), "candidates": seen.frontier, "service": msgspec.structs.replace(seen, frontier=())})
    else:
        sys.stdout.write(inspecting.text(seen) + "\n" + found.table(tokens_in, tokens_out))


@app.command(epilog="Example: leadline restore ssh://ops@gpu1/llm.service")
def restore(
    target: Annotated[str | None, typer.Argument(metavar="[TARGET]", help="the service; the newest campaign's when left out")] = None,
    force: Annotated[bool, typer.Option("--force", help="even if another campaign holds the service and still lives")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Put the service back as found: a trial that stands, else what `apply` left. Needs no journal and works from any machine."""
    from . import verbs

    said = verbs.restore(target, force=force)
    if as_json:
        emit({"restored": True, "what": said})
    else:
        sys.stdout.write(said.rstrip() + "\n")


@app.command(epilog="Example: leadline apply --yes")
def apply(
    campaign: CampaignArg = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Make a campaign's verdict permanent, and verify it by asking the service. `restore` takes it back."""
    from . import verbs

    said = verbs.apply(campaign, yes=yes)
    if as_json:
        emit({"applied": True, "what": said})
    else:
        sys.stdout.write(said.rstrip() + "\n")


@app.command(epilog="Example: leadline report --html report.html")
def report(
    campaign: CampaignArg = None,
    html: Annotated[Path | None, typer.Option(help="write the page to this file: one file, no network; - is stdout")] = None,
    md: Annotated[Path | None, typer.Option(help="write Markdown to this file; - is stdout")] = None,
    diff: Annotated[
        str | None, typer.Option(metavar="OTHER", help="compare with another campaign: OTHER is before, CAMPAIGN is after")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """The verdict and what it rests on, as text, or as a page to forward."""
    from . import following

    sys.stdout.write(following.report_on(campaign, html=html, md=md, other=diff, as_json=as_json))


@app.command(
    epilog="Example: leadline bench http://127.0.0.1:8080 -n 1,8,64 --out before.json; then --compare before.json. "
    "A workload is one of chat, copy, edit, summarise, extract, or a file: OpenAI messages, ShareGPT, the custom formats of vllm bench "
    "serve and sglang.bench_serving, or recorded traffic with at_s and session."
)
def bench(
    target: Annotated[
        str, typer.Argument(metavar="TARGET|URL", help="a server's URL, or a service that runs; with --compare: a result file")
    ],
    concurrency: Annotated[str | None, typer.Option("--concurrency", "-n", help="levels, for example 1,4,16")] = None,
    rate: Annotated[str | None, typer.Option(help="open loop instead: arrivals a second, for example 2,8")] = None,
    workloads: Annotated[str | None, typer.Option("--workload", help="workloads, for example chat,copy, or a JSONL file")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="output tokens a request")] = None,
    input_tokens: InputOpt = None,
    cache: Annotated[str | None, typer.Option(help="prefix cache: cold, warm or production")] = None,
    blocks: Annotated[int | None, typer.Option(help="at most this many blocks a level")] = None,
    seed: Annotated[int | None, typer.Option(help="another seed, other prompts")] = None,
    model: Annotated[str, typer.Option(help="model name to ask for (default: the first of /v1/models)")] = "",
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="ask the server to generate max-tokens always")] = False,
    count_chunks: Annotated[bool, typer.Option("--count-chunks", help="ask the server for the token count of every chunk")] = False,
    extra_body: Annotated[str, typer.Option(metavar="JSON", help="further fields of every request, for example '{\"top_k\": 1}'")] = "",
    header: Annotated[list[str] | None, typer.Option(help="'Name: value', repeatable (authorisation)")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="do not verify the server's certificate")] = False,
    out: Annotated[Path | None, typer.Option(help="write the result here, after every block")] = None,
    compare: Annotated[Path | None, typer.Option(help="compare with this earlier result")] = None,
    export: Annotated[list[str] | None, typer.Option(help="vllm=FILE or sglang=FILE, repeatable: the format of their own results")] = None,
    traces: Annotated[Path | None, typer.Option(help="keep the raw traces in this folder")] = None,
    config: ConfigOpt = None,
    as_json: JsonFlag = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no narration")] = False,
) -> None:
    """Throughput, latency and acceptance of a server as it stands. Touches nothing."""
    from . import bench as benching
    from . import measure
    from .targets import parse_target

    earlier = benching.load(compare) if compare is not None else None
    exports = benching.exports(export or [])
    changes = {"concurrency": numbers(concurrency, "--concurrency"), "workloads": words(workloads), "max_tokens": max_tokens}
    more = {"input_tokens": input_tokens, "cache": cache, "max_blocks": blocks, "seed": seed}
    settings = settings_from(config, {"measure": {**changes, **more}})
    if earlier is not None and Path(target).is_file():
        _print_bench(benching.load(Path(target)), earlier, exports, as_json, measured=False)
        return
    options = measure.Options(
        ignore_eos=ignore_eos,
        count_chunks=count_chunks,
        extra=benching.extra_body(extra_body),
        headers=benching.headers(header or []),
        verify=not insecure,
        keep=str(traces or ""),
    )
    if earlier is not None:
        benching.check_conditions(earlier, workloads=measure.digest(settings.measure), asked=benching.asked(options))
    rates, label, where = benching.rates(rate), str(out or ""), parse_target(target)
    benching.check_places(benching.planned_levels(settings.measure, rates), out=out, exports=exports, traces=traces)
    if where.kind == "http":  # what a service needs takes longer to load than the load to begin
        show = None if quiet else benching.show_line
        result = benching.run(where.url, settings.measure, model=model, rates=rates, options=options, out=out, label=label, show=show)
    else:
        from . import verbs

        result = verbs.bench(target, settings, model=model, rates=rates, options=options, out=out, label=label, quiet=quiet)
    _print_bench(result, earlier, exports, as_json, measured=True)


@app.command(epilog="Example: leadline doctor ssh://ops@gpu1/llm.service, or: leadline doctor --log server.log --json")
def doctor(
    target: Annotated[str | None, typer.Argument(metavar="[TARGET]", help="the service, see `leadline --help`; or hand over files")] = None,
    log: Annotated[
        list[str] | None, typer.Option("--log", help="a server log, journal, `systemctl show` output, ... (repeatable; - = stdin)")
    ] = None,
    symptom: Annotated[str, typer.Option(help="what you see, in your words: some questions cannot be decided without it")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Why it is down, with evidence, or that it is well. Touches nothing. Exit status: 0 nothing failed, 1 failed, 2 unknown."""
    from . import doctor as consultation

    findings = consultation.examine(target, log or (), symptom=symptom)
    sys.stdout.write(consultation.as_json(findings) + "\n" if as_json else consultation.as_text(findings))
    sys.exit(consultation.exit_status(findings))


@app.command(epilog="Example: leadline watch")
def watch(campaign: CampaignArg = None, as_json: JsonFlag = False) -> None:
    """Follow a running campaign in this terminal; ends with it."""
    from . import following

    following.watch_one(campaign, as_json=as_json)


@app.command(epilog="Example: leadline serve --port 8765")
def serve(
    campaign: CampaignArg = None,
    host: Annotated[
        str, typer.Option(help="address to listen on; anything but the loopback shows the report to your network")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on; 0 takes a free one")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Follow a campaign in a browser: read-only, on this machine unless told otherwise."""
    from . import following

    following.serve_one(campaign, host=host, port=port, as_json=as_json)


def _print_report(known: Any, as_json: bool) -> None:
    from . import following, report

    if as_json:
        emit(report.as_json(known))
    else:
        sys.stdout.write(following.on_screen(known))


def _print_bench(
    result: BenchResult, earlier: BenchResult | None, exports: Sequence[tuple[str, Path]], as_json: bool, *, measured: bool
) -> None:
    """Print a result before anything can go wrong with what is asked for beside it; in JSON, an error goes with it into one document."""
    from . import bench as benching

    compared: tuple[Compared, ...] = ()
    failure: LeadlineError | None = None
    if not as_json:
        sys.stdout.write(benching.text(result))
    try:
        for style, place in exports:
            benching.export(result, style, place)
        if measured:
            benching.check_served(result)
        compared = benching.compare(earlier, result) if earlier is not None else ()
    except LeadlineError as error:
        failure = error
    if as_json:
        said = {"result": result, "figures": [benching.figures(done) for done in result.levels], "compared": compared}
        emit({**said, **(failure.as_dict() if failure is not None else {})})
    elif compared:
        sys.stdout.write(benching.comparison_text(compared))
    if failure is not None:
        _complain(failure)


# -- the edge ----------------------------------------------------------------------------------------------------------


def gather_process(argv: list[str]) -> list[str]:
    """``process:CMD ARG ...`` takes all that follows: join it into one argument, so that the command's own options stay its own.

    A quoted ``'process:CMD ARG ...'`` is complete already, and leadline's options may follow it.
    """
    for index, argument in enumerate(argv):
        if argument.startswith("process:"):
            if any(character.isspace() for character in argument) or index == len(argv) - 1:
                return argv
            rest = [argument.removeprefix("process:"), *argv[index + 1 :]]
            return [*argv[:index], "process:" + shlex.join(rest)]
    return argv


def main() -> NoReturn:
    """Entry point: every error becomes a message, a next step and its exit status."""
    gc.set_threshold(*COLLECT_AFTER)
    atexit.register(gc.freeze)  # at its end the interpreter would look three more times through all that lives
    arguments = gather_process(sys.argv[1:])
    _open_what_is_closed()
    signal.signal(signal.SIGTERM, _interrupt)
    if arguments[:1] == ["bench"] and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # not under nohup
        signal.signal(signal.SIGHUP, _interrupt)  # the terminal was closed: leave no trace behind
    try:
        status = app(args=arguments, prog_name="leadline", standalone_mode=False)
        if status == Interrupted.exit_code:  # what typer makes of a KeyboardInterrupt
            raise KeyboardInterrupt
        sys.stdout.flush()  # what cannot be written is told here, not when the interpreter ends
        if isinstance(status, int) and status:
            sys.exit(status)
    except LeadlineError as error:
        _leave(error, arguments)
    except KeyboardInterrupt:
        _leave(_interrupted(arguments), arguments)
    except BrokenPipeError:
        _close_stdout()
        sys.exit(0)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            _report(error, arguments)
        _leave(DiskFull(path=error.filename or "standard output"), arguments)
    except Exception as failure:  # noqa: BLE001  # the edge of the command line: anything else is a defect, shown whole
        usage = getattr(failure, "format_message", None)
        if usage is not None:
            sys.stderr.write(f"error: {usage()}\n next: leadline --help\n")
            sys.exit(getattr(failure, "exit_code", 2))
        _report(failure, arguments)
    sys.exit(0)


def _open_what_is_closed() -> None:
    """Give a standard stream that this process was started without (``2>&-``) to nobody, before a file gets its number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115  # open as long as the process
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _close_stdout() -> None:
    """What is left of the output goes nowhere: the interpreter would try again, and fail again, when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _report(failure: Exception, arguments: list[str]) -> NoReturn:
    """A defect, shown whole."""
    traceback.print_exception(failure)
    _leave(LeadlineError(what=f"{type(failure).__name__}: {failure}"), arguments)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _interrupted(arguments: Sequence[str]) -> Interrupted:
    """What is true of the verb that was interrupted, and how it goes on."""
    verb, again = "".join(arguments[:1]), "run the same command again"
    if verb in ("tune", "demo"):
        return Interrupted(what="the service stands as it was found", fix=f"{again}: the campaign resumes from its journal")
    if verb == "apply":
        return Interrupted(what="the change may not be complete", fix="take it back with `leadline restore`, then apply again")
    if verb == "restore":
        return Interrupted(what="the service may not stand as it was found yet", fix=again)
    if verb == "bench":
        return _interrupted_bench(arguments, again)
    return Interrupted(what="no service was touched", fix=again)


def _interrupted_bench(arguments: Sequence[str], again: str) -> Interrupted:
    started = any(argument.startswith("process:") for argument in arguments)
    kept = any(argument.partition("=")[0] == "--out" for argument in arguments)
    return Interrupted(
        what="nothing was changed" + (", and the server that was to be measured does not run any more" if started else ""),
        fix=again + ("; the blocks that were complete, if any, are in the file of --out" if kept else ""),
    )


def _leave(error: LeadlineError, arguments: list[str]) -> NoReturn:
    """Message and next step on stderr (and as JSON on stdout where JSON was asked for); ends the process."""
    try:
        if "--json" in arguments:
            sys.stdout.write(json.dumps(error.as_dict()) + "\n")
        sys.stdout.flush()
    except OSError:
        _close_stdout()
    _complain(error)


def _complain(error: LeadlineError) -> NoReturn:
    """Message and next step on stderr; ends the process. What a server said may stand in it: a terminal must not obey that."""
    text = f"error: {error.message}\n next: {error.next}\n ({error.id}, exit {error.exit_code})\n"
    sys.stderr.write("".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text))
    sys.exit(error.exit_code)
