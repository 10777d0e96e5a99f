"""The demo's environments: reasoning-gym's own problems and scores."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from examples.demo.errors import TooFewProblems, UnknownTask
from examples.demo.policy import MAX_PROMPT_TOKENS
from examples.demo.tasks import TASK_NAMES, load_tasks
from examples.demo.tokens import decode

RIGHT: dict[str, Callable[..., int]] = {"gcd": math.gcd, "count_bits": int.bit_count}


@pytest.mark.parametrize("name", TASK_NAMES)
def test_right_answer_scores_one_and_a_wrong_one_less(name: str) -> None:
    [task] = load_tasks([name], 16, seed=1)
    for problem in task.problems:
        numbers = decode(problem.prompt_tokens).rsplit(" ", 1)[-1].split(",")
        answer = str(RIGHT[name](*(int(number) for number in numbers)))
        assert task.score(problem, answer) == 1.0
        assert task.score(problem, answer + "0") < 1.0
        assert task.score(problem, "") == 0.0


def test_same_seed_gives_the_same_problems_and_another_seed_others() -> None:
    def questions(seed: int) -> list[list[tuple[str, str]]]:
        return [
            [(problem.example_id, problem.prompt) for problem in task.problems]
            for task in load_tasks(TASK_NAMES, 32, seed)
        ]

    assert questions(3) == questions(3)
    assert questions(3) != questions(4)


def test_problems_are_distinct_and_the_policy_can_tell_them_apart() -> None:
    for task in load_tasks(TASK_NAMES, 64, seed=2):
        assert len(task.problems) == 64
        assert len({problem.example_id for problem in task.problems}) == 64
        assert len({problem.prompt_tokens.tobytes() for problem in task.problems}) == 64
        assert max(problem.prompt_tokens.size for problem in task.problems) <= MAX_PROMPT_TOKENS


def test_unknown_task_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownTask, match="count_bits, gcd"):
        load_tasks(["chess"], 2, seed=1)


def test_more_problems_than_the_package_has_are_refused() -> None:
    with pytest.raises(TooFewProblems, match="255 distinct"):
        load_tasks(["count_bits"], 300, seed=1)
