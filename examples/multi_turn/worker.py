"""An env worker, as a process: follows the policy, and submits each step as it happens."""

from __future__ import annotations

import argparse
import threading
from contextlib import suppress

import numpy as np

from examples.multi_turn import settings
from examples.multi_turn.lake import ENVIRONMENT, MAP, Walk
from examples.multi_turn.policy import Policy
from rollstream.producers import FollowedPolicy, NoPolicy, Step, StepProducer
from rollstream.runtime.entropy import SystemEntropy
from rollstream.runtime.shutdown import stop_on_signals

# Without a newer policy in this time it samples with the old one once more: nobody waits for the
# trainer. It looks as often whether it is to stop.
_NEWER_WITHIN_S = 1.0


class Worker:
    """One producer; it samples the trajectories of a prompt side by side."""

    def __init__(self, producer: StepProducer, rng: np.random.Generator) -> None:
        self._producer = producer
        self._rng = rng
        self._walks = [Walk() for _ in range(settings.GROUP_SIZE)]

    def play(self, prompt_uid: str, published: FollowedPolicy) -> None:
        """One prompt; in each turn the policy answers every trajectory that goes on."""
        policy = Policy.load(published.weights)
        for walk in self._walks:
            walk.reset()
        turn = 0
        while going := [i for i, walk in enumerate(self._walks) if not walk.ended]:
            contexts = [list(self._walks[i].context) for i in going]
            actions, log_probs = policy.sample(contexts, self._rng)
            for i, context, action, log_prob in zip(
                going, contexts, actions.tolist(), log_probs, strict=True
            ):
                reward = self._walks[i].act(action)
                self._producer.submit_step(
                    Step(
                        prompt_ids=context,
                        response_ids=[action],
                        logprobs=[log_prob],
                        reward=reward,
                        trajectory_uid=f"{prompt_uid}/{i}",
                        prompt_uid=prompt_uid,
                        step_index=turn,
                        is_last=self._walks[i].ended,
                        n_rollouts=settings.GROUP_SIZE,
                        policy_version=published.version,
                        weight_step=published.step,
                        policy_epoch=published.epoch,
                        lineage=published.lineage,
                        example_id=MAP,
                    ),
                    environment=ENVIRONMENT,
                )
            turn += 1


def run(args: argparse.Namespace, stopping: threading.Event) -> None:
    """Until it is told to stop."""
    # A successor of a process that died repeats no prompt's name.
    life = f"{args.worker}-{SystemEntropy().token(4)}"
    with StepProducer(args.bootstrap, worker_id=args.worker) as producer:
        worker = Worker(producer, np.random.default_rng(args.seed))
        published: FollowedPolicy | None = None
        prompts = 0
        while not stopping.is_set():
            with suppress(NoPolicy):
                published = producer.policy(
                    newer_than=published, environment=ENVIRONMENT, timeout_s=_NEWER_WITHIN_S
                )
            if published is not None:
                worker.play(f"{life}-{prompts}", published)
                prompts += 1


def main() -> None:
    """The process: ``python -m examples.multi_turn.worker --bootstrap … --worker … --seed …``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--worker", required=True)
    parser.add_argument("--seed", type=int, required=True)
    run(parser.parse_args(), stop_on_signals())


if __name__ == "__main__":
    main()
