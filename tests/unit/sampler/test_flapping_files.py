"""A file that is missing for a moment: every rank gets the same batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from harness.failing_blobs import PassingBlobs
from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, log_end, memory_world
from rollstream.folds.state import SamplerState
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.entropy import SystemEntropy
from rollstream.sampler import GroupsUnreadable, SamplerView
from rollstream.sampler.batch.share import with_rows
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.command import Command, R, read
from rollstream.sampler.engine.in_process import OwnerInProcess
from rollstream.sampler.errors import BatchUnsettled
from rollstream.schemas.events import BatchServed, Replaced
from rollstream.store import BlobInfo, BlobMissing, Blobs
from rollstream.streams.errors import DeliveryUnknown
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.owned.sending import Ticket

WAIT_S = 30.0
RANKS = 2
pytestmark = pytest.mark.proves("F20")


class FlappingBlobs(PassingBlobs):
    """The blob at ``missing`` is not there."""

    def __init__(self, inner: Blobs) -> None:
        super().__init__(inner)
        self.missing = ""

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        if path == self.missing:
            raise BlobMissing(f"there is no blob {path}")
        return super().read_ranges(path, spans)

    def read(self, path: str) -> bytes:
        if path == self.missing:
            raise BlobMissing(f"there is no blob {path}")
        return super().read(path)

    def info(self, path: str) -> BlobInfo | None:
        return None if path == self.missing else super().info(path)


class World:
    """A decided batch of two groups whose rows nobody has read, and a third group."""

    def __init__(self) -> None:
        self.local: LocalWorld = memory_world()
        self.writer = self.local.writer()
        self.paths: dict[str, str] = {}  # Of the files of groups, by their ids.
        for number in range(RANKS + 1):
            self.seal(f"ex-{number}")
        self.blobs = FlappingBlobs(self.local.store)
        self.owner = OwnerInProcess(
            self.local.name,
            self.local.config,
            broker=self.local.broker(),
            store=self.blobs,
            clock=SystemClock(),
            entropy=SystemEntropy(),
        )
        self.asked = [
            NextBatch(step=0, num_groups=RANKS, dp_rank=rank, dp_size=RANKS)
            for rank in range(RANKS)
        ]
        self.slow = self.owner.begin(self.asked[1])
        self.owner.decide(self.slow)
        local = self.local
        with SamplerView(
            local.name, config=local.config, broker=local.broker(), store=local.store
        ) as view:
            chosen = view.batch(0).sampled.group_ids
        self.path = self.paths[chosen[0]]

    def seal(self, example_id: str) -> None:
        event = self.writer.flush(GroupSpec(example_id=example_id))
        self.paths[event.groups[0].group_id] = event.files[0].path

    def digest(self, rank: int) -> bytes:
        """Of the batch of which this rank is given its share."""
        return with_rows(self.owner.execute(self.asked[rank], WAIT_S).value).decided.digest


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.owner.close()
    made.local.close()


def test_groups_stay_if_a_share_is_handed_out_while_others_are_looked_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.blobs.missing = world.path
    written = log_end(world.local)
    handed_out: list[bytes] = []

    repair = world.owner.repair

    def repaired(command: Command[R], error: GroupsUnreadable) -> Command[R]:
        others = repair(command, error)
        world.blobs.missing = ""
        handed_out.append(world.digest(1))
        return others

    monkeypatch.setattr(world.owner, "repair", repaired)
    assert [world.digest(0)] == handed_out
    assert log_end(world.local) == written


def test_what_was_being_read_when_its_groups_gave_way_is_shown_to_nobody(world: World) -> None:
    world.blobs.missing = world.path
    replaced = world.digest(0)
    world.blobs.missing = ""
    with pytest.raises(BatchUnsettled, match="others take their places; repeat the call"):
        read(world.slow.answered.result(0).value)
    assert world.digest(1) == replaced


def test_nobody_is_given_what_an_interrupted_call_may_have_replaced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirm = OwnedLog._confirm

    def interrupted(log: OwnedLog[SamplerState], ticket: Ticket, *given: Any) -> int:
        if isinstance(ticket.event, Replaced):
            raise KeyboardInterrupt
        return confirm(log, ticket, *given)

    monkeypatch.setattr(OwnedLog, "_confirm", interrupted)
    world.blobs.missing = world.path
    with pytest.raises(KeyboardInterrupt):
        world.digest(0)
    world.blobs.missing = ""
    with pytest.raises(BatchUnsettled):
        read(world.slow.answered.result(0).value)
    assert world.digest(0) == world.digest(1)


def test_groups_give_way_in_a_batch_whose_decision_was_in_doubt_and_is_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirm = OwnedLog._confirm
    for number in range(RANKS):
        world.seal(f"later-{number}")

    def in_doubt(log: OwnedLog[SamplerState], ticket: Ticket, *given: Any) -> int:
        if isinstance(ticket.event, BatchServed):
            world.blobs.missing = world.paths[ticket.event.groups[0].group_id]
            raise DeliveryUnknown("the test's report is lost")
        return confirm(log, ticket, *given)

    monkeypatch.setattr(OwnedLog, "_confirm", in_doubt)
    step = NextBatch(step=1, num_groups=RANKS)
    batch = with_rows(world.owner.execute(step, WAIT_S).value)
    assert batch.decided.batch_id.endswith("-r1")
    assert world.blobs.missing not in batch.decided.paths
