"""A verifier whose scores differ at each try, which may be killed after each of its steps.

As a process of its own: ``python -m harness.verifying``; it ends once nothing is left to score.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from harness.kill_points import kill_process
from rollstream.consumers import SealedGroups
from rollstream.producers import ScoreProducer
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Scored
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import Broker
from rollstream.streams.owned.follow import Follower
from rollstream.streams.topics.layout import Layout

READ_TIMEOUT_S = 60.0
EXIT_TIMEOUT_S = 120.0  # A killed member of the group is forgotten after a while.
TESTS = Path(__file__).resolve().parent.parent


def verify(groups: SealedGroups, scores: ScoreProducer, step: Callable[[], None]) -> int:
    """Scores the groups of one flush; returns how many. ``step`` is called between any two of its
    doings."""
    found = groups.poll(timeout_s=0.5)
    if not found:
        return 0
    for group in found:
        verdicts = {one.rollout_uid: random.random() for one in group.rollouts}
        scores.upsert_scores(group.id, verdicts, attempt="1")
        step()
    scores.flush()
    step()
    groups.commit()
    step()
    return len(found)


class VerifierProcess:
    """The same as a process of its own, until it has scored so many groups, or kills itself at this
    step, from 1."""

    def __init__(self, config: RollstreamConfig, *, groups: int, die_at: int = 0) -> None:
        orders = {"config": config.model_dump(mode="json"), "groups": groups, "die_at": die_at}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.verifying", json.dumps(orders)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), *sys.path))},
        )

    def wait(self) -> int:
        """Until it has ended; its return code (negative: the signal)."""
        return self._process.wait(EXIT_TIMEOUT_S)

    def close(self) -> None:
        """Ends it, where it has not ended."""
        self._process.kill()
        self._process.wait()


def score_records(
    config: RollstreamConfig, environment: str, broker: Broker
) -> Iterator[tuple[int, int, Scored]]:
    """Partition, offset and content of each record in the log of scores."""
    layout = Layout.of(config.kafka)
    partitions = config.environments[environment].partitions
    logs = [
        layout.scores_log(PartitionAddress(environment, layout.generation, number))
        for number in range(partitions)
    ]
    with closing(Follower(broker, dict.fromkeys(logs, 0), logs)) as follower:
        for where, offset, _, event in follower.read_to_end(Deadline(READ_TIMEOUT_S)):
            assert isinstance(event, Scored)
            yield where.partition, offset, event


def first_rewards(
    config: RollstreamConfig, environment: str, broker: Broker
) -> tuple[dict[str, dict[str, float]], int]:
    """By group the rewards of its first record, and how many further ones differ from these."""
    first: dict[str, dict[str, float]] = {}
    others = 0
    for _, _, event in score_records(config, environment, broker):
        rewards = {one.rollout_uid: one.reward for one in event.scores}
        others += rewards != first.setdefault(event.group_id, rewards)
    return first, others


def main() -> None:
    orders = json.loads(sys.argv[1])
    config = RollstreamConfig.model_validate(orders["config"])
    left, seen = orders["die_at"], 0

    def step() -> None:
        nonlocal left
        left -= 1
        if not left:
            kill_process()

    with (
        SealedGroups("verifier", ["math"], config=config) as groups,
        ScoreProducer(
            config.kafka.bootstrap,
            environment="math",
            scorer="verifier",
            namespace=config.kafka.namespace,
        ) as scores,
    ):
        while seen < orders["groups"]:
            seen += verify(groups, scores, step)


if __name__ == "__main__":
    main()
