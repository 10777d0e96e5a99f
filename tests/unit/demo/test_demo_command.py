"""The demo's command line: whose folder it empties, and how it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from examples.demo.__main__ import main


def test_a_folder_with_files_of_somebody_else_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    precious = tmp_path / "weights.pt"
    precious.write_text("a week of training")
    assert main(["--folder", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"demo: {tmp_path} holds files that no demo wrote")
    assert "name another with --folder" in line
    assert precious.read_text() == "a week of training"
    assert list(tmp_path.iterdir()) == [precious]


def test_missing_package_is_named_with_what_to_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    for module in ("run", "tasks"):
        monkeypatch.delitem(sys.modules, f"examples.demo.{module}", raising=False)
    assert main(["--folder", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "demo: needs reasoning_gym; run `make install` in the clone\n"
