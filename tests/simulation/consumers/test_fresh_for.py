"""Groups that a sampler would drop, settled by the sealer: ``fresh_for``."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.rollouts import make_dispatched
from harness.sealing import TIMEOUT_S, EvictableBroker, SealWorld
from rollstream.consumers import audit
from rollstream.consumers.sealing.flush import STEPS, Flush, FlushStep
from rollstream.folds.choosing import choosing_of
from rollstream.folds.group.eligible import dropped_for
from rollstream.folds.group.known import known_groups
from rollstream.runtime.config.sections import SamplerConfig
from rollstream.schemas.codec import encode
from rollstream.schemas.events import Flushed, PolicyAnnounced
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.order import Branch, PolicyRef

SAMPLER = "t"


def fresh_world(**config: Any) -> SealWorld:
    return SealWorld(samplers=[SAMPLER], **{"partitions": 1, "fresh_for": SAMPLER, **config})


def announce(
    world: SealWorld,
    step: int,
    *,
    offset: int = 1,
    sampler: str = SAMPLER,
    branches: tuple[Branch, ...] = (),
) -> None:
    event = PolicyAnnounced(
        sampler=sampler,
        offset=offset,
        lineage="",
        policy_epoch=len(branches),
        step=step,
        policy_version=f"step-{step}",
        weights="",
        metadata="",
        max_policy_lag=1,
        branch_epochs=np.array([one.epoch for one in branches], np.int32),
        branch_steps=np.array([one.from_step for one in branches], np.int64),
    )
    append(world, encode(event))


def append(world: SealWorld, value: bytes) -> None:
    writer = world.broker.writer()
    writer.append(world.layout.admission("math"), value, key=b"policy/t", partition=0)
    assert writer.flush(TIMEOUT_S) == 0


def publish(world: SealWorld, name: str, *steps: int, epoch: int = 0, **fields: Any) -> None:
    """A group, a rollout a step."""
    for index, step in enumerate(steps):
        world.publish(
            f"{name}-{index}",
            group_uid=name,
            group_size=len(steps),
            weight_step=step,
            policy_version=f"step-{step}-{epoch}",
            policy_epoch=epoch,
            **fields,
        )


def seal(world: SealWorld, **arguments: Any) -> None:
    with world.sealer(**arguments) as sealer:
        world.until(sealer)


def settled_uids(world: SealWorld) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for event in world.flushes():
        for part in event.settled:
            found.setdefault(part.reason, set()).update(part.uids)
    return found


def problems(world: SealWorld) -> tuple[str, ...]:
    report = audit(world.config, broker=world.broker, store=world.blobs, clock=world.clock)
    return report.problems


@pytest.mark.proves("E3", "I1")
@pytest.mark.parametrize("on", ["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def test_groups_that_the_sampler_would_drop_are_settled_whole_with_the_reason(
    on: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    kafka = request.getfixturevalue("kafka_bootstrap") if on == "kafka" else ""
    with fresh_world(kafka=kafka, root=tmp_path) as world:
        announce(world, 20, branches=(Branch(1, 15),))
        publish(world, "fresh", 20, 19, epoch=1)
        publish(world, "at-the-bound", 12, 20)
        publish(world, "stale", 11, 20, epoch=1)
        publish(world, "left", 16, 13)
        publish(world, "unknown", -1, 20, epoch=1)
        publish(world, "other-model", 0, 0, lineage="other")
        publish(world, "evaluation", 0, 0, split="eval")
        seal(world)
        sealed = {uid.rpartition("-")[0] for group in world.groups() for uid in group}
        assert sealed == {"fresh", "unknown", "other-model", "evaluation"}
        assert settled_uids(world) == {
            "stale": {"stale-0", "stale-1"},
            "off_branch": {"left-0", "left-1", "at-the-bound-0", "at-the-bound-1"},
        }
        for event in world.flushes():
            (newest,) = event.newest_policy
            assert (newest.sampler, newest.step, newest.policy_epoch) == (SAMPLER, 20, 1)
            assert (newest.max_policy_lag, newest.branch_steps.tolist()) == (8, [15])
        assert problems(world) == ()


class LimitedWorld(SealWorld):
    """Whose sampler limits rollouts."""

    def sampler_section(self) -> SamplerConfig:
        limits = {"max_rollout_step_delay": 2, "max_rollout_timestamp_delay": 60.0}
        return super().sampler_section().model_copy(update=limits)


@pytest.mark.proves("E3")
def test_groups_that_the_limits_on_rollouts_leave_too_small_are_settled_whole() -> None:
    """Rollout by rollout, as the sampler leaves them out: two are enough."""
    with LimitedWorld(samplers=[SAMPLER], partitions=1, fresh_for=SAMPLER) as world:
        announce(world, 20)
        publish(world, "enough", 20, 20, 15)
        publish(world, "by-step", 20, 15, 15)
        for name, made in (("enough-by-time", (1, 0, 0)), ("by-time", (1, 1, 0))):
            for index, created_ts in enumerate(made):
                world.publish(
                    f"{name}-{index}",
                    group_uid=name,
                    group_size=3,
                    weight_step=20,
                    created_ts=created_ts,
                )
        publish(world, "evaluation", 0, 0, 0, split="eval", created_ts=1)
        seal(world)
        sealed = {uid.rpartition("-")[0] for group in world.groups() for uid in group}
        assert sealed == {"enough", "enough-by-time", "evaluation"}
        assert settled_uids(world) == {
            "stale": {f"by-step-{n}" for n in range(3)},
            "too_old": {f"by-time-{n}" for n in range(3)},
        }
        assert problems(world) == ()


@pytest.mark.proves("E3")
@pytest.mark.parametrize("branches", [(), (Branch(1, 6), Branch(2, 14))])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_settled_is_what_the_sampler_drops(seed: int, branches: tuple[Branch, ...]) -> None:
    """The same rollouts, sealed by one sealer that compares and by one that does not."""
    comparing, plain = fresh_world(), fresh_world(fresh_for="")
    newest = PolicyRef("", len(branches), 20)
    for world in (comparing, plain):
        dice = random.Random(seed)
        announce(world, 20, branches=branches)
        for number in range(40):
            steps = [dice.choice((-1, *range(4, 21))) for _ in range(dice.choice((1, 2, 3)))]
            of: dict[str, Any] = {
                "epoch": dice.randrange(3),
                "lineage": dice.choice(("", "", "other")),
            }
            publish(world, f"g{number}", *steps, **of)
        seal(world)
    choosing = choosing_of(plain.config.samplers[SAMPLER], plain.config.environments)
    expected: dict[str, set[str]] = {}
    for event in plain.flushes():
        for known in known_groups(PartitionAddress("math", 1, 0), 0, event):
            reason = dropped_for(known.policies, newest, branches, choosing)
            if reason is not None and reason != "no_weight_step":
                uids = uids_of(event, known.ref.index_in_flush)
                expected.setdefault(reason, set()).update(uids)
    assert expected.keys() == ({"stale", "off_branch"} if branches else {"stale"})
    assert settled_uids(comparing) == expected
    for world in (comparing, plain):
        world.close()


def uids_of(event: Flushed, index: int) -> tuple[str, ...]:
    start = sum(group.rows for group in event.groups[:index])
    return event.segments.uids[start : start + event.groups[index].rows]


@pytest.mark.proves("E3", "I4")
def test_what_was_decided_stays_so_whatever_policy_comes_later() -> None:
    with fresh_world() as world:
        announce(world, 20)
        publish(world, "stale", 0, 0)
        publish(world, "fresh", 15, 15)
        seal(world)
        announce(world, 5, offset=2, branches=(Branch(1, 5),))
        seal(world)
        announce(world, 99, offset=3)
        publish(world, "later", 15, 15)
        seal(world)
        assert world.groups() == [("fresh-0", "fresh-1")]
        assert world.settled() == {"stale": 4}
        assert problems(world) == ()


class Died(BaseException):
    """The end of a simulated process."""


@pytest.mark.proves("E3", "I1", "F1")
@pytest.mark.parametrize("died_before", ["append_event", "project_manifests"])
def test_a_sealer_that_died_leaves_its_successor_what_was_not_confirmed(died_before: str) -> None:
    """The successor knows a newer policy: it decides anew only what no event says."""

    def die(flush: Flush) -> None:
        raise Died

    with fresh_world() as world:
        announce(world, 10)
        publish(world, "one", 5, 5)
        names = [step.name for step in STEPS]
        at = names.index(died_before)
        broker = EvictableBroker(world.logs)
        first = world.sealer(broker=broker, steps=(*STEPS[:at], FlushStep("die", die)))
        with pytest.raises(Died):
            world.until(first)
        broker.evict()
        announce(world, 20, offset=2)
        seal(world)
        confirmed = died_before == "project_manifests"
        assert world.groups() == ([("one-0", "one-1")] if confirmed else [])
        assert world.settled() == ({} if confirmed else {"stale": 2})
        steps = [one.step for event in world.flushes() for one in event.newest_policy]
        assert steps == ([10] if confirmed else [20])
        assert problems(world) == ()


def test_an_older_announcement_and_those_of_other_samplers_change_nothing() -> None:
    with fresh_world() as world:
        announce(world, 20, offset=9)
        announce(world, 3, offset=4)  # A zombie repeats it.
        announce(world, 90, offset=50, sampler="another")
        append(world, b"garbage")
        publish(world, "stale", 3, 3)
        publish(world, "fresh", 13, 13)
        seal(world)
        assert world.groups() == [("fresh-0", "fresh-1")]


def test_nothing_is_compared_before_a_policy_is_known_or_where_nobody_asked_for_it() -> None:
    for world in (fresh_world(), fresh_world(fresh_for="")):
        with world:
            if not world.environment.fresh_for:
                announce(world, 90)
            publish(world, "old", 0, 0)
            seal(world)
            assert world.groups() == [("old-0", "old-1")]
            assert [event.newest_policy for event in world.flushes()] == [()]


@pytest.mark.proves("F14")
def test_a_dispatched_group_that_is_stale_will_never_come_back() -> None:
    with fresh_world() as world:
        announce(world, 20)
        world.publish_entries(make_dispatched(group_uid="asked", example_id="ex-1", group_size=2))
        publish(world, "asked", 0, 0)
        seal(world)
        ended = [(one.reason, one.example_ids) for f in world.flushes() for one in f.unsealed]
        assert ended == [("stale", ("ex-1",))]
        assert world.settled() == {"stale": 2, "dispatched": 1}
