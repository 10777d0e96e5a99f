"""One env replica: samples whole groups with the newest weights that it has, and publishes them."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress

import numpy as np

from examples.demo import settings
from examples.demo.policy import Completion
from examples.demo.tasks import Problem, Task, load_tasks
from examples.demo.weights import Weights, load
from rollstream.producers import Group, NoPolicy, NotAdmitted, RolloutProducer, RunOver
from rollstream.runtime.entropy import SystemEntropy
from rollstream.runtime.shutdown import stop_on_signals

# A replica that waits looks so often whether it is to stop.
_STOP_WITHIN_S = 1.0


class Replica:
    """One task, one producer, one order of problems."""

    def __init__(
        self, task: Task, producer: RolloutProducer, weights: Weights, rng: np.random.Generator
    ) -> None:
        self._task = task
        self._producer = producer
        self._weights = weights
        self._rng = rng
        self._order: list[int] = []
        self._trained = task.problems[: -settings.EVAL_PROBLEMS]
        self._held_out = task.problems[-settings.EVAL_PROBLEMS :]
        self._evaluated_at: int | None = None

    def evaluate(self) -> None:
        """Answers the problems that are never trained on, if it is time to; waits for nothing."""
        step = self._weights.published.step
        if self._evaluated_at is not None and step < self._evaluated_at + settings.EVAL_EVERY:
            return
        self._evaluated_at = step
        answers = self._answers(self._held_out)
        for problem, completions in zip(self._held_out, answers, strict=True):
            with self._producer.dispatch(
                example_id=problem.example_id, group_size=settings.GROUP_SIZE, split="eval"
            ) as group:
                self._publish(problem, group, completions, scored_late=False)

    def round(self) -> None:
        """Samples problems side by side, as many as may be begun, and publishes a group each."""
        with ExitStack() as blocks:
            begun = self._begin(blocks)
            if not begun:
                return
            self._follow()
            answers = self._answers([problem for problem, _ in begun])
            late = self._task.name == settings.SCORED_LATE
            for (problem, group), completions in zip(begun, answers, strict=True):
                self._publish(problem, group, completions, scored_late=late)

    def _begin(self, blocks: ExitStack) -> list[tuple[Problem, Group]]:
        """Waits until a group may be begun, and begins others as far as they need not wait."""
        begun: list[tuple[Problem, Group]] = []
        with suppress(NotAdmitted, RunOver):
            while len(begun) < settings.PROBLEMS_PER_ROUND:
                problem = self._next_problem()
                block = self._producer.dispatch(
                    example_id=problem.example_id,
                    group_size=settings.GROUP_SIZE,
                    timeout_s=0.0 if begun else _STOP_WITHIN_S,
                )
                begun.append((problem, blocks.enter_context(block)))
                self._order.pop()
        return begun

    def _follow(self) -> None:
        """The newest weights; asked for once the groups are begun, since others came meanwhile."""
        newest = self._producer.policy()
        if newest != self._weights.published:
            self._weights = load(newest)

    def _answers(self, problems: Sequence[Problem]) -> list[list[Completion]]:
        prompts = [problem.prompt_tokens for problem in problems]
        return self._weights.policy.sample(prompts, settings.GROUP_SIZE, self._rng)

    def _publish(
        self,
        problem: Problem,
        group: Group,
        completions: Sequence[Completion],
        *,
        scored_late: bool,
    ) -> None:
        for completion in completions:
            reward = None if scored_late else self._task.score(problem, completion.text)
            group.publish(
                policy=self._weights.published,
                prompt_tokens=problem.prompt_tokens,
                output_tokens=completion.ids,
                logprobs=completion.logprobs,
                reward=reward,
                stop_reason=completion.stop_reason,
            )

    def _next_problem(self) -> Problem:
        """The one that is begun next."""
        if not self._order:
            self._order = list(self._rng.permutation(len(self._trained)))
        return self._trained[self._order[-1]]


def run(args: argparse.Namespace, stopping: threading.Event) -> None:
    """Until it is told to stop."""
    (task,) = load_tasks([args.task], settings.PROBLEMS_PER_TASK, settings.SEED)
    rng = np.random.default_rng(int(SystemEntropy().token(8), 16))
    with RolloutProducer(
        args.bootstrap, environment=task.name, replica_id=args.replica
    ) as producer:
        weights = first_weights(producer, stopping)
        if weights is None:
            return
        replica = Replica(task, producer, weights, rng)
        while not stopping.is_set():
            if args.evaluates:
                replica.evaluate()
            replica.round()


def first_weights(producer: RolloutProducer, stopping: threading.Event) -> Weights | None:
    """Those that the trainer publishes first, or has published; None: told to stop before."""
    while not stopping.is_set():
        with suppress(NoPolicy):
            return load(producer.policy(timeout_s=_STOP_WITHIN_S))
    return None


def main() -> None:
    """The process: ``python -m examples.demo.replica --bootstrap … --task …``."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "task", "replica"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--evaluates", action="store_true")
    run(parser.parse_args(), stop_on_signals())


if __name__ == "__main__":
    main()
