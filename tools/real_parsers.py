"""Hold rendered argument vectors against the real argument parsers of SGLang and vLLM. No GPU, no torch, no model.

    pip download --no-deps -d wheels sglang==0.5.17 vllm==0.33.0
    python -m venv venv && venv/bin/pip install msgspec pydantic regex numpy pyyaml cloudpickle cachetools packaging psutil fastapi
    PYTHONPATH=src venv/bin/python tools/real_parsers.py wheels/*.whl

Each wheel is unpacked (its Python files only) and its parser imported in a process of its own. Third-party packages that are not installed are
replaced by hollow modules; the parser and everything it reads from its own package are the release's.  For every candidate the
rendered vector must parse, the parsed values must be the candidate's, and leadline must read the vector back as the same candidate.
Ends with status 1 when anything is refused.  tools/README.md tells what was run.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import subprocess
import sys
import tempfile
import types
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar


class _Hollow(type):
    """A class that can be subclassed, called, subscripted, compared and asked for anything; stands for whatever is not installed."""

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _hollow(name)

    def __getitem__(cls, item: object) -> object:
        return cls

    def __iter__(cls) -> Iterator[object]:
        return iter(())

    def __add__(cls, other: object) -> object:
        return other

    def __radd__(cls, other: object) -> object:
        return other

    def __or__(cls, other: object) -> object:
        return cls

    def __ror__(cls, other: object) -> object:
        return cls

    def __lt__(cls, other: object) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __len__(cls) -> int:
        return 0

    def __contains__(cls, item: object) -> bool:
        return False

    def __bool__(cls) -> bool:
        return False


def _hollow(name: str) -> type:
    def call(cls: type, *args: object, **kwargs: object) -> object:
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]  # a decorator
        return object.__new__(cls)

    body = {
        "__new__": call,
        "__call__": lambda self, *args, **kwargs: args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self,
        "__getattr__": lambda self, key: _hollow(key),
        "__enter__": lambda self: self,
        "__exit__": lambda self, *a: None,
        "__iter__": lambda self: iter(()),
        "__get_pydantic_core_schema__": classmethod(lambda cls, source, handler: {"type": "any"}),
        "__init_subclass__": classmethod(lambda cls, **kwargs: None),
    }
    return _Hollow(name, (), body)


class _Missing(types.ModuleType):
    __path__: ClassVar[list[str]] = []
    __version__ = "99.0.0"

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        made = _hollow(name)
        setattr(self, name, made)
        return made


REAL = {
    "sglang": ("sglang.srt.server_args", "sglang.srt.arg_groups", "sglang.srt.environ", "sglang.srt.configs.linear_attn_model_registry"),
    "vllm": (
        "vllm.engine.arg_utils",
        "vllm.config",
        "vllm.utils",
        "vllm.envs",
        "vllm.logger",
        "vllm.logging_utils",
        "vllm.transformers_utils.utils",
    ),
}
"""Modules of the release that are imported as they are: the parser and what defines its arguments. The rest is hollow."""


HOLLOW = ("vllm.config.quantization",)
"""Parts of the above that compute with a hollow module's constants and define no argument of ours."""


