"""One env replica: samples whole groups with the newest weights that it has, and publishes them."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from examples.demo import settings
from examples.demo.policy import Completion
from examples.demo.tasks import Problem, Task, load_tasks
from examples.demo.weights import Weights, load
from rollstream.producers import NoPolicy, RolloutProducer
from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.entropy import SystemEntropy
from rollstream.runtime.shutdown import stop_on_signals

_LOOK_EVERY_S = 0.01
_STOP_WITHIN_S = 1.0


class Pace:
    """How many groups one replica may have made: at most so many batches ahead of its weights."""

    def __init__(self, clock: Clock, first_step: int) -> None:
        self._clock = clock
        self._share = settings.BATCH_GROUPS // settings.REPLICAS
        self._made = first_step * self._share
        self._moved_s = clock.monotonic_s()
        self._step = first_step

    def may_go_on(self, step: int) -> bool:
        """Whether another round may be sampled with the weights of ``step``."""
        now_s = self._clock.monotonic_s()
        if step != self._step:
            self._step, self._moved_s = step, now_s
        if self._made < (step + settings.BATCHES_AHEAD) * self._share:
            return True
        if now_s - self._moved_s < settings.STALLED_AFTER_S:
            return False
        self._moved_s = now_s
        return True

    def made(self, groups: int) -> None:
        self._made = max(self._made, self._step * self._share) + groups


class Replica:
    """One task, one producer, one order of problems."""

    def __init__(self, task: Task, producer: RolloutProducer, rng: np.random.Generator) -> None:
        self._task = task
        self._producer = producer
        self._rng = rng
        self._order: list[int] = []

    def round(self, weights: Weights) -> int:
        """Samples the next problems side by side and publishes a group each; how many groups."""
        problems = [self._next_problem() for _ in range(settings.PROBLEMS_PER_ROUND)]
        answers = weights.policy.sample(
            [problem.prompt_tokens for problem in problems], settings.GROUP_SIZE, self._rng
        )
        for problem, completions in zip(problems, answers, strict=True):
            self._publish(problem, completions, weights)
        return len(problems)

    def _publish(
        self, problem: Problem, completions: Sequence[Completion], weights: Weights
    ) -> None:
        with self._producer.dispatch(
            example_id=problem.example_id, group_size=settings.GROUP_SIZE
        ) as group:
            for completion in completions:
                reward = self._task.score(problem, completion.text)
                group.publish(
                    policy=weights.published,
                    prompt_tokens=problem.prompt_tokens,
                    output_tokens=completion.ids,
                    logprobs=completion.logprobs,
                    reward=reward,
                    stop_reason=completion.stop_reason,
                )

    def _next_problem(self) -> Problem:
        if not self._order:
            self._order = list(self._rng.permutation(len(self._task.problems)))
        return self._task.problems[self._order.pop()]


def run(args: argparse.Namespace, stopping: threading.Event, clock: Clock) -> None:
    """Until it is told to stop."""
    (task,) = load_tasks([args.task], settings.PROBLEMS_PER_TASK, settings.SEED)
    rng = np.random.default_rng(int(SystemEntropy().token(8), 16))
    with RolloutProducer(
        args.bootstrap, environment=task.name, replica_id=args.replica
    ) as producer:
        replica = Replica(task, producer, rng)
        weights = first_weights(producer, stopping)
        if weights is None:
            return
        pace = Pace(clock, weights.published.step)
        while not stopping.is_set():
            newest = producer.policy()
            if newest != weights.published:
                weights = load(newest)
            if pace.may_go_on(newest.step):
                pace.made(replica.round(weights))
            else:
                clock.wait(stopping, _LOOK_EVERY_S)


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
    run(parser.parse_args(), stop_on_signals(), SystemClock())


if __name__ == "__main__":
    main()
