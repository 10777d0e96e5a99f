"""Who looks at each sealed group, as verifiers do: none is left out, what is done stays done."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.brokers import commit, until
from harness.groups import GroupSpec
from harness.sampler_worlds import ENVIRONMENTS, LocalWorld, memory_world, world_of
from harness.verifying import first_rewards, verify
from rollstream.consumers import SealedGroups, UnknownEnvironment
from rollstream.producers import ScoreProducer
from rollstream.sampler.history import replay_step
from rollstream.schemas.events import Flushed
from rollstream.schemas.records import RolloutGroup
from rollstream.streams.broker import TopicPartition
from rollstream.streams.topics.layout import Layout

WAIT_S = 60.0
LATE = GroupSpec(rewards=(None, None))
KILLS = 50
pytestmark = pytest.mark.proves("A18")


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalWorld]:
    made = world_of(request, tmp_path)
    yield made
    made.close()


def reader(world: LocalWorld, *, only_awaiting: bool = False) -> SealedGroups:
    return SealedGroups(
        "tests",
        ["math"],
        config=world.config,
        only_awaiting=only_awaiting,
        broker=world.broker(),
        store=world.store,
    )


def take(groups: SealedGroups, count: int) -> list[RolloutGroup]:
    """So many groups, or more of the same flush."""
    found: list[RolloutGroup] = []

    def enough() -> bool:
        found.extend(groups.poll(timeout_s=0.2))
        return len(found) >= count

    until(enough)
    return found


def ids(flushed: Flushed) -> list[str]:
    return [group.group_id for group in flushed.groups]


def test_what_was_committed_is_done_and_the_rest_comes_again(world: LocalWorld) -> None:
    writer = world.writer()
    first, second, third = (writer.flush(LATE, GroupSpec()) for _ in range(3))
    with reader(world) as groups:
        (one, other) = take(groups, 2)
        assert [one.id, other.id] == ids(first)
        assert [rollout.rollout_uid for rollout in one.rollouts] == list(first.segments.uids[:2])
        assert [rollout.reward for rollout in (*one.rollouts, *other.rollouts)] == [
            *(None, None),
            *(0.0, 1.0),
        ]
        groups.commit()
        assert [group.id for group in take(groups, 2)] == ids(second)
    with reader(world) as groups:
        assert [group.id for group in take(groups, 4)] == [*ids(second), *ids(third)]
        groups.commit()
    last = writer.flush(LATE)
    with reader(world) as groups:
        assert [group.id for group in take(groups, 1)] == ids(last)


def test_a_new_owner_of_the_log_changes_nothing(world: LocalWorld) -> None:
    writers = [world.writer()]
    sealed = ids(writers[0].flush(LATE))
    with reader(world) as groups:
        assert [group.id for group in take(groups, 1)] == sealed
        groups.commit()
    successor = world.writer()  # Claims the same partition: the first one is a zombie now.
    sealed = ids(successor.flush(LATE))
    with reader(world) as groups:
        assert [group.id for group in take(groups, 1)] == sealed
        groups.commit()
        assert groups.poll(timeout_s=0.1) == []


def test_a_place_that_somebody_else_committed_is_read_from_the_beginning(world: LocalWorld) -> None:
    writer = world.writer()
    flushed = [writer.flush(LATE) for _ in range(2)]
    with reader(world) as groups:
        take(groups, 1)
        groups.commit()
    layout = Layout.of(world.config.kafka)
    where = TopicPartition(layout.groups("math"), 0)
    group = layout.reader_group("tests")
    member = world.broker().group_reader(group, [where.topic], on_revoked=lambda _: None)

    def joined() -> bool:
        member.poll(1, 0.1)
        return where in member.assigned()

    until(joined)
    committed = world.broker().admin().committed(group, [where], WAIT_S)[where]
    assert commit(member, where, committed.offset, "1")  # No claim stands there.
    member.close()
    with reader(world) as groups:
        assert [group.id for group in take(groups, 1)] == ids(flushed[1])


def test_groups_that_have_their_rewards_may_be_left_out(world: LocalWorld) -> None:
    flushed = world.writer().flush(GroupSpec(), LATE, GroupSpec(rewards=(0.5, None)))
    with reader(world, only_awaiting=True) as groups:
        assert [group.id for group in take(groups, 2)] == ids(flushed)[1:]


def test_groups_that_cannot_be_read_are_passed_over(world: LocalWorld) -> None:
    writer = world.writer()
    gone, damaged, whole = (writer.flush(LATE) for _ in range(3))
    world.store.delete(gone.files[0].path)
    world.store.replace(damaged.files[0].path, b"PAR1 no more")
    with reader(world) as groups:
        assert [group.id for group in take(groups, 1)] == ids(whole)


def test_several_readers_share_the_partitions(world: LocalWorld) -> None:
    writers = [world.writer("math", partition) for partition in range(ENVIRONMENTS["math"])]
    sealed = {one for writer in writers for one in ids(writer.flush(LATE))}
    with reader(world) as first, reader(world) as second:
        found: set[str] = set()

        def all_found() -> bool:
            for groups in (first, second):
                found.update(group.id for group in groups.poll(timeout_s=0.1))
                groups.commit()
            return found == sealed

        until(all_found)


def test_an_unknown_environment_is_refused(world: LocalWorld) -> None:
    with pytest.raises(UnknownEnvironment, match=r"no \[environments.maths\]"):
        SealedGroups("tests", ["maths"], config=world.config, broker=world.broker())


class Killed(BaseException):
    """The end of a simulated process."""


def test_a_verifier_that_is_killed_again_and_again_scores_each_group_once(
    request: pytest.FixtureRequest,
) -> None:
    world = memory_world()
    request.addfinalizer(world.close)
    world.configure(score_timeout_s=4e9)
    writers = [world.writer("math", partition) for partition in range(ENVIRONMENTS["math"])]
    sealed = [one for _ in range(10) for writer in writers for one in ids(writer.flush(LATE, LATE))]
    left = 0

    def step() -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Killed

    def run(die_at: int) -> bool:
        """A verifier from its start until nothing is left, or its end; whether it was killed."""
        nonlocal left
        left = die_at
        with reader(world) as groups, scorer_of(world) as scores:
            try:
                while verify(groups, scores, step):
                    pass
            except Killed:
                return True
        return False

    draw, kills = random.Random(7), 0
    while kills < KILLS:
        if run(draw.randint(1, 6)):
            kills += 1
        else:
            sealed += ids(writers[0].flush(LATE, LATE))
    assert not run(die_at=0)
    first, others = first_rewards(world.config, "math", world.broker())
    assert sorted(first) == sorted(sealed)
    assert others > 0
    sampler = world.open()
    sampler.resume(None)
    batch = sampler.next_batch(0, len(sealed), timeout_s=WAIT_S)
    served = dict(zip(batch.uids, batch.rewards.tolist(), strict=True))
    said = {uid: reward for rewards in first.values() for uid, reward in rewards.items()}
    assert served == pytest.approx(said)
    (replayed,) = replay_step(world.name, 0, config=world.config, broker=world.broker())
    assert replayed.same


def scorer_of(world: LocalWorld) -> ScoreProducer:
    return ScoreProducer(
        environment="math",
        scorer="verifier",
        namespace=world.config.kafka.namespace,
        broker=world.broker(),
    )
