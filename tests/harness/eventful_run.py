"""A run in memory of which a page has everything to show: two environments, evaluation, turns,
masks, late scores, failed members, stale groups, a rewind, and texts that try to be markup."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from harness.command_line import CommandLine
from rollstream.consumers import InlineExecutor, Sealer
from rollstream.producers import Group, RolloutProducer
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Policy, Sampler
from rollstream.schemas.events import RolloutScore, Scored
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.score_files import LoggedScore, write_scores

NAME = "trainer-a"
STEPS = 24
GROUP = 4
LATE, LATE_REWARD = "late-0", 0.625  # A rollout that was published without a reward, and its score.
HOSTILE = "</script><script>document.title='taken over'</script><img src=x onerror=alert(1)>"
CONFIG = """
[kafka]
bootstrap = "unused:9092"
[store]
root = "file:///unused"
[environments.math]
partitions = 1
flush_interval_s = 0.0
[environments.web]
partitions = 1
flush_interval_s = 0.0
[samplers.trainer-a]
environments = ["math", "web"]
admission = false
max_policy_lag = 2
"""


class EventfulRun:
    """Serves ``STEPS`` steps, each of them acked.

    Attributes:
        line: its command line.
    """

    def __init__(self, folder: Path) -> None:
        self.line = line = CommandLine(folder, CONFIG)
        line.create_topics()
        self._random = random.Random(0)
        self._sealed = 0
        with (
            Sampler(
                NAME, config=line.config, broker=line.broker(), store=line.blobs, clock=line.clock
            ) as sampler,
            Sealer(
                line.config,
                broker=line.broker(),
                store=line.blobs,
                clock=line.clock,
                workers=InlineExecutor(),
            ) as sealer,
        ):
            sampler.resume(None)
            for step in range(STEPS):
                policy = sampler.publish_policy(step, policy_version=f"step-{step}")
                self._publish(policy, step)
                while sealer.stats().groups < self._sealed:
                    sealer.step(Deadline(1.0, line.clock))
                    line.clock.advance(0.05)
                sampler.ack(sampler.next_batch(step, 2, timeout_s=10.0))
                line.clock.advance(2.0 + self._random.random())
            sampler.checkpointed(STEPS // 2)
        now_ts = line.clock.now_us()
        score = RolloutScore(LATE, LATE_REWARD, {}, ())
        scored = Scored(scorer="judge", attempt="a", group_id="", scored_ts=now_ts, scores=(score,))
        log = PartitionAddress("math", 1, 0)
        write_scores(line.blobs, log, 0, 1, [LoggedScore(0, now_ts, scored)])

    def _publish(self, policy: Policy, step: int) -> None:
        for environment, groups in (("math", 3), ("web", 1)):
            with RolloutProducer(
                environment=environment, broker=self.line.broker(), clock=self.line.clock
            ) as producer:
                for number in range(groups):
                    split = "eval" if number == 2 else "train"
                    with producer.dispatch(
                        example_id=f"{environment}-{number}", group_size=GROUP, split=split
                    ) as group:
                        for member in range(GROUP):
                            if environment == "math":
                                group.publish(**self._answer(policy, step, number, member))
                            elif member < 3 or step % 4:  # Else its group counts it as failed.
                                self._play(group, policy, member)
                    self._sealed += 1

    def _answer(self, policy: Policy, step: int, number: int, member: int) -> dict[str, Any]:
        """Of one turn. The first of the run is scored late."""
        is_late = (step, number, member) == (0, 0, 0)
        tokens = 2 + int(self._random.expovariate(1 / 20))
        earned = min(1.0, max(0.0, self._random.gauss(step / STEPS, 0.2)))
        return {
            "policy": policy,
            "rollout_uid": LATE if is_late else f"math-{step}-{number}-{member}",
            "prompt_tokens": [1, 2, 3],
            "output_tokens": list(range(tokens)),
            "logprobs": [-self._random.expovariate(1) for _ in range(tokens)],
            "loss_mask": [index != 1 for index in range(tokens)],
            "reward": None if is_late else earned,
            "metadata": {"note": HOSTILE},
            "messages": [{"role": "user", "content": HOSTILE}],
        }

    def _play(self, group: Group, policy: Policy, turns: int) -> None:
        with group.trajectory() as trajectory:
            for turn in range(turns + 1):
                trajectory.turn(
                    policy=policy,
                    prompt_tokens=[7] * (turn + 1),
                    output_tokens=[8, 9],
                    logprobs=[-0.3, -0.4],
                    reward=float(turns % 2) if turn == turns else None,
                )
