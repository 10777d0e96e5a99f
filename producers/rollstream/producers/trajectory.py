"""A rollout of several segments, in a ``with`` block.

Which segment is the last is known only when the block ends, so the newest one is held back until
the next turn or the end. Its record is made at once all the same: what cannot be written is refused
while the caller can still give that turn differently. Each names the tokens before it
(``prefix_hash``), so that a chain with a missing link shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self, Unpack

from rollstream.producers.arguments import TurnArguments, takes
from rollstream.producers.membership import Membership, failure
from rollstream.producers.outbox import IN_DOUBT, Deliver, Outbox, Outgoing, Send, reason_of
from rollstream.producers.validate import GroupAddress
from rollstream.schemas.ids import prefix_hash

NO_TURN = "ended without a turn"


class Held(NamedTuple):
    """The newest turn: as fields, and as the record it is unless it turns out to be the last."""

    fields: dict[str, Any]
    record: Outgoing


class Turns:
    """The segments of one rollout, as records. No I/O."""

    def __init__(self, outbox: Outbox, where: GroupAddress, rollout_uid: str) -> None:
        self.rollout_uid = rollout_uid or outbox.new_uid()
        self._outbox = outbox
        self._place = where
        self._held: Held | None = None
        self._before: Held | None = None

    def turn(self, given: Mapping[str, Any]) -> Outgoing | None:
        """Holds this turn back, unless it is refused; the record of the one before it."""
        before = None if self._held is None else self._held.fields
        chain: dict[str, Any] = {"segment_idx": 0}
        if before is not None:
            chain = {
                "segment_idx": before["segment_idx"] + 1,
                "continuation_of": self.rollout_uid,
                "prefix_hash": prefix_hash(
                    before["prefix_hash"], before["prompt_tokens"], before["output_tokens"]
                ),
            }
        for name in ("rollout_uid", "is_last_segment", *self._place._fields, *_CHAIN):
            if name in given:
                raise TypeError(f"{name!r} is the trajectory's; a turn does not take it")
        place = self._place._asdict()
        uid = {"rollout_uid": self.rollout_uid, "is_last_segment": False}
        fields = self._outbox.fields({**given, **place, **chain, **uid})
        newest = Held(fields, self._outbox.segment(fields))
        self._before, self._held = self._held, newest
        return None if self._before is None else self._before.record

    def undo(self) -> None:
        """The record of the turn before did not get on its way: the newest turn was never given."""
        self._held = self._before

    def last(self, error: BaseException | None) -> Outgoing | None:
        """The newest turn's record, which ends the rollout if nothing was raised."""
        if self._held is None:
            return None
        if error is not None:
            return self._held.record
        return self._outbox.segment({**self._held.fields, "is_last_segment": True})

    def end(self, error: BaseException | None) -> Outgoing | None:
        """Counts how the rollout ended, once ``last`` is on its way; the word if it failed."""
        held, self._held = self._held, None
        if held is not None and error is None:
            self._ended()
            return None
        return self._failed(NO_TURN if error is None else reason_of(error))

    def take_back(self) -> None:
        """The word that it failed was not queued. Nobody counts outside of a dispatched group."""

    def _ended(self) -> None:
        """Nobody counts a rollout outside of a dispatched group."""

    def _failed(self, reason: str) -> Outgoing:
        return failure(self._outbox, self._place, reason, 1, self.rollout_uid)


class TurnsOfMember(Turns):
    """The segments of a member of a dispatched group."""

    def __init__(self, membership: Membership, rollout_uid: str) -> None:
        super().__init__(membership.outbox, membership.place, rollout_uid)
        self._membership = membership
        membership.admit(self.rollout_uid)

    def take_back(self) -> None:
        self._membership.take_back(1)

    def _ended(self) -> None:
        self._membership.sent({"rollout_uid": self.rollout_uid, "is_last_segment": True})

    def _failed(self, reason: str) -> Outgoing:
        return self._membership.fail(reason, 1, self.rollout_uid)


_CHAIN = ("segment_idx", "continuation_of", "prefix_hash")


class Trajectory:
    """The turns of one rollout; ``RolloutProducer.trajectory`` makes it.

    The rollout is complete when the block ends, and failed when it raises.
    """

    def __init__(self, turns: Turns, send: Send) -> None:
        self._turns = turns
        self._send = send

    @property
    def rollout_uid(self) -> str:
        """What the segments share."""
        return self._turns.rollout_uid

    @takes(TurnArguments)
    def turn(self, **segment: Unpack[TurnArguments]) -> None:
        """Checks this turn, and publishes the one before it. One that raises was never given."""
        before = self._turns.turn(segment)
        if before is not None:
            try:
                self._send(before)
            except BaseException:
                self._turns.undo()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        last = self._turns.last(error)
        if last is not None:
            self._send(last, tell=False)
        failed = self._turns.end(error)
        if failed is not None:
            try:
                self._send(failed, tell=False)
            except BaseException:
                self._turns.take_back()
                raise


class AsyncTrajectory:
    """The same with ``await``; each call returns once the broker has what it says."""

    def __init__(self, turns: Turns, deliver: Deliver) -> None:
        self._turns = turns
        self._deliver = deliver

    @property
    def rollout_uid(self) -> str:
        """What the segments share."""
        return self._turns.rollout_uid

    @takes(TurnArguments)
    async def turn(self, **segment: Unpack[TurnArguments]) -> None:
        """Checks this turn, and publishes the one before it. One that raises was never given."""
        before = self._turns.turn(segment)
        if before is not None:
            try:
                await self._deliver(before)
            except BaseException:
                self._turns.undo()
                raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        last = self._turns.last(error)
        if last is not None:
            await self._deliver(last)
        failed = self._turns.end(error)
        if failed is not None:
            try:
                await self._deliver(failed)
            except IN_DOUBT:
                raise
            except BaseException:
                self._turns.take_back()
                raise
