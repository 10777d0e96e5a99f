"""The examples, run as a reader would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 90.0


def run(example: str, folder: Path) -> list[str]:
    """The lines that it prints; it must not warn about anything."""
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / example],
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_policy_learns_on_the_in_memory_twin(tmp_path: Path) -> None:
    (line,) = run("01_train_on_the_in_memory_twin.py", tmp_path)
    rewards = [float(word.rstrip(",")) for word in line.split() if word[0].isdigit()]
    assert len(rewards) == 2, line
    first, last = rewards
    assert first < 0.3
    assert last > 0.9


@pytest.mark.proves("F3")
def test_a_successor_gets_the_batches_again_that_no_checkpoint_holds(tmp_path: Path) -> None:
    lines = run("02_resume_after_a_crash.py", tmp_path)
    assert lines[0] == "resumed at step 2"
    assert lines[1:3] == [f"step {n}: the same bytes as before the crash" for n in (2, 3)]
    assert lines[3:5] == [f"step {n}: new" for n in (4, 5)]  # Of both epochs' policies.
    assert lines[5].startswith("the first trainer, come back: Fenced")
    assert lines[6] == "12 problems trained on, each 1 time"


def test_every_example_is_run_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES.glob("*.py") if path.name not in text] == []
