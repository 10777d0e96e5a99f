"""The map in the docstring of each folder names what is in the folder, and nothing else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from harness.source_tree import ROOT, roots

# Lines of a map: "- ``one``, ``two``  what they are".
ENTRY = re.compile(r"^- ((?:``[\w/]+``(?:, )?)+)", re.MULTILINE)
NAME = re.compile(r"``([\w]+)/?``")


def folders() -> list[Path]:
    """All but ``commands/``, of which ``rollstream --help`` is the map."""
    return sorted(
        path.parent
        for root in roots()
        for path in (ROOT / root / "rollstream").rglob("*/__init__.py")
        if path.parent.name != "commands"
    )


@pytest.mark.parametrize("folder", folders(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_map_of_a_folder_equals_the_folder(folder: Path) -> None:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    named = [name for entry in ENTRY.findall(text) for name in NAME.findall(entry)]
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    below = {path.name for path in folder.iterdir() if path.is_dir()} - {"__pycache__"}
    assert sorted(named) == sorted(modules | below)
