"""Folders of a package: none imports another in a circle, and none holds more than one can see."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from harness.source_tree import ROOT, imports, package_folder, packages, sources

FILES_MAX = 15
# Packages in which some do.
IN_CIRCLES = {"producers", "store", "streams"}


def folder_of(module: str, package: Path) -> Path | None:
    """Which folder of the package holds the module; None: it is none of its modules."""
    path = package.joinpath(*module.split(".")[2:])
    return path.parent if path.with_suffix(".py").is_file() else None


@pytest.mark.parametrize("package", sorted({*packages()} - IN_CIRCLES))
def test_no_folders_of_a_package_import_one_another_in_a_circle(package: str) -> None:
    top = package_folder(package)
    graph: dict[Path, set[Path]] = {}
    for path in sources(package):
        if path.name == "__init__.py":
            continue  # It hands names on.
        for module, _ in imports(path):
            if module.startswith(f"rollstream.{package}."):
                folder = folder_of(module, top)
                if folder not in (None, path.parent):
                    graph.setdefault(path.parent, set()).add(folder)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = [str(folder.relative_to(ROOT)) for folder in error.args[1]]
        pytest.fail(f"these import one another: {' < '.join(circle)}")


@pytest.mark.parametrize("package", ["sampler", "folds"])
def test_no_folder_holds_more_files_than_one_can_see(package: str) -> None:
    counts: dict[str, int] = {}
    for path in sources(package):
        folder = str(path.parent.relative_to(ROOT))
        counts[folder] = counts.get(folder, 0) + 1
    assert {folder: count for folder, count in counts.items() if count > FILES_MAX} == {}
