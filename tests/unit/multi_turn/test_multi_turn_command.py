"""The multi-turn example's command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from examples.multi_turn.__main__ import main


def test_missing_package_is_named_with_what_to_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    for module in ("run", "lake", "settings", "trainer", "learner", "policy"):
        monkeypatch.delitem(sys.modules, f"examples.multi_turn.{module}", raising=False)
    assert main(["--folder", str(tmp_path / "run")]) == 1
    told = "multi-turn: needs gymnasium; run `make install` in the clone\n"
    assert capsys.readouterr().err == told
    assert not (tmp_path / "run").exists()
