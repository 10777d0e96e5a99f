"""``examples/multi_turn``: each step as it happens, through a pool, into a better policy."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from examples.multi_turn.lake import ENVIRONMENT
from examples.multi_turn.run import run_multi_turn


@pytest.mark.broker
@pytest.mark.timeout(600)
@pytest.mark.proves("B1", "F11")
def test_an_agent_learns_to_cross_the_lake(tmp_path: Path) -> None:
    said = io.StringIO()
    result = run_multi_turn(tmp_path / "run", console=Console(file=said))
    # Without a policy that knows anything one walk in 70 reaches the goal.
    assert result.history.first_reward(ENVIRONMENT) < 0.2
    assert result.history.recent_reward(ENVIRONMENT) > 0.8, said.getvalue()
    assert result.audited.holds, result.audited.problems
    assert "ended" not in said.getvalue(), "no worker died"
    assert (tmp_path / "run" / "learning_curve.png").read_bytes()[1:4] == b"PNG"
