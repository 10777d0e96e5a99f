"""The demo's environments: tasks of reasoning-gym, with its own generators and scorers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import reasoning_gym
from numpy.typing import NDArray

from examples.demo.errors import TooFewProblems, UnknownTask
from examples.demo.tokens import encode

# Settings of each task: numbers small enough that an answer has one or two digits.
_SETTINGS: dict[str, dict[str, int]] = {
    "gcd": {"min_numbers": 2, "max_numbers": 2, "min_value": 1, "max_value": 30},
    "count_bits": {"min_n": 1, "max_n": 255},
}

#: The tasks that the demo runs unless told otherwise.
TASK_NAMES = tuple(_SETTINGS)

#: Entries drawn per problem wanted, before a task is said to have too few distinct ones.
_DRAWS_PER_PROBLEM = 50

#: Scores kept a task. 64 problems with every answer of up to three digits are 71,104.
_SCORES_KEPT = 1 << 17


@dataclass(frozen=True)
class Problem:
    """One problem of a task.

    Attributes:
        example_id: names it within its task, and stays the same for the same seed.
        prompt: the package's question, word for word.
        prompt_tokens: what the policy reads of it, int32 [k].
    """

    example_id: str
    prompt: str
    prompt_tokens: NDArray[np.int32]


class Task:
    """A fixed set of distinct problems, and the package's own scorer of answers.

    Attributes:
        name: the environment's name.
        problems: in the order in which the package made them.
    """

    def __init__(self, name: str, dataset: Any, entries: Sequence[dict[str, Any]]) -> None:
        self.name = name
        self.problems = tuple(_problem(name, entry) for entry in entries)
        entry_of = {
            problem.example_id: entry for problem, entry in zip(self.problems, entries, strict=True)
        }

        @lru_cache(maxsize=_SCORES_KEPT)
        def score(example_id: str, answer: str) -> float:
            return float(dataset.score_answer(answer, entry_of[example_id]))

        self._score = score

    def score(self, problem: Problem, answer: str) -> float:
        """The package's ``score_answer``, from 0 to 1, remembered by problem and answer."""
        return self._score(problem.example_id, answer)


def load_tasks(names: Sequence[str], problems_per_task: int, seed: int) -> tuple[Task, ...]:
    """The same tasks with the same problems for the same arguments, in every process.

    Raises:
        UnknownTask: a name is not one of ``TASK_NAMES``.
        TooFewProblems: the package has not so many distinct problems with the demo's settings.
    """
    return tuple(_load(name, problems_per_task, seed) for name in names)


def _load(name: str, problems: int, seed: int) -> Task:
    if name not in _SETTINGS:
        raise UnknownTask(name, _SETTINGS)
    dataset = reasoning_gym.create_dataset(
        name, size=problems * _DRAWS_PER_PROBLEM, seed=seed, **_SETTINGS[name]
    )
    distinct: dict[str, dict[str, Any]] = {}
    for index in range(problems * _DRAWS_PER_PROBLEM):
        entry = dataset[index]
        distinct.setdefault(entry["question"], entry)
        if len(distinct) == problems:
            return Task(name, dataset, list(distinct.values()))
    raise TooFewProblems(name, len(distinct), problems)


def _problem(name: str, entry: dict[str, Any]) -> Problem:
    question = entry["question"]
    source_index = entry["metadata"]["source_index"]
    return Problem(f"{name}-{source_index}", question, encode(question))
