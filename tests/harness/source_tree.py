"""The repository as data: packages, source files, and what each file imports."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]


class Import(NamedTuple):
    """One imported module, by its full name, and where it is imported."""

    module: str
    line: int


@cache
def roots() -> tuple[str, ...]:
    """Folders of the repository that are source roots of ``rollstream``."""
    return tuple(sorted(path.parent.name for path in ROOT.glob("*/rollstream")))


@cache
def packages() -> tuple[str, ...]:
    """What is imported as ``rollstream.<package>``, of all roots."""
    return tuple(sorted(path.parent.name for path in ROOT.glob("*/rollstream/*/__init__.py")))


@cache
def package_folder(package: str) -> Path:
    """The folder that is imported as ``rollstream.<package>``."""
    (found,) = ROOT.glob(f"*/rollstream/{package}/__init__.py")
    return found.parent


@cache
def sources(package: str) -> tuple[Path, ...]:
    """Every Python file of a package."""
    return tuple(sorted(package_folder(package).rglob("*.py")))


def all_sources() -> Iterator[tuple[str, Path]]:
    """(package, file) of everything that ships."""
    for package in packages():
        for path in sources(package):
            yield package, path


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """What a file imports, anywhere in it; ``from a import b`` counts as both ``a`` and ``a.b``."""
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path}:{node.lineno}: a relative import"
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            found.append(Import(node.module, node.lineno))
            found += [Import(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return tuple(found)


def imports_of(path: Path, *modules: str) -> list[str]:
    """Where the file imports one of the modules, or something inside it."""
    return [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for module, line in imports(path)
        if any(module == wanted or module.startswith(f"{wanted}.") for wanted in modules)
    ]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
