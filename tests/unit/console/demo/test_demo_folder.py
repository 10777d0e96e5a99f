"""The demo empties its own folder, and nobody else's."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from rollstream.console.demo.errors import FolderNotOurs
from rollstream.console.demo.run import run_demo


def test_a_folder_with_files_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "weights.pt"
    precious.write_text("a week of training")
    with pytest.raises(FolderNotOurs, match="name another with --folder"):
        run_demo(tmp_path, chaos=False, console=Console(quiet=True))
    assert precious.read_text() == "a week of training"
    assert list(tmp_path.iterdir()) == [precious]
