"""Calls that wait for groups: they keep nobody from deciding, and end when the groups come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import pytest

from harness.brokers import until
from harness.groups import GroupSpec
from harness.sampler_worlds import WITHOUT_RAY, SamplerWorld
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import (
    Batch,
    Fenced,
    NotEnoughGroups,
    RequestDiffers,
    SamplerApi,
    SamplerUnavailable,
)
from rollstream.schemas.events import BatchServed
from rollstream.schemas.wire_schemas import MARKER
from rollstream.streams.broker import TopicPartition
from rollstream.streams.owned.follow import Follower
from rollstream.streams.topics.layout import Layout

WAIT_S = 60.0
RANKS = 8
P = ParamSpec("P")
T = TypeVar("T")


class Callers:
    """Threads that make calls of a sampler; how many wait is asked through another client."""

    def __init__(self, world: SamplerWorld) -> None:
        self._threads = ThreadPoolExecutor(2 * RANKS)
        self.sampler = world.open()

    def waiting(self, count: int) -> None:
        """Returns once so many calls wait."""
        until(lambda: self.sampler.stats().calls_waiting == count)

    def call(self, method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Makes the call in a thread, and returns once it waits."""
        before = self.sampler.stats().calls_waiting
        made = self._threads.submit(method, *args, **kwargs)
        self.waiting(before + 1)
        return made

    def close(self) -> None:
        self._threads.shutdown()


@pytest.fixture
def callers(world: SamplerWorld) -> Iterator[Callers]:
    made = Callers(world)
    yield made
    made.close()


def examples(count: int, first: int = 0) -> list[GroupSpec]:
    return [GroupSpec(example_id=f"ex-{i}") for i in range(first, first + count)]


def first_batch(world: SamplerWorld) -> tuple[SamplerApi, Batch]:
    world.writer().flush(*examples(2))
    sampler = world.open()
    sampler.resume(None)
    return sampler, sampler.next_batch(0, 2, timeout_s=WAIT_S)


def test_others_decide_while_ranks_wait_and_all_ranks_get_the_one_batch(
    world: SamplerWorld, callers: Callers
) -> None:
    sampler, batch = first_batch(world)
    ranks = [
        callers.call(sampler.next_batch, 1, RANKS, timeout_s=WAIT_S, dp_rank=rank, dp_size=RANKS)
        for rank in range(RANKS)
    ]
    other = world.open()
    other.ack(batch)
    other.publish_policy(1, policy_version="step-1")
    other.checkpointed(0)
    assert other.progress().trained == {"math": {"ex-0": 1, "ex-1": 1}}
    assert other.stats().calls_waiting == RANKS
    writer = world.writer(partition=1)
    writer.flush(*examples(RANKS - 1))
    callers.waiting(RANKS)
    writer.flush(*examples(1, first=RANKS))
    shares = [rank.result(WAIT_S) for rank in ranks]
    assert [share.slots for share in shares] == [(rank,) for rank in range(RANKS)]
    assert len({share.digest for share in shares}) == 1
    assert len({uid for share in shares for uid in share.uids}) == 2 * RANKS
    where = TopicPartition(Layout(world.config.kafka.namespace).sampler(world.name), 0)
    follower = Follower(world.broker(), {where: 0})
    events = [confirmed.event for confirmed in follower.read_to_end(Deadline(WAIT_S))]
    follower.close()
    assert [event.step for event in events if isinstance(event, BatchServed)] == [0, 1]


def test_each_call_that_waits_keeps_its_own_deadline(world: SamplerWorld, callers: Callers) -> None:
    sampler, _ = first_batch(world)
    patient = callers.call(sampler.next_batch, 1, 2, timeout_s=WAIT_S)
    with pytest.raises(NotEnoughGroups, match="step 1 needs 2 groups"):
        sampler.next_batch(1, 2, timeout_s=0.2)
    assert not patient.done()
    callers.waiting(1)
    world.writer(partition=1).flush(*examples(2))
    assert patient.result(WAIT_S).num_groups == 2


def test_groups_go_to_the_call_that_has_waited_longest(
    world: SamplerWorld, callers: Callers
) -> None:
    sampler, batch = first_batch(world)
    replaced = callers.call(sampler.replace, batch, [1], "tried", timeout_s=WAIT_S)
    following = callers.call(sampler.next_batch, 1, 1, timeout_s=WAIT_S)
    writer = world.writer(partition=1)
    writer.flush(*examples(1, first=7))
    assert set(replaced.result(WAIT_S).uids) > set(batch.uids[:2])
    assert not following.done()
    writer.flush(*examples(1, first=8))
    assert not set(following.result(WAIT_S).uids) & set(replaced.result().uids)


@WITHOUT_RAY
def test_a_call_that_waits_learns_that_its_step_was_served_to_other_arguments(
    world: SamplerWorld, callers: Callers
) -> None:
    sampler, _ = first_batch(world)
    greedy = callers.call(sampler.next_batch, 1, 5, timeout_s=WAIT_S)
    modest = callers.call(sampler.next_batch, 1, 2, timeout_s=WAIT_S)
    world.writer(partition=1).flush(*examples(2))
    assert modest.result(WAIT_S).num_groups == 2
    with pytest.raises(RequestDiffers, match="num_groups"):
        greedy.result(WAIT_S)


@WITHOUT_RAY
def test_a_successors_resume_ends_the_waits_of_the_trainer_before(
    world: SamplerWorld, callers: Callers
) -> None:
    sampler, batch = first_batch(world)
    fenced = callers.call(sampler.next_batch, 1, 2, timeout_s=WAIT_S)
    new = world.open()
    assert new.resume(None) == 0
    with pytest.raises(Fenced, match="successor has resumed"):
        fenced.result(WAIT_S)
    assert new.next_batch(0, 2, timeout_s=WAIT_S).digest == batch.digest


def test_closing_ends_the_calls_that_wait(world: SamplerWorld, callers: Callers) -> None:
    left = callers.call(callers.sampler.next_batch, 0, 2, timeout_s=WAIT_S)
    callers.sampler.close()
    with pytest.raises(SamplerUnavailable, match="closed"):
        left.result(WAIT_S)


@WITHOUT_RAY
@pytest.mark.proves("F24")
def test_a_seal_log_that_cannot_be_read_holds_up_none_that_wait(
    world: SamplerWorld, callers: Callers
) -> None:
    sampler, _ = first_batch(world)
    waits = [callers.call(sampler.next_batch, 1, 2, timeout_s=WAIT_S) for _ in range(2)]
    writer = world.broker().writer()
    topic = Layout(world.config.kafka.namespace).groups("math")
    writer.append(topic, MARKER + bytes(8) + b"newer", partition=0)
    assert writer.flush(WAIT_S) == 0
    world.writer("code").flush(GroupSpec(example_id="c"), GroupSpec(example_id="d"))
    assert {wait.result(WAIT_S).num_groups for wait in waits} == {2}
    assert sampler.stats().aside.keys() == {f"{topic}[0]"}
