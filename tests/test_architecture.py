"""docs/architecture.md equals the code: modules, their first lines, and the layers of the contract."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "leadline"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- generated: {} -->\n", "<!-- end: {} -->\n"


def modules() -> dict[str, str]:
    """Module path below the package -> first line of its docstring."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        found[name.removesuffix(".__init__") if name != "__init__" else "(leadline)"] = docstring.partition("\n")[0]
    return found


def layers() -> list[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return list(next(contract for contract in contracts if contract["type"] == "layers")["layers"])


def tree() -> str:
    return "| module | |\n|---|---|\n" + "".join(f"| `{name}` | {line} |\n" for name, line in modules().items())


def layer_list() -> str:
    return "".join(f"{number}. {layer.replace('(', '').replace(')', '')}\n" for number, layer in enumerate(layers(), 1))


GENERATED = {"modules": tree, "layers": layer_list}


def rendered(page: str) -> str:
    """The page with its generated parts made anew."""
    for name, make in GENERATED.items():
        begin, end = BEGIN.format(name), END.format(name)
        head, _, rest = page.partition(begin)
        _, _, tail = rest.partition(end)
        page = head + begin + make() + end + tail
    return page


def test_the_page_is_the_code() -> None:
    page = PAGE.read_text()
    assert page == rendered(page), "run: python tests/test_architecture.py"


def test_every_module_has_a_first_line() -> None:
    assert not [name for name, line in modules().items() if not line.endswith(".")]


def test_every_module_stands_in_a_layer() -> None:
    named = {part.strip(" ()") for layer in layers() for part in layer.split("|")}
    top = {name.split(".")[0] for name in modules()} - {"(leadline)"}
    assert top == named


def test_no_module_is_called_nothing() -> None:
    meaningless = {"utils", "util", "helpers", "common", "base", "manager", "mixin", "factory", "core"}
    assert not [name for name in modules() if set(name.split(".")) & meaningless]


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
    sys.exit(0)
