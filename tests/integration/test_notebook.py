"""The notebook, executed as a reader would, from its first cell to its last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from harness.source_tree import ROOT

NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))
CELL_TIMEOUT_S = 120


@pytest.mark.proves("F12")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_goes_from_rollouts_to_plots(path: Path, tmp_path: Path) -> None:
    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in code), "it is committed without outputs"
    NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    outputs = [output for cell in code for output in cell.outputs]
    assert [one for one in outputs if one.get("name") == "stderr"] == []
    pictures = [one.data for one in outputs if one.output_type == "display_data"]
    assert sum("image/png" in data for data in pictures) == 2
