"""``python -m leadline.launcher``: llama.cpp's server out of the package ``xllamacpp``, under llama-server's own flag names.

For the demo and for machines without a ``llama-server``: same HTTP API, same log, same exit status 1 on a bad argument.  Flags are
those of build 11549; each becomes a field of ``xllamacpp.CommonParams``, everything else keeps its default there, and
where the binding's default differs from the executable's (port, slots) the executable's is taken.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from .engines.llamacpp import TYPES
from .records import Record

AUTO_SLOTS = 4
"""``--parallel -1``: four slots over one shared KV cache."""


class BadArgument(Exception):
    """A command line that llama-server would refuse; the text is its message."""


class Option(Record, frozen=True):
    """A flag: its spellings, how its value is read, where it goes (``path`` in CommonParams), and ``fixed`` for switches."""

    spellings: tuple[str, ...]
    read: Callable[[str], Any] | None = None
    path: str = ""
    fixed: Any = None


def _value(spellings: str, read: Callable[[str], Any], path: str) -> Option:
    return Option(spellings=tuple(spellings.split()), read=read, path=path)


def _switch(spellings: str, path: str, fixed: Any) -> Option:
    return Option(spellings=tuple(spellings.split()), path=path, fixed=fixed)


def _layers(text: str) -> int:
    return {"auto": -1, "all": -2}[text] if text in ("auto", "all") else int(text)


def _cache_type(text: str) -> str:
    allowed = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
    if text not in allowed:
        raise ValueError(f"unsupported cache type: {text}")
    return text


def _one_of(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"unknown value: {text}")
        return text

    return read


def _positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError("invalid value")
    return int(text)


def _not_negative(text: str) -> int:
    if int(text) < 0:
        raise ValueError("invalid value")
    return int(text)


def _types(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in ("none", *TYPES):
            raise ValueError(f"unknown speculative type: {name}")
    return names


def _rates(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _map_options(kind: str) -> tuple[Option, ...]:
    field = kind.replace("-", "_")
    return tuple(
        _value(f"--spec-{kind}-{name.replace('_', '-')}", _positive, f"speculative.{field}.{name}")
        for name in ("size_n", "size_m", "min_hits")
    )


SPECULATIVE = (
    _value("--spec-type", _types, "speculative.types"),
    _value("-md --model-draft --spec-draft-model", str, "speculative.draft.mparams.path"),
    _value("--spec-draft-n-max", _not_negative, "speculative.draft.n_max"),
    _value("--spec-draft-n-min", _not_negative, "speculative.draft.n_min"),
    _value("--draft-p-min --spec-draft-p-min", float, "speculative.draft.p_min"),
    _value("--draft-p-split --spec-draft-p-split", float, "speculative.draft.p_split"),
    _value("-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl", _layers, "speculative.draft.n_gpu_layers"),
    _value("-ctkd --cache-type-k-draft --spec-draft-type-k", _cache_type, "speculative.draft.cache_type_k"),
    _value("-ctvd --cache-type-v-draft --spec-draft-type-v", _cache_type, "speculative.draft.cache_type_v"),
    _value("-td --threads-draft --spec-draft-threads", int, "speculative.draft.cpuparams.n_threads"),
    _value("-tbd --threads-batch-draft --spec-draft-threads-batch", int, "speculative.draft.cpuparams_batch.n_threads"),
    _switch("--spec-draft-backend-sampling", "speculative.draft.backend_sampling", True),
    _switch("--no-spec-draft-backend-sampling", "speculative.draft.backend_sampling", False),
    *_map_options("ngram-simple"),
    *_map_options("ngram-map-k"),
    *_map_options("ngram-map-k4v"),
    _value("--spec-ngram-mod-n-match", _positive, "speculative.ngram_mod.n_match"),
    _value("--spec-ngram-mod-n-min", _not_negative, "speculative.ngram_mod.n_min"),
    _value("--spec-ngram-mod-n-max", _positive, "speculative.ngram_mod.n_max"),
    _value("-lcs --lookup-cache-static", str, "speculative.ngram_cache.lookup_cache_static"),
    _value("-lcd --lookup-cache-dynamic", str, "speculative.ngram_cache.lookup_cache_dynamic"),
    _value("--spec-synth-len", float, "speculative.synth_len"),
    _value("--spec-synth-rates", _rates, "speculative.synth_rates"),
)

SERVER = (
    _value("-m --model", str, "model.path"),
    _value("-a --alias", lambda text: set(text.split(",")), "model_alias"),
    _value("--host", lambda text: [text], "hostnames"),
    _value("--port", int, "port"),
    _switch("--reuse-port", "reuse_port", True),
    _value("-np --parallel", int, "n_parallel"),
    _switch("-kvu --kv-unified", "kv_unified", True),
    _switch("-no-kvu --no-kv-unified", "kv_unified", False),
    _switch("-cb --cont-batching", "cont_batching", True),
    _switch("-nocb --no-cont-batching", "cont_batching", False),
    _value("-to --timeout", int, "timeout_read"),
    _value("--threads-http", int, "n_threads_http"),
    _value("--api-key", lambda text: text.split(","), "api_keys"),
    _switch("--metrics", "endpoint_metrics", True),
    _switch("--slots", "endpoint_slots", True),
    _switch("--no-slots", "endpoint_slots", False),
    _switch("--props", "endpoint_props", True),
    _switch("--ui --webui", "ui", True),
    _switch("--no-ui --no-webui", "ui", False),
    _value("-lv --verbosity --log-verbosity", int, "verbosity"),
    _switch("-v --verbose --log-verbose", "verbosity", 1 << 30),
    _value("--chat-template", str, "chat_template"),
    _switch("--jinja", "use_jinja", True),
    _switch("--no-jinja", "use_jinja", False),
)

CONTEXT = (
    _value("-c --ctx-size", int, "n_ctx"),
    _value("-n --predict --n-predict", int, "n_predict"),
    _value("-b --batch-size", _positive, "n_batch"),
    _value("-ub --ubatch-size", _positive, "n_ubatch"),
    _value("--keep", int, "n_keep"),
    _value("-t --threads", int, "cpuparams.n_threads"),
    _value("-tb --threads-batch", int, "cpuparams_batch.n_threads"),
    _value("--poll", int, "cpuparams.poll"),
    _value("-ngl --gpu-layers --n-gpu-layers", _layers, "n_gpu_layers"),
    _value("-mg --main-gpu", int, "main_gpu"),
    _value("-fa --flash-attn", _one_of("on", "off", "auto"), "flash_attn_type"),
    _value("-ctk --cache-type-k", _cache_type, "cache_type_k"),
    _value("-ctv --cache-type-v", _cache_type, "cache_type_v"),
    _value("-cram --cache-ram", int, "cache_ram_mib"),
    _value("--cache-reuse", int, "n_cache_reuse"),
    _value("-sps --slot-prompt-similarity", float, "slot_prompt_similarity"),
    _value("-fit --fit", lambda text: _one_of("on", "off")(text) == "on", "fit_params"),
    _value("-lm --load-mode", _one_of("auto", "none", "mmap", "mlock", "mmap+mlock", "dio"), "load_mode"),
    _switch("--cache-prompt", "cache_prompt", True),
    _switch("--no-cache-prompt", "cache_prompt", False),
    _switch("--context-shift", "ctx_shift", True),
    _switch("--no-context-shift", "ctx_shift", False),
    _switch("--swa-full", "swa_full", True),
    _switch("-kvo --kv-offload", "no_kv_offload", False),
    _switch("-nkvo --no-kv-offload", "no_kv_offload", True),
    _switch("--warmup", "warmup", True),
    _switch("--no-warmup", "warmup", False),
    _switch("--check-tensors", "check_tensors", True),
)

SAMPLING = (
    _value("-s --seed", lambda text: int(text) % (1 << 32), "sampling.seed"),
    _value("--temp --temperature", float, "sampling.temp"),
    _value("--top-k", int, "sampling.top_k"),
    _value("--top-p", float, "sampling.top_p"),
    _value("--min-p", float, "sampling.min_p"),
    _value("--repeat-last-n", int, "sampling.penalty_last_n"),
    _value("--repeat-penalty", float, "sampling.penalty_repeat"),
    _value("--presence-penalty", float, "sampling.penalty_present"),
    _value("--frequency-penalty", float, "sampling.penalty_freq"),
    _switch("--ignore-eos", "sampling.ignore_eos", True),
)

OPTIONS: Mapping[str, Option] = {
    spelling: option for group in (SPECULATIVE, SERVER, CONTEXT, SAMPLING) for option in group for spelling in option.spellings
}

REMOVED = {
    **dict.fromkeys(("--draft", "--draft-n", "--draft-max"), "--spec-draft-n-max or --spec-ngram-mod-n-max"),
    **dict.fromkeys(("--draft-min", "--draft-n-min"), "--spec-draft-n-min or --spec-ngram-mod-n-min"),
    "--spec-ngram-size-n": "the respective --spec-ngram-*-size-n or --spec-ngram-mod-n-match",
    "--spec-ngram-size-m": "the respective --spec-ngram-*-size-m",
    "--spec-ngram-min-hits": "the respective --spec-ngram-*-min-hits",
}


def read(arguments: list[str]) -> dict[str, Any]:
    """Field path -> value of every argument, in order. Raises BadArgument."""
    fields: dict[str, Any] = {}
    index = 0
    while index < len(arguments):
        word = arguments[index]
        plain = word.replace("_", "-") if word.startswith("--") else word
        option = OPTIONS.get(plain)
        if plain in REMOVED:
            raise BadArgument(f'error while handling argument "{word}": the argument has been removed. use {REMOVED[plain]}')
        if option is None:
            raise BadArgument(f"error: invalid argument: {word}")
        index += 1
        if option.read is None:
            fields[option.path] = option.fixed
            continue
        if index >= len(arguments):
            raise BadArgument(f'error while handling argument "{word}": expected value for argument')
        try:
            fields[option.path] = option.read(arguments[index])
        except ValueError as error:
            raise BadArgument(f'error while handling argument "{word}": {error}') from None
        index += 1
    if "model.path" not in fields:
        raise BadArgument("error: --model is required")
    return {"port": 8080, **_slots(fields)}


def _slots(fields: dict[str, Any]) -> dict[str, Any]:
    slots = fields.get("n_parallel", -1)
    if slots >= 1:
        return fields
    return {**fields, "n_parallel": AUTO_SLOTS, "kv_unified": fields.get("kv_unified", True)}


def params(fields: Mapping[str, Any], library: Any) -> Any:
    """``xllamacpp.CommonParams`` with the fields set; names become the library's enumerations."""
    made = library.CommonParams()
    for path, value in fields.items():
        *parents, last = path.split(".")
        node = made
        for name in parents:
            node = getattr(node, name)
        setattr(node, last, _native(last, value, library))
    return made


