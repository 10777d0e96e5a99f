"""An env worker, as a process: follows the policy, samples whole groups, and publishes them."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

import numpy as np
import torch
from transformers import LlamaForCausalLM

from examples.grpo_torch import settings
from examples.grpo_torch.model import device_of, load_weights, new_model
from examples.grpo_torch.sampling import Answer, sample
from examples.grpo_torch.words import ENVIRONMENT, Problem, Words
from rollstream.producers import (
    FollowedPolicy,
    Group,
    NoPolicy,
    NotAdmitted,
    RolloutProducer,
    RunOver,
)
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.entropy import SystemEntropy
from rollstream.runtime.shutdown import stop_on_signals

_STOP_WITHIN_S = 1.0  # A worker that waits looks so often whether it is to stop.


class Begun(NamedTuple):
    problem: Problem
    group: Group


class Worker:
    """One producer, one model, one order of problems."""

    def __init__(self, words: Words, producer: RolloutProducer, model: LlamaForCausalLM) -> None:
        self._words = words
        self._producer = producer
        self._model = model
        self._policy: FollowedPolicy | None = None
        self._evaluated: FollowedPolicy | None = None
        self._rng = np.random.default_rng(int(SystemEntropy().token(8), 16))
        self._order: list[Problem] = []

    def follow(self) -> FollowedPolicy | None:
        """The newest policy, whose weights the model has then; None: none was published yet."""
        wait_s = _STOP_WITHIN_S if self._policy is None else 0.0
        with suppress(NoPolicy):  # A newer one is there also if the run is over by now.
            self._policy = self._producer.policy(newer_than=self._policy, timeout_s=wait_s)
            load_weights(self._model, self._policy.weights)
        return self._policy

    def round(self) -> None:
        """Samples problems side by side, as many as may be begun, and publishes a group each."""
        with ExitStack() as blocks:
            begun: list[Begun] = []
            # The first waits until the trainer can use another group; the others need not wait.
            with suppress(NotAdmitted, RunOver):
                while len(begun) < settings.PROBLEMS_PER_ROUND:
                    problem = self._next_problem()
                    block = self._producer.dispatch(
                        example_id=problem.example_id,
                        group_size=settings.GROUP_SIZE,
                        timeout_s=0.0 if begun else _STOP_WITHIN_S,
                    )
                    begun.append(Begun(problem, blocks.enter_context(block)))
                    self._order.pop()
            policy = self.follow()
            if begun and policy is not None:
                problems = [one.problem for one in begun]
                answers = self._sample(problems, settings.GROUP_SIZE)
                for one, of_one in zip(begun, answers, strict=True):
                    self._publish(one, of_one, policy)

    def evaluate(self, policy: FollowedPolicy) -> None:
        """Answers the held-out problems, if it is time to."""
        if not _is_due(policy, self._evaluated):
            return
        self._evaluated = policy
        answers = self._sample(self._words.held_out, settings.HELD_OUT_ANSWERS)
        for problem, of_one in zip(self._words.held_out, answers, strict=True):
            with self._producer.dispatch(
                example_id=problem.example_id, group_size=len(of_one), split="eval"
            ) as group:
                self._publish(Begun(problem, group), of_one, policy)

    def _sample(self, problems: Sequence[Problem], answers: int) -> list[list[Answer]]:
        return sample(self._model, [problem.prompt_tokens for problem in problems], answers)

    def _publish(self, begun: Begun, answers: Sequence[Answer], policy: FollowedPolicy) -> None:
        for answer in answers:
            begun.group.publish(
                policy=policy,
                prompt_tokens=begun.problem.prompt_tokens,
                output_tokens=answer.tokens,
                logprobs=answer.logprobs,
                reward=self._words.score(begun.problem, answer.tokens),
                stop_reason=answer.stop_reason,
            )

    def _next_problem(self) -> Problem:
        if not self._order:
            trained = self._words.trained
            self._order = [trained[i] for i in self._rng.permutation(len(trained))]
        return self._order[-1]


def _is_due(policy: FollowedPolicy, before: FollowedPolicy | None) -> bool:
    """Whether so many steps have passed since the policy before, or it is the last one."""
    if before is None or (policy.metadata["last"] and policy != before):
        return True
    return policy.step >= before.step + settings.EVALUATE_EVERY


def run(args: argparse.Namespace, stopping: threading.Event) -> None:
    """Until it is told to stop."""
    clock = SystemClock()
    words = Words(args.seed, settings.HELD_OUT)
    model = new_model(args.seed).to(device_of())
    torch.manual_seed(int(SystemEntropy().token(8), 16) >> 1)  # Others sample other answers.
    with RolloutProducer(
        args.bootstrap, environment=ENVIRONMENT, replica_id=args.replica
    ) as producer:
        worker = Worker(words, producer, model)
        while not stopping.is_set():
            policy = worker.follow()
            if policy is None:
                continue
            if args.evaluates:
                worker.evaluate(policy)
            if policy.metadata["last"]:
                clock.wait(stopping, _STOP_WITHIN_S)  # Nothing that is sampled now is trained on.
            else:
                worker.round()


def main() -> None:
    """The process: ``python -m examples.grpo_torch.worker --bootstrap … --replica …``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--replica", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--evaluates", action="store_true")
    run(parser.parse_args(), stop_on_signals())


if __name__ == "__main__":
    main()
