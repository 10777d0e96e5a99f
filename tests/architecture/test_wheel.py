"""The wheel holds what the tree holds."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.builders.wheel import WheelBuilder

from harness.source_tree import ROOT, packages


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    builder = WheelBuilder(str(ROOT))
    (built,) = builder.build(directory=str(folder), versions=["standard"])
    return ZipFile(Path(built))


def test_wheel_holds_every_file_of_every_package_and_nothing_else(wheel: ZipFile) -> None:
    in_tree = {
        f"rollstream/{path.relative_to(ROOT / package / 'rollstream').as_posix()}"
        for package in packages()
        for path in (ROOT / package / "rollstream").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    in_wheel = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert in_wheel == in_tree


def test_wheel_brings_the_command_and_the_licence(wheel: ZipFile) -> None:
    names = wheel.namelist()
    (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
    assert "rollstream = rollstream.console.entry:main" in wheel.read(entry_points).decode()
    assert any(name.endswith("licenses/LICENSE") for name in names)