def _native(field: str, value: Any, library: Any) -> Any:
    if field == "types":
        kinds = library.common_speculative_type
        return [getattr(kinds, "COMMON_SPECULATIVE_TYPE_" + name.upper().replace("-", "_")) for name in value]
    if field.startswith("cache_type_"):
        return getattr(library.ggml_type, "GGML_TYPE_" + value.upper())
    if field == "flash_attn_type":
        names = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}
        return getattr(library.llama_flash_attn_type, "LLAMA_FLASH_ATTN_TYPE_" + names[value])
    if field == "load_mode":
        names = {"dio": "DIRECT_IO", "mmap+mlock": "MMAP_MLOCK"}
        return getattr(library.llama_load_mode, "LLAMA_LOAD_MODE_" + names.get(value, value.upper()))
    return value


def _leave_on_signal() -> None:
    """End on TERM or INT at once with status 0; the library's own way out waits forever for a request in flight."""
    wanted = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)

    def wait() -> NoReturn:
        signal.sigwait(wanted)
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def main(arguments: list[str]) -> int:
    if any(word in ("-h", "--help", "--usage") for word in arguments):
        print("llama-server's flags that this launcher takes:\n")
        print("\n".join(sorted({", ".join(option.spellings) for option in OPTIONS.values()})))
        return 0
    try:
        fields = read(arguments)
    except BadArgument as error:
        print(error, file=sys.stderr)
        return 1
    try:
        import xllamacpp
    except ImportError as error:
        print(f"error: {error}; install the engine with: pip install 'leadline[demo]'", file=sys.stderr)
        return 1
    if "--version" in arguments:
        print(f"xllamacpp {xllamacpp.__version__}")
        return 0
    _leave_on_signal()
    try:
        server = xllamacpp.Server(params(fields, xllamacpp))
    except RuntimeError as error:
        sys.stdout.flush()
        print(f"error: {error}", file=sys.stderr, flush=True)
        # the library's threads may still run; nothing of ours needs an orderly end
        os._exit(1)
    print(f"launcher: serving on {server.listening_address}", file=sys.stderr, flush=True)
    threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
