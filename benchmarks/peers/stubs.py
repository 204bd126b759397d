"""Run a peer's benchmark client from its wheel without the engine behind it: everything else of the package is a stand-in.

The client's own code stays as it is; what it imports from the engine (torch, CUDA helpers, model code) is replaced by
modules whose every attribute is an empty class.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from pathlib import Path


class Stub(types.ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__init__": lambda self, *a, **k: None, "__class_getitem__": classmethod(lambda cls, _: cls)})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for every module below ``roots`` that is not below ``real``."""

    def __init__(self, roots: Sequence[str], real: Sequence[str], parents: Sequence[str]) -> None:
        self.roots, self.real, self.parents = roots, real, parents

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if not any(name == root or name.startswith(root + ".") for root in self.roots):
            return None
        if any(name == real or name.startswith(real + ".") for real in self.real):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = Stub(spec.name)
        module.__path__ = []
        if spec.name in self.parents:  # a package whose real children are wanted, without running its __init__
            module.__path__ = [str(Path(entry) / Path(*spec.name.split("."))) for entry in sys.path if entry]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def install(roots: Sequence[str], real: Sequence[str], parents: Sequence[str]) -> None:
    sys.meta_path.insert(0, Finder(roots, real, parents))


def stub(name: str, **attributes: object) -> None:
    module = importlib.import_module(name)
    for key, value in attributes.items():
        setattr(module, key, value)
