"""Trainers whose groups get rewards late, from scorers who repeat and contradict themselves."""

from __future__ import annotations

import random
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

from harness.groups import GroupSpec
from harness.sampler_worlds import ENVIRONMENTS
from rollstream.folds.group.scored import Given
from rollstream.folds.state import SamplerState
from rollstream.producers import ScoreProducer, VersionConflict
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import BatchServed, Flushed, Replaced, Scored
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.owned.follow import Follower
from simulation.sampler.trainers import WAIT_S, Trainers

MEMBERS = 2
SCORED_OF_NEWEST = 12  # Flushes whose groups scorers look at.


class LateRewards(Trainers):
    """The world of one seed: some groups wait for scores, which come after the seal or before it,
    also for groups that were served or have ended."""

    def __init__(self, seed: int) -> None:
        self._choosing = random.Random(seed)
        self._flushed: list[tuple[str, Flushed]] = []
        super().__init__(seed)
        self._scores = ScoreProducer(
            scorer="judge",
            namespace=self._config.kafka.namespace,
            broker=self._plain,
            clock=self._clock,
        )

    def act(self) -> None:
        self._flushed = self._flushed[-SCORED_OF_NEWEST:]
        if self._choosing.random() < 0.35:
            self._score()
        else:
            super().act()

    def close(self) -> None:
        super().close()
        self._scores.close()

    def check(self) -> None:
        super().check()
        chosen = [
            group
            for confirmed in self.decisions()
            if isinstance(confirmed.event, BatchServed | Replaced)
            for group in confirmed.event.groups
        ]
        self.reached["served with scores"] += sum(bool(group.scores) for group in chosen)
        versions = [one.version for group in chosen for one in group.scores]
        self.reached["later versions"] += sum(version > 1 for version in versions)

    def noted(self, environment: str, event: Flushed) -> None:
        """A flush whose groups may be scored."""
        self._flushed.append((environment, event))

    def _score(self) -> None:
        """One record of scores, of a whole group, of its rollouts, or of one of these."""
        dice = self._choosing
        self.reached["scores"] += 1
        attempt, reward = dice.choice(("", "", "a", "b")), dice.choice((0.0, 0.5, 1.0))
        flags = dice.choice(((), (), ("cheats",)))
        if not self._flushed or dice.random() < 0.2:
            environment, partition = dice.choice([*ENVIRONMENTS]), 0
            # Of a group that is sealed next, if any is.
            uid = f"{environment}-{partition}-{dice.randrange(9)}-{dice.randrange(30)}-g0-0"
            self._scores.publish(
                rollout_uid=uid,
                reward=reward,
                flags=flags,
                attempt=attempt,
                environment=environment,
            )
            self._scores.flush()
            return
        environment, event = dice.choice(self._flushed)
        index = dice.randrange(len(event.groups))
        group = event.groups[index].group_id
        uids = event.segments.uids[MEMBERS * index : MEMBERS * (index + 1)]
        given: dict[str, Any] = {
            "attempt": attempt,
            "environment": environment,
            "flags": flags,
        }
        match dice.choice(("all", "each", "each", "one")):
            case "all":
                self._scores.publish(group_id=group, reward=reward, **given)
            case "each":
                rewards = {uid: dice.choice((0.0, 1.0)) for uid in uids}
                given["expect_version"] = dice.choice((None, None, 0, 1))
                with suppress(VersionConflict):
                    self._scores.upsert_scores(group, rewards, **given)
            case _:
                self._scores.publish(rollout_uid=dice.choice(uids), reward=reward, **given)
        self._scores.flush()

    def _group(self, epoch: int, step: int) -> GroupSpec:
        group = super()._group(epoch, step)
        if self._choosing.random() < 0.4:
            return group
        return replace(group, rewards=(None, self._choosing.choice((None, 1.0))))

    def _settings(self) -> dict[str, Any]:
        return {
            **super()._settings(),
            "score_timeout_s": 1e10,  # These groups were sealed long ago.
            "scorer": self._choosing.choice(("", "judge")),
            "recency": "uniform",
            "reward_weighting": self._choosing.choice(("uniform", "spread")),
            "min_mean_reward": self._choosing.choice((None, None, 0.1)),
            "exclude_flags": self._choosing.choice(((), ("cheats",))),
        }

    def _writer(self, environment: str, partition: int) -> Any:
        return _Noting(super()._writer(environment, partition), environment, self)

    def _refolded(self) -> tuple[SamplerState, list[GroupRef]]:
        state, sealed = super()._refolded()
        logs = {
            self._layout.scores_log(log): log
            for name, partitions in ENVIRONMENTS.items()
            for log in (PartitionAddress(name, 1, number) for number in range(partitions))
        }
        with closing(Follower(self._plain, dict.fromkeys(logs, 0), logs)) as follower:
            for one in follower.read_to_end(Deadline(WAIT_S)):
                assert isinstance(one.event, Scored)
                given = Given(one.event, one.timestamp_us)
                state.apply_scores(logs[one.where], one.offset, given)
        return state, sealed


class _Noting:
    """A writer of groups that tells the world what it sealed."""

    def __init__(self, writer: Any, environment: str, world: LateRewards) -> None:
        self._writer = writer
        self._environment = environment
        self._world = world

    def flush(self, *specs: GroupSpec) -> Flushed:
        event: Flushed = self._writer.flush(*specs)
        self._world.noted(self._environment, event)
        return event
