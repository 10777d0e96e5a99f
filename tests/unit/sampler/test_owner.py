"""Who owns a sampler's decision log, and who knows of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, memory_world
from rollstream.folds.group.known import KnownGroup, known_groups
from rollstream.folds.state import SamplerState
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.entropy import SystemEntropy
from rollstream.sampler.batch.assembled import AssembledBatch
from rollstream.sampler.batch.share import with_rows
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.command import read
from rollstream.sampler.decide.queries.progress import AskProgress
from rollstream.sampler.decide.trainer.commands import Resume
from rollstream.sampler.engine import reading
from rollstream.sampler.engine.calls import Call
from rollstream.sampler.engine.in_process import OwnerInProcess
from rollstream.sampler.engine.logs import SamplerLogs
from rollstream.sampler.engine.reading import Arrived, Reading
from rollstream.sampler.engine.score_pressure import Questions
from rollstream.sampler.rows.deliver import Delivery
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import Fenced, UnknownTopic
from rollstream.streams.owned.follow import Follower
from rollstream.streams.topics.layout import Layout

WAIT_S = 30.0


def owner_in(world: LocalWorld) -> OwnerInProcess:
    return OwnerInProcess(
        world.name,
        world.config,
        broker=world.broker(),
        store=world.store,
        clock=SystemClock(),
        entropy=SystemEntropy(),
    )


def specs(count: int) -> list[GroupSpec]:
    return [GroupSpec(example_id=f"ex-{i}") for i in range(count)]


def batch_of(call: Call[Any]) -> AssembledBatch:
    """What a call was answered."""
    return with_rows(read(call.answered.result(0).value))


def test_an_owner_that_was_fenced_is_so_after_it_was_closed_too() -> None:
    world = memory_world()
    first, successor = (owner_in(world) for _ in range(2))
    first.execute(Resume(checkpointed_step=None), 0.0)
    successor.execute(Resume(checkpointed_step=None), 0.0)
    with pytest.raises(Fenced, match="taken over"):
        first.execute(AskProgress(), 0.0)
    assert first.fenced
    for owner in (first, successor):
        owner.close()
    assert (first.fenced, successor.fenced) == (True, False)
    world.close()


def test_a_defect_ends_the_call_that_meets_it_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    world = memory_world()
    owner = owner_in(world)
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
    owner = owner_in(world)
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
    owner = owner_in(world)
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
    owner = owner_in(world)
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
    owner = owner_in(world)
    owner.execute(AskProgress(), 0.0)
    for spec in specs(3):
        world.writer().flush(spec)
    batch = with_rows(owner.execute(NextBatch(step=0, num_groups=3), 0.0).value)
    assert batch.decided.step == 0
    owner.close()
    world.close()