class _Platform:
    """Stands for the device a release would find."""

    device_type = "cpu"

    def __getattr__(self, name: str) -> object:
        return _hollow(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes hollow modules: of the release, all but ``REAL`` (first in line); of third parties, what nobody finds (last in line)."""

    def __init__(self, package: str, first: bool) -> None:
        self.package, self.first = package, first

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        ours = name.partition(".")[0] == self.package
        if name.partition(".")[0] in ("leadline", *sys.stdlib_module_names) or ours is not self.first:
            return None
        if name in HOLLOW:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        if ours and any(name == real or name.startswith(real + ".") or real.startswith(name + ".") for real in REAL[self.package]):
            return None
        parent = sys.modules.get(name.rpartition(".")[0])
        if not ours and parent is not None and not isinstance(parent, _Missing):
            return None  # an installed package that asks for an optional part of itself
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Missing(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def sglang_parser() -> argparse.ArgumentParser:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser


def vllm_parser() -> argparse.ArgumentParser:
    from vllm.engine.arg_utils import AsyncEngineArgs

    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    parser = FlexibleArgumentParser()
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    return AsyncEngineArgs.add_cli_args(parser)


BASES = {
    "sglang": [
        "python3 -m sglang.launch_server --model-path /m --tp-size 2 --port 30001 --mem-fraction-static 0.8",
        "python3 -m sglang.launch_server --model-path=/m --speculative-algorithm=EAGLE --speculative-draft-model-path=/d --speculative-num-steps=3",
        "python3 -m sglang.launch_server --model-path /m --speculative-algo NEXTN --speculative-num-steps 1 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 2 --max-running-requests 48",
    ],
    "vllm": [
        "vllm serve /m --port 8001 --max-num-seqs 64",
        'vllm serve /m --speculative-config {"method":"mtp","num_speculative_tokens":2}',
        "vllm serve /m --speculative-config.method mtp --speculative-config.num_speculative_tokens 3",
        "vllm serve /m --spec-method mtp --spec-tokens 3",
        'vllm serve /m -sc {"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4}',
    ],
}


def candidates(engine: str) -> list[tuple[str, int, dict[str, str]]]:
    pin = {"max_running_requests": "20"}
    if engine == "sglang":
        tree = {"topk": "4", "num_draft_tokens": "16"}
        more = {
            "mem_fraction_static": "0.7",
            "mamba_full_memory_ratio": "0.8",
            "max_mamba_cache_size": "100",
            "disable_radix_cache": "true",
        }
        return [
            ("off", 0, {}),
            ("off", 0, pin),
            ("EAGLE", 5, {}),
            ("EAGLE", 10, pin),
            ("NEXTN", 2, more),
            ("EAGLE", 4, tree),
            ("NGRAM", 7, pin),
        ]
    schedule = {"num_speculative_tokens_per_batch_size": "[[1, 4, 3], [5, 64, 0]]"}
    return [
        ("off", 0, {}),
        ("off", 0, pin),
        ("mtp", 4, pin),
        ("ngram", 5, {"prompt_lookup_max": "3"}),
        ("mtp", 3, schedule),
        ("suffix", 8, {}),
    ]


def held(engine: str, parser: argparse.ArgumentParser, version: str) -> list[str]:
    """Every refusal, as text."""
    from leadline.engines import named
    from leadline.records import Candidate

    adapter = named(engine)
    failures: list[str] = []
    done = 0
    if _parses(parser, (*BASES[engine][0].split()[2 + (engine == "sglang") :], "--no-such-flag", "1")) is not None:
        failures.append(f"{version}: the parser takes anything, so it proves nothing")
    for base in BASES[engine]:
        found = adapter.parse(base.split())
        assert found is not None
        if not _parses(parser, found.argv[found.start :]):
            print(f"  {version}: this release does not take {' '.join(found.argv[found.start :])!r} (left out)")
            continue
        for algorithm, depth, settings in candidates(engine):
            candidate = Candidate(algorithm=algorithm, depth=depth, settings=tuple(sorted(settings.items())))
            argv = adapter.render(found, candidate)
            values = _parses(parser, argv[found.start :])
            back = adapter.parse(argv)
            assert back is not None
            done += 1
            if values is None:
                failures.append(f"{version}: refused: {' '.join(argv)}")
            elif (back.candidate.algorithm, back.candidate.depth) != (algorithm, depth):
                failures.append(f"{version}: read back as {back.candidate.label}: {' '.join(argv)}")
            else:
                failures += [f"{version}: {why}: {' '.join(argv)}" for why in _wrong(engine, values, candidate)]
    print(f"{engine} {version}: {done} vectors, {len(failures)} refused or misread")
    return failures


def _parses(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace | None:
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return parser.parse_args(list(words))
    except SystemExit:
        return None


def _wrong(engine: str, values: argparse.Namespace, candidate: object) -> list[str]:
    """Where the parser's own values are not the candidate's."""
    algorithm, depth, settings = candidate.algorithm, candidate.depth, dict(candidate.settings)  # type: ignore[attr-defined]
    if engine == "vllm":
        config = values.speculative_config or {}
        config = json.loads(config) if isinstance(config, str) else dict(config)
        tokens = config.get("num_speculative_tokens") or getattr(values, "spec_tokens", None) or 0
        method = config.get("method") or getattr(values, "spec_method", None)
        return [] if int(tokens) == depth and (not depth or method == algorithm) else [f"speculative config {config}"]
    got = (values.speculative_algorithm, values.speculative_num_steps, values.speculative_eagle_topk, values.speculative_num_draft_tokens)
    if not depth:
        wanted: tuple[object, ...] = (None, None, None, None)
    elif algorithm == "NGRAM":
        wanted = (algorithm, None, None, depth + 1)
    else:
        wanted = (algorithm, depth, int(settings.get("topk", "1")), int(settings.get("num_draft_tokens", depth + 1)))
    limit = settings.get("max_running_requests")
    wrong = [] if got == wanted else [f"parsed as {got}, wanted {wanted}"]
    return wrong + (
        [] if limit is None or values.max_running_requests == int(limit) else [f"limit parsed as {values.max_running_requests}"]
    )


def abbreviations(parser: argparse.ArgumentParser, version: str) -> list[str]:
    """Where a shortest prefix in leadline's table is not one this parser accepts for the same flag."""
    from leadline.engines import sglang_facts as facts

    wrong = []
    for flag in (facts.ALGORITHM, facts.STEPS, facts.TOPK, facts.DRAFT_TOKENS, *facts.KNOBS.values()):
        known = [name for name in flag.names if name in parser._option_string_actions]
        if not known or not flag.shortest:
            continue
        dest = parser._option_string_actions[known[0]].dest
        hits = {action.dest for name, action in parser._option_string_actions.items() if name.startswith(flag.shortest)}
        if hits != {dest}:
            wrong.append(f"{version}: {flag.shortest} stands for {sorted(hits)}, not only {dest}")
    return wrong


def child(engine: str, folder: str, version: str) -> int:
    sys.path.insert(0, folder)
    sys.meta_path.insert(0, _Finder(engine, first=True))
    sys.meta_path.append(_Finder(engine, first=False))
    package = types.ModuleType(engine)  # its own start-up code patches other libraries and is not wanted
    package.__path__ = [str(Path(folder) / engine)]
    sys.modules[engine] = package
    platforms = _Missing(f"{engine}.platforms")
    platforms.current_platform = _Platform()  # type: ignore[attr-defined]
    sys.modules[platforms.__name__] = platforms
    parser = sglang_parser() if engine == "sglang" else vllm_parser()
    failures = held(engine, parser, version)
    if engine == "sglang":
        failures += abbreviations(parser, version)
    print("\n".join(failures))
    return 1 if failures else 0


def main(wheels: Sequence[str]) -> int:
    status = 0
    for wheel in wheels:
        engine, version = Path(wheel).name.split("-")[:2]
        with tempfile.TemporaryDirectory() as folder:
            if Path(wheel).is_dir():
                folder = wheel
                version = Path(wheel).name.split("-", 1)[1]
                engine = "sglang" if (Path(wheel) / "sglang").is_dir() else "vllm"
            else:
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(folder, [n for n in archive.namelist() if n.endswith((".py", ".json", ".yaml"))])
            command = [sys.executable, __file__, "--child", engine, folder, version]
            status |= subprocess.run(command, check=False, timeout=300).returncode
    return 1 if status else 0


if __name__ == "__main__":
    raise SystemExit(child(*sys.argv[2:5]) if sys.argv[1:2] == ["--child"] else main(sys.argv[1:]))
