"""How the house is laid out: rooms, names, sizes."""

from __future__ import annotations

import pytest

from harness.source_tree import ROOT, all_sources, package, pyproject, rooms

LINES_MAX = 500
VAGUE = {"utils", "util", "helpers", "helper", "common", "base", "manager", "core", "misc"}


def test_pyproject_names_exactly_the_rooms_that_there_are() -> None:
    hatch = pyproject()["tool"]["hatch"]["build"]
    lists = {
        "dev-mode-dirs": hatch["dev-mode-dirs"],
        "only-include": hatch["targets"]["wheel"]["only-include"],
        "sources": hatch["targets"]["wheel"]["sources"],
        "mypy_path": [
            path for path in pyproject()["tool"]["mypy"]["mypy_path"].split(":") if path != "tests"
        ],
    }
    for name, listed in lists.items():
        assert tuple(sorted(listed)) == rooms(), name


def test_makefile_names_exactly_the_rooms_that_there_are() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith("ROOMS :="))
    assert tuple(sorted(line.removeprefix("ROOMS :=").split())) == rooms()


@pytest.mark.parametrize("room", rooms())
def test_room_shares_the_namespace_and_is_typed(room: str) -> None:
    shared = ROOT / room / "rollstream"
    assert [path.name for path in shared.iterdir() if path.name != "__pycache__"] == [room]
    assert (package(room) / "py.typed").is_file()


@pytest.mark.parametrize("room", rooms())
def test_map_of_a_room_is_the_docstring_of_its_package(room: str) -> None:
    text = (package(room) / "__init__.py").read_text(encoding="utf-8")
    assert text.startswith('"""')


def test_no_file_is_too_long_to_read() -> None:
    files = [path for _, path in all_sources()] + sorted((ROOT / "tests").rglob("*.py"))
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in files
    }
    assert {path: lines for path, lines in lengths.items() if lines > LINES_MAX} == {}


def test_files_and_folders_are_named_for_what_they_do() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for room, path in all_sources()
        if VAGUE & {part.removesuffix(".py") for part in path.relative_to(package(room)).parts}
    ]
    assert wrong == []
