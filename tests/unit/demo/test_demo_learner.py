"""The demo's learner: it learns, from old rollouts too, and the same way each time."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from examples.demo.learner import Learner
from examples.demo.policy import Policy
from examples.demo.tasks import TASK_NAMES, load_tasks
from unit.demo.ragged import Rollout, ragged, ragged_batch, update

STEPS = 120
PROBLEMS_PER_TASK = 16
OLDEST = 6


def rewards_while_learning(seed: int) -> list[dict[str, float]]:
    """Mean reward by task at each step; every group comes from a policy up to OLDEST old."""
    tasks = load_tasks(TASK_NAMES, PROBLEMS_PER_TASK, seed)
    rng = np.random.default_rng(seed)
    learner = Learner(Policy.initial(seed))
    versions = deque([learner.policy.to_bytes()], maxlen=OLDEST + 1)
    history: list[dict[str, float]] = []
    for _ in range(STEPS):
        rollouts: list[Rollout] = []
        means: dict[str, float] = {}
        for task in tasks:
            start = len(rollouts)
            policy = Policy.from_bytes(versions[int(rng.integers(len(versions)))])
            prompts = [problem.prompt_tokens for problem in task.problems]
            for problem, answers in zip(task.problems, policy.sample(prompts, 8, rng), strict=True):
                group = len(rollouts)
                rollouts += [
                    Rollout(problem.prompt_tokens, answer, task.score(problem, answer.text), group)
                    for answer in answers
                ]
            means[task.name] = float(np.mean([r.reward for r in rollouts[start:]]))
        history.append(means)
        update(learner, ragged(rollouts))
        versions.append(learner.policy.to_bytes())
    return history


def test_reward_of_both_tasks_rises_from_chance_on_rollouts_of_older_policies() -> None:
    history = rewards_while_learning(seed=1)
    for name in TASK_NAMES:
        assert history[0][name] < 0.2
        assert np.mean([means[name] for means in history[-10:]]) > 0.85


def test_update_is_the_same_for_the_same_batch_and_counts_its_steps() -> None:
    batch = ragged_batch(Policy.initial(1), seed=3)
    learners = [Learner(Policy.initial(1)) for _ in range(2)]
    figures = [[update(learner, batch) for _ in range(3)] for learner in learners]
    assert figures[0] == figures[1]
    assert [learner.step for learner in learners] == [3, 3]
    np.testing.assert_array_equal(learners[0].policy.weights, learners[1].policy.weights)


def test_update_leaves_the_batch_as_it_was() -> None:
    batch = ragged_batch(Policy.initial(1), seed=3)
    for name in batch.__dataclass_fields__:
        getattr(batch, name).setflags(write=False)
    update(Learner(Policy.initial(1)), batch)


def test_update_makes_the_rewarded_answers_of_a_group_likelier() -> None:
    policy = Policy.initial(1)
    batch = ragged_batch(policy, seed=3)
    learner = Learner(policy)
    first = update(learner, batch)
    for _ in range(20):
        last = update(learner, batch)
    assert last["loss"] < first["loss"]
    assert first["ratio"] == pytest.approx(1, abs=1e-4)
    assert first["clipped"] == 0
