"""Who owns a sampler's decision log, and who knows of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any

import pytest

from harness.failing_blobs import PassingBlobs
from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, config_of, memory_world, new_name
from harness.stores import scratch_store
from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.group.known import KnownGroup, known_groups
from rollstream.folds.state import SamplerState
from rollstream.sampler.batch.assembled import AssembledBatch
from rollstream.sampler.batch.share import with_rows
from rollstream.sampler.decide.batches.held_batches import groups_of
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.command import read
from rollstream.sampler.decide.queries.progress import AskProgress
from rollstream.sampler.decide.trainer.commands import Resume
from rollstream.sampler.engine import reading
from rollstream.sampler.engine.calls import Call
from rollstream.sampler.engine.logs import SamplerLogs
from rollstream.sampler.engine.reading import Arrived, Reading
from rollstream.sampler.engine.score_pressure import Questions
from rollstream.sampler.rows import resolved
from rollstream.sampler.rows.deliver import Delivery
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.blobs import BlobInfo
from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import Fenced, UnknownTopic
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.owned.follow import Follower
from rollstream.streams.topics.layout import Layout

WAIT_S = 30.0


def specs(count: int) -> list[GroupSpec]:
    return [GroupSpec(example_id=f"ex-{i}") for i in range(count)]


def batch_of(call: Call[Any]) -> AssembledBatch:
    """What a call was answered."""
    return with_rows(read(call.answered.result(0).value))


def test_an_owner_that_was_fenced_is_so_after_it_was_closed_too() -> None:
    world = memory_world()
    first, successor = (world.owner() for _ in range(2))
    first.execute(Resume(checkpointed_step=None), 0.0)
    successor.execute(Resume(checkpointed_step=None), 0.0)
    with pytest.raises(Fenced, match="taken over"):
        first.execute(AskProgress(), 0.0)
    assert first.fenced
    for owner in (first, successor):
        owner.close()
    assert (first.fenced, successor.fenced) == (True, False)
    world.close()


def test_the_groups_of_a_batch_are_looked_up_once_for_all_its_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = memory_world()
    world.writer().flush(*specs(8))
    looked_up: list[int] = []

    def counted(served: ServedBatch, state: SamplerState) -> list[KnownGroup]:
        looked_up.append(served.event.step)
        return groups_of(served, state)

    monkeypatch.setattr(resolved, "groups_of", counted)
    owner = world.owner()
    asked = [NextBatch(step=0, num_groups=8, dp_rank=rank, dp_size=8) for rank in range(8)]
    answers: list[Any] = [read(owner.execute(one, 0.0).value) for one in asked]
    assert {with_rows(share).decided.step for share in answers} == {0}
    assert looked_up == [0]
    owner.close()
    world.close()


class CountedLists(PassingBlobs):
    """Counts the files that are listed."""

    listed = 0

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[BlobInfo]:
        for found in self.inner.list(prefix, after=after, limit=limit):
            self.listed += 1
            yield found


def test_a_claim_lists_no_more_files_after_many_steps_than_after_few() -> None:
    store = CountedLists(scratch_store())
    config = config_of("file:///unused", new_name(), max_policy_lag=-1)
    world = LocalWorld(MemoryBroker(MemoryLogs()), store, config)
    world.writer().flush(*specs(40))
    listed = []
    for first, end in ((0, 4), (4, 40)):
        with closing(world.successor()) as sampler:
            sampler.resume(first - 1 if first else None)
            for step in range(first, end):
                sampler.next_batch(step, num_groups=1)
                sampler.checkpointed(step)
            sampler.flush()
        store.listed = 0
        with closing(world.successor()) as sampler:
            sampler.resume(end - 1)
            listed.append(store.listed)
    assert listed[0] == listed[1]
    world.close()


def test_a_defect_ends_the_call_that_meets_it_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    world = memory_world()
    owner = world.owner()
    asked = NextBatch(step=0, num_groups=2)
    calls = [owner.begin(asked) for _ in range(2)]
    for call in calls:
        owner.decide(call)
    reply, defects = Delivery.result, [OSError("a defect")]

    def result(self: Delivery, command: NextBatch, state: SamplerState) -> Any:
        if defects:
            raise defects.pop()
        return reply(self, command, state)

    monkeypatch.setattr(Delivery, "result", result)
    world.writer().flush(*specs(2))
    while defects:
        owner.follow(WAIT_S)
    with pytest.raises(OSError, match="a defect"):
        calls[0].answered.result(0)
    assert batch_of(calls[1]).decided.step == 0
    owner.close()
    world.close()


@pytest.mark.parametrize("waits", [True, False])
def test_what_was_read_with_an_event_that_fails_is_not_passed_over(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = memory_world()
    owner = world.owner()
    asked = NextBatch(step=0, num_groups=3)
    call = owner.begin(asked)
    owner.decide(call)
    failing = [2]

    def known(
        log: PartitionAddress,
        offset: int,
        event: Flushed,
        wanted: Sequence[int],
        *,
        all_targets: bool,
        logged_ts: int,
    ) -> list[KnownGroup]:
        failing[0] -= 1
        if not failing[0]:
            raise RuntimeError("a defect")
        return known_groups(
            log, offset, event, wanted, all_targets=all_targets, logged_ts=logged_ts
        )

    monkeypatch.setattr("rollstream.folds.life.alive_groups.known_groups", known)
    writer = world.writer()
    for spec in specs(3):
        writer.flush(spec)
    folding = partial(owner.follow, WAIT_S) if waits else partial(owner.execute, AskProgress(), 0.0)
    with pytest.raises(RuntimeError, match="a defect"):
        folding()
    assert with_rows(owner.execute(asked, 0.0).value).decided.step == 0
    assert batch_of(call).decided.step == 0
    owner.close()
    world.close()


@pytest.mark.parametrize("error", [UnknownTopic("its leader moved"), KeyboardInterrupt()])
def test_what_was_polled_is_folded_whatever_becomes_of_what_is_asked_besides(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = memory_world()
    owner = world.owner()
    owner.execute(Resume(checkpointed_step=None), 0.0)
    world.writer().flush(*specs(1))
    where = Layout.of(world.config.kafka).groups_log(PartitionAddress("math", 1, 0))
    asked = Questions(0, {"math": [where]}, ())

    def refused(self: Follower, where: TopicPartition, timestamp_us: int, timeout_s: float) -> bool:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(SamplerLogs, "questions", lambda _: asked)
        patched.setattr(Follower, "has_read", refused)
        with suppress(KeyboardInterrupt):
            owner.follow(WAIT_S)
    assert with_rows(owner.execute(NextBatch(step=0, num_groups=1), 0.0).value).decided.step == 0
    owner.close()
    world.close()


class InterruptedLock:
    """A lock for which the next thread that wants it waits until it is interrupted."""

    def __init__(self, lock: Any) -> None:
        self._lock, self.interrupts = lock, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def __enter__(self) -> Any:
        if self.interrupts:
            self.interrupts = False
            raise KeyboardInterrupt
        return self._lock.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)


def test_who_is_interrupted_between_a_poll_and_its_fold_keeps_nobody_from_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = memory_world()
    owner = world.owner()
    owner.execute(Resume(checkpointed_step=None), 0.0)
    world.writer().flush(*specs(1))
    lock = InterruptedLock(owner._lock)
    monkeypatch.setattr(owner, "_lock", lock)
    poll = Reading.poll

    def polled(self: Reading, timeout_s: float) -> Arrived:
        arrived = poll(self, timeout_s)
        lock.interrupts = True
        return arrived

    with monkeypatch.context() as patched:
        patched.setattr(Reading, "poll", polled)
        with pytest.raises(KeyboardInterrupt):
            owner.follow(WAIT_S)
    assert with_rows(owner.execute(NextBatch(step=0, num_groups=1), 0.0).value).decided.step == 0
    owner.close()
    world.close()


def test_the_first_claim_reads_all_that_was_sealed_since_a_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "FOLLOW_RECORDS_MAX", 1)
    world = memory_world()
    owner = world.owner()
    owner.execute(AskProgress(), 0.0)
    for spec in specs(3):
        world.writer().flush(spec)
    batch = with_rows(owner.execute(NextBatch(step=0, num_groups=3), 0.0).value)
    assert batch.decided.step == 0
    owner.close()
    world.close()
