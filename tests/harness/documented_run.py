"""A small run as the guides describe one: single turns, trajectories, evaluation, a resume.

Logs are in memory and files on disk, so that any reader can look at them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rollstream.consumers import InlineExecutor, Sealer, create_deployment
from rollstream.producers import RolloutProducer
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Batch, Policy, Sampler
from rollstream.store import open_store
from rollstream.streams.memory import MemoryBroker

NAME = "trainer-a"
STEPS = 8
RELEASED_FROM = 6  # Steps 6 and 7 were served, and after the resume step 6 is decided anew.
GROUPS = 4
AGE_S = 60.0  # Older rollouts are left out.
TURNS = (1, 3)  # Of the two trajectories of a group.
ROUTED_EXPERTS = np.arange(2 * 48 * 8, dtype=np.uint8).reshape(2, 48, 8)


class DocumentedRun:
    """Serves steps 0 to 7, resumes after step 5 with ``release``, and serves step 6 again.

    Attributes:
        served: the batches in the order in which they were served.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock()
        self.broker = MemoryBroker(clock=self.clock)
        self.config = RollstreamConfig.model_validate(
            {
                "kafka": {"bootstrap": "in-memory:0"},
                "store": {"root": root.as_uri()},
                "environments": {
                    name: {"partitions": 1, "flush_interval_s": 0.0} for name in ("math", "web")
                },
                "samplers": {
                    NAME: {
                        "environments": ["math", "web"],
                        "max_rollout_timestamp_delay": AGE_S,
                        "admission": False,  # Nobody would seal while a dispatch waits.
                    }
                },
            }
        )
        self.store = open_store(root.as_uri())
        create_deployment(self.config, broker=self.broker, store=self.store, clock=self.clock)
        self.served: list[Batch] = []
        with self.sampler() as sampler:
            self._train(sampler, sampler.resume(None), STEPS)
            sampler.checkpointed(RELEASED_FROM - 1)
            step = sampler.resume(RELEASED_FROM - 1, later="release")
            assert step == RELEASED_FROM
            self._train(sampler, step, step + 1)

    def sampler(self) -> Sampler:
        """In this process; a second one takes over from the first."""
        return Sampler(
            NAME, config=self.config, broker=self.broker, store=self.store, clock=self.clock
        )

    def producer(self) -> RolloutProducer:
        return RolloutProducer(environment="math", broker=self.broker, clock=self.clock)

    def train_on(self, checkpointed_step: int, end: int) -> None:
        """Resumes after a checkpoint, and serves the steps before ``end``."""
        with self.sampler() as sampler:
            self._train(sampler, sampler.resume(checkpointed_step), end)

    def seal(self, groups: int) -> None:
        """Seals that many more."""
        with Sealer(
            self.config,
            broker=self.broker,
            store=self.store,
            clock=self.clock,
            workers=InlineExecutor(),
        ) as sealer:
            while sealer.stats().groups < groups:
                sealer.step(Deadline(1.0, self.clock))

    def _train(self, sampler: Sampler, step: int, end: int) -> None:
        while step < end:
            version = f"step-{step}"
            policy = sampler.publish_policy(
                step, policy_version=version, weights=f"/weights/{version}"
            )
            self._sample(policy)
            batch = sampler.next_batch(step, GROUPS, timeout_s=10.0)
            self.served.append(batch)
            sampler.ack(batch)
            step += 1

    def _sample(self, policy: Policy) -> None:
        with self.producer() as producer:
            for number, split in enumerate(("train", "train", "train", "eval")):
                with producer.dispatch(
                    example_id=f"aime-{number}", group_size=2, split=split
                ) as group:
                    for reward in (0.0, 1.0):
                        group.publish(
                            policy=policy,
                            prompt_tokens=[1, 2, 3],
                            output_tokens=[4, 5],
                            logprobs=[-0.1, -0.2],
                            reward=reward,
                            rewards={"format": 1.0},
                            metadata={"temperature": 0.8},
                            token_arrays={"routed_experts": ROUTED_EXPERTS},
                        )
            for number in range(2):
                with producer.dispatch(
                    environment="web", example_id=f"web-{number}", group_size=len(TURNS)
                ) as group:
                    for reward, turns in enumerate(TURNS):
                        with group.trajectory() as trajectory:
                            for turn in range(turns):
                                trajectory.turn(
                                    policy=policy,
                                    prompt_tokens=[7] * (turn + 1),
                                    output_tokens=[8, 9],
                                    logprobs=[-0.3, -0.4],
                                    reward=float(reward) if turn == turns - 1 else None,
                                )
        self.seal(6)
