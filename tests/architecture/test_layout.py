"""How the repository is laid out: packages, names, sizes."""

from __future__ import annotations

import ast

import pytest

import rollstream
from harness.source_tree import (
    ROOT,
    all_sources,
    package_folder,
    packages,
    parsed,
    pyproject,
    roots,
)

LINES_MAX = 500
FUNCTION_LINES_MAX = 70
JOINING = {"__init__.py", "py.typed"}  # One root has the file that joins them all.
ADAPTERS = {"torch", "trl", "verl"}  # Of trainers/, a package for each library.
VAGUE = {"utils", "util", "helpers", "helper", "common", "base", "manager", "core", "misc"}


def test_pyproject_names_exactly_the_roots_that_there_are() -> None:
    hatch = pyproject()["tool"]["hatch"]["build"]
    wheel = hatch["targets"]["wheel"]["packages"]
    mypy_path = pyproject()["tool"]["mypy"]["mypy_path"].split(":")
    lists = {
        "dev-mode-dirs": hatch["dev-mode-dirs"],
        "packages": [path.removesuffix("/rollstream") for path in wheel],
        "mypy_path": [path for path in mypy_path if path != "tests"],
    }
    for name, listed in lists.items():
        assert tuple(sorted(listed)) == roots(), name


@pytest.mark.parametrize("root", roots())
def test_packages_of_a_root_share_the_namespace_and_are_typed(root: str) -> None:
    shared = ROOT / root / "rollstream"
    names = {path.name for path in shared.iterdir()} - {"__pycache__"}
    joining = JOINING if root == "runtime" else set[str]()
    assert names - joining == ADAPTERS if root == "trainers" else names == {root} | joining
    assert all((shared / name / "py.typed").is_file() for name in names - joining)


def test_version_is_the_one_that_pyproject_names() -> None:
    assert rollstream.__version__ == pyproject()["project"]["version"]


def test_rollstream_has_no_attributes_but_its_own() -> None:
    with pytest.raises(AttributeError, match="no attribute 'surprise'"):
        _ = rollstream.surprise


@pytest.mark.parametrize("package", packages())
def test_map_of_a_package_is_the_docstring_of_its_package(package: str) -> None:
    text = (package_folder(package) / "__init__.py").read_text(encoding="utf-8")
    assert text.startswith('"""')


def test_no_file_is_too_long_to_read() -> None:
    files = [path for _, path in all_sources()] + sorted((ROOT / "tests").rglob("*.py"))
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in files
    }
    assert {path: lines for path, lines in lengths.items() if lines > LINES_MAX} == {}


def test_no_function_is_too_long_to_read() -> None:
    files = [path for _, path in all_sources()] + sorted((ROOT / "tests").rglob("*.py"))
    lengths = {
        f"{path.relative_to(ROOT)}:{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in files
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES_MAX} == {}


def test_files_and_folders_are_named_for_what_they_do() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for package, path in all_sources()
        for part in path.relative_to(package_folder(package)).parts
        if part.removesuffix(".py") in VAGUE
    ]
    assert wrong == []
