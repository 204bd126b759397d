#!/usr/bin/env python3
"""Pack releases of SGLang for a GPU machine that has PyTorch 2.11 (CUDA 13) and a compiler, but no network.

    make_bundle.py [--wheels FOLDER] OUT.tar.xz 0.5.12.post1 [0.5.13.post1]

``--wheels`` keeps what is downloaded, and takes what lies there already.

Every release becomes a folder ``sglang-VERSION/``; what all of them need lies once in ``shared/``.  On the machine::

    tar -xJf OUT.tar.xz -C BUNDLE
    export PYTHONPATH=BUNDLE/sglang-0.5.12.post1:BUNDLE/shared

Left out, because they are hundreds of megabytes: the FA3, FlashMLA and Blackwell kernels (start the server with
``--attention-backend triton --sampling-backend pytorch --grammar-backend none``), the compiled parts of ``flashinfer``
(its sources are in; what is used is compiled at the first start) and everything that only other models or other hardware need.
The archive is one solid stream ordered so that the same file of two releases lies side by side: the second one costs little.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

# what the release notes pin, read from each wheel's metadata
RELEASES: dict[str, tuple[str, ...]] = {
    "0.5.12.post1": ("sglang-kernel==0.4.2.post2", "flashinfer_python==0.6.11.post1", "transformers==5.6.0", "tokenizers==0.22.2"),
    "0.5.13.post1": ("sglang-kernel==0.4.3", "flashinfer_python==0.6.12", "transformers==5.8.1", "tokenizers==0.22.2"),
}
# fmt: off
SHARED = [
    "annotated-types", "apache-tvm-ffi==0.1.9", "asttokens", "cffi", "compressed-tensors==0.20.1", "dill", "distro", "easydict",
    "executing", "fastapi", "gguf==0.19.0", "interegular", "ipython==9.18.1", "ipython_pygments_lexers", "jedi", "jiter", "jsonschema",
    "jsonschema-specifications", "loguru", "matplotlib-inline", "msgspec", "openai==2.6.1", "opentelemetry-api", "orjson", "parso",
    "partial-json-parser", "pexpect", "prompt_toolkit", "ptyprocess", "pure_eval", "pybase64", "pycparser", "pydantic==2.14.4",
    "pydantic_core==2.50.5", "python-multipart", "pyzmq", "referencing", "rpds-py", "setproctitle", "sniffio", "soundfile", "stack-data",
    "starlette", "torch_memory_saver", "traitlets", "typing-inspection", "uvicorn", "watchfiles", "wcwidth",
]
# fmt: on
DROP = (
    "sgl_kernel/flash_ops",
    "sgl_kernel/flashmla_ops",
    "sgl_kernel/sm100/",
    "sgl_kernel/spatial_ops",
    "jedi/third_party/",
    "tvm_ffi/3rdparty/libbacktrace/",
    "sglang/multimodal_gen/",
    "sglang/test/",
    "lib/",
    "lib64/",
    "include/",
    "bin/",
)
DROP_SUFFIXES = (".pyc", ".pyi", ".so.debug")


def download(names: list[str], folder: Path) -> list[Path]:
    platforms = [f"manylinux_2_{n}_x86_64" for n in range(17, 40)] + ["manylinux2014_x86_64", "manylinux1_x86_64", "any"]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)),
            *("--python-version", "3.12", "--implementation", "cp"),
            *(part for name in platforms for part in ("--platform", name)),
            *names,
        ],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return sorted(folder.glob("*.whl"))


def unpack(wheels: list[Path], site: Path) -> None:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for item in archive.infolist():
                name = item.filename
                head, _, tail = name.partition("/")
                if head.endswith(".data") and tail.split("/")[0] in ("purelib", "platlib"):
                    name = tail.partition("/")[2]
                if item.is_dir() or name.startswith(DROP) or name.endswith(DROP_SUFFIXES) or ".data/" in name:
                    continue
                path = site / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(item) as source, path.open("wb") as sink:
                    shutil.copyfileobj(source, sink)


def old(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Sources older than any kernel compiled from them, or a kernel carried from an earlier machine is compiled again."""
    member.mtime = 1_600_000_000
    return member


def pack(root: Path, out: Path) -> None:
    files = [path for path in root.rglob("*") if path.is_file()]
    files.sort(key=lambda path: (path.suffix, path.relative_to(root).parts[1:], path.relative_to(root).parts[0]))
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("wb") as sink:
        xz = subprocess.Popen(["xz", "-z", "-c", "-T1", "--lzma2=preset=6,dict=384MiB"], stdin=subprocess.PIPE, stdout=sink)
        assert xz.stdin is not None
        with tarfile.open(fileobj=xz.stdin, mode="w|") as archive:
            for path in files:
                archive.add(path, arcname=str(path.relative_to(root)), filter=old)
        xz.stdin.close()
        if xz.wait() != 0:
            raise SystemExit("xz failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("versions", nargs="+", choices=sorted(RELEASES))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        kept = asked.wheels.resolve() if asked.wheels else root / "wheels"
        unpack(download(SHARED, kept / "shared"), root / "site" / "shared")
        for version in asked.versions:
            wheels = download([f"sglang=={version}", *RELEASES[version]], kept / version)
            unpack(wheels, root / "site" / f"sglang-{version}")
        pack(root / "site", asked.out.resolve())
    print(f"{asked.out}: {asked.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
