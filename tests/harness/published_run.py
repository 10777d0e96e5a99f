"""A run in memory, looked at by the command line: rollouts are published, sealed and served."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.command_line import CONFIG, CommandLine
from rollstream.consumers import InlineExecutor, Sealer
from rollstream.producers import RolloutProducer
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import NotEnoughGroups, Sampler

TURNS_MAX = 1000
SAMPLERS = '[samplers.trainer-b]\nenvironments = ["math"]\nmax_policy_lag = 0\n'


class Run:
    """A deployment in memory in which rollouts are published, sealed and served."""

    def __init__(self, folder: Path, config: str = CONFIG) -> None:
        one_partition = config.replace("partitions = 2", "partitions = 1")
        self.line = CommandLine(folder, one_partition + SAMPLERS)
        self.line.create_topics()
        self.parts: dict[str, Any] = {"broker": self.line.broker(), "store": self.line.blobs}

    def publish(
        self,
        *examples: str,
        weight_step: int | Sequence[int] = 0,
        rewards: Sequence[float | None] = (0.0, 1.0),
        **fields: Any,
    ) -> None:
        """A group of two, or of as many as there are rewards, for each example, each rollout from
        a replica of its own: ``EXAMPLE-0``, ``EXAMPLE-1``. ``weight_step`` may be one a token."""
        steps = [weight_step] if isinstance(weight_step, int) else weight_step
        clock, broker = self.line.clock, self.line.broker()
        with RolloutProducer(environment="math", broker=broker, clock=clock) as producer:
            for example in examples:
                for index, reward in enumerate(rewards):
                    sampled = {"prompt_tokens": [1, 2], "output_tokens": [3, index], **fields}
                    producer.publish(
                        example_id=example,
                        rollout_uid=f"{example}-{index}",
                        group_uid=f"group of {example}",
                        group_size=len(rewards),
                        replica_id=f"worker-{index}",
                        policy_version=f"step-{max(steps)}",
                        weight_step=weight_step,
                        logprobs=[-0.5] * len(sampled["output_tokens"]),
                        reward=reward,
                        **sampled,
                    )

    def seal(self, groups: int) -> None:
        line = self.line
        with Sealer(
            line.config, clock=line.clock, workers=InlineExecutor(), **self.parts
        ) as sealer:
            for _ in range(TURNS_MAX):
                if sealer.stats().groups >= groups:
                    break
                sealer.step(Deadline(1.0, line.clock))
                line.clock.advance(0.1)
            assert sealer.stats().groups == groups

    def sampler(self, name: str = "trainer-a") -> Sampler:
        return Sampler(name, config=self.line.config, clock=self.line.clock, **self.parts)

    def drop_as_stale(self) -> None:
        """``trainer-b`` is served one of the groups, and drops the others of its policy."""
        with self.sampler("trainer-b") as sampler:
            sampler.resume(None)
            sampler.publish_policy(0, policy_version="step-0")
            sampler.next_batch(0, 1)
            sampler.publish_policy(1, policy_version="step-1")
            with pytest.raises(NotEnoughGroups):
                sampler.next_batch(1, 2, timeout_s=0.0)

    def read(self, *arguments: str, exit_code: int = 0) -> Any:
        done = self.line.run(*arguments, "--json")
        assert done.exit_code == exit_code, done.output
        return json.loads(done.stdout)

    def uses(self, uid: str, sampler: str) -> list[dict[str, Any]]:
        (found,) = self.read("lineage", "--uid", uid, "--sampler", sampler)
        (row,) = found["samplers"]
        return list(row["uses"])
