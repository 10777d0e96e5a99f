"""The examples, run as a reader would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 90.0


def run(example: str, folder: Path, warns_of: str = "") -> list[str]:
    """The lines that it prints; it must not warn about anything else."""
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
    warnings = done.stderr.splitlines()
    assert [warns_of in line for line in warnings] == [True] * bool(warns_of), warnings
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


@pytest.mark.proves("A18", "F16")
def test_a_verifier_that_dies_before_it_commits_scores_each_group_once(tmp_path: Path) -> None:
    assert run("04_score_rewards_late.py", tmp_path) == [
        "life 1 of the verifier scored 3 groups",
        "life 2 of the verifier scored 3 groups",
        "rewards of the batch: [0.0, 1.0]; 0 groups wait",
    ]


@pytest.mark.proves("F6")
def test_a_second_trainer_trains_once_more_on_all_that_was_recorded(tmp_path: Path) -> None:
    lines = run(
        "03_many_trainers_on_one_data_set.py",
        tmp_path,
        warns_of="samplers.trainer-b.max_policy_lag is -1, no limit",
    )
    assert lines[:3] == [f"trainer-a, step {n}: 2 of advantage" for n in range(3)]
    assert lines[3:5] == [
        "trainer-b begins: 6 groups were recorded, and all are ready for it",
        "trainer-b, step 0: imitates 6 rollouts",
    ]
    assert lines[5:] == [
        "problem-2-0-1: trained in step 2 of trainer-a",
        "problem-2-0-1: trained in step 0 of trainer-b",
    ]


@pytest.mark.proves("A24", "D4")
def test_a_loss_is_computed_from_a_batch_alone(tmp_path: Path) -> None:
    loss, gradient = run("05_losses_in_numpy.py", tmp_path)
    assert loss.startswith("loss ")
    assert gradient == "gradient as finite differences have it: True"


@pytest.mark.proves("D1")
def test_a_batch_maker_of_your_own_chooses(tmp_path: Path) -> None:
    lines = run("06_a_batch_maker_of_your_own.py", tmp_path)
    assert sorted(lines[:4]) == [
        "1+1: advantage +0.58",
        "1+1: advantage -0.75",
        "9-6: advantage +1.00",
        "9-6: advantage -0.33",
    ]
    assert lines[4:] == ["left out {'not_chosen': 8}"]


def test_every_example_is_run_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES.glob("*.py") if path.name not in text] == []
