"""A rollout of several segments, in a ``with`` block.

Which segment is the last is known only when the block ends, so the newest one is held back until
the next turn or the end. It is checked and copied at once all the same: what cannot be written is
refused while the caller can still give that turn differently. Each names the tokens before it
(``prefix_hash``), so that a chain with a missing link shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Self, Unpack

from rollstream.producers.engine.outbox import Outbox
from rollstream.producers.rollouts.arguments import TurnArguments, takes
from rollstream.producers.rollouts.blocks import Send
from rollstream.producers.rollouts.membership import Membership, reason_of, sent_though
from rollstream.producers.rollouts.validate import GroupAddress, Segment, unknown
from rollstream.runtime.at_once import at_once
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.ids import prefix_hash
from rollstream.schemas.ingest.entry import Entry

NO_TURN = "ended without a turn"
IN_DOUBT = "ended behind a turn of which it is in doubt whether it was written"
_OF_THE_TRAJECTORY = (
    *("rollout_uid", "is_last_segment", "segment_idx", "continuation_of", "prefix_hash"),
    *GroupAddress._fields,
)
_OF_A_TURN = frozenset(TurnArguments.__annotations__)


class TrajectoryBlock:
    """A block that publishes the segments of one rollout, in the group at this address.

    Args:
        send: gets what it publishes on its way.
        rollout_uid: what the segments share; empty: a new one.
        membership: counts the rollout, where a group was dispatched.
    """

    def __init__(
        self,
        outbox: Outbox,
        address: GroupAddress,
        send: Send,
        rollout_uid: str,
        membership: Membership | None = None,
    ) -> None:
        self.rollout_uid = rollout_uid or outbox.new_uid()
        self._outbox = outbox
        self._address = address
        self._send = send
        self._membership = membership
        self._stamped = outbox.stamped(address)
        self._held: Segment | None = None  # The newest turn.
        self._in_doubt = False  # Whether that one may be in the log, as not the last.
        self._begun = self._ended = False
        if membership is not None:
            membership.admit(self.rollout_uid)

    async def _turn(self, given: Mapping[str, Any]) -> None:
        """Holds this turn back and publishes the one before it.

        A turn that raises, here or while the one before it is sent, is discarded. Where it is in
        doubt whether that one was written, it is sent again as it was, which counts once.
        """
        if not self._begun:
            raise InvalidRollout(
                "trajectory",
                self.rollout_uid,
                "write `with … as trajectory:` around its turns, or `async with` for an async "
                "producer",
                f"{self.rollout_uid} has not begun, and only the end of its block publishes the "
                "newest turn",
            )
        if self._ended:
            finding = f"{self.rollout_uid} has ended with its block"
            raise InvalidRollout("trajectory", self.rollout_uid, "begin another one", finding)
        for name in _OF_THE_TRAJECTORY:
            if name in given:
                raise TypeError(f"{name!r} is the trajectory's; a turn does not take it")
        for name in given:
            if name not in _OF_A_TURN:
                raise unknown("turn", name)
        before = self._held
        own = {"rollout_uid": self.rollout_uid, "is_last_segment": False, **self._chain(before)}
        held = self._outbox.segment({**given, **own}, self._stamped)
        self._outbox.rollout(held)  # Refuses one that is too large.
        self._held = held
        if self._membership is not None:
            self._membership.sampled_by(held)
        if before is not None:
            outgoing = self._outbox.rollout(before)
            try:
                await self._send((outgoing,))
            except BaseException:
                self._held = before
                self._in_doubt |= outgoing.left
                raise
            self._in_doubt = False

    async def _leave(self, error: BaseException | None) -> None:
        """Publishes the newest turn as the last; where the block raised, that the rollout failed,
        and so where that turn may be in the log as one that is not the last.

        A rollout whose end could not be published is missing in its group.
        """
        self._ended = True
        held, send = self._held, partial(self._send, raise_earlier=False)
        if held is not None and error is None and not self._in_doubt:
            environment, entry, size = held
            last = Entry.of({**entry.fields, "is_last_segment": True})
            outgoing = [self._outbox.rollout((environment, last, size))]
            try:
                await send(outgoing)
            except BaseException as cut_off:
                if self._membership is not None and sent_though(cut_off, outgoing):
                    self._membership.end(self.rollout_uid)
                raise
            if self._membership is not None:
                self._membership.end(self.rollout_uid)
            return
        if held is not None:
            await send((self._outbox.rollout(held),))
        reason = reason_of(error) if error is not None else IN_DOUBT if held else NO_TURN
        if self._membership is not None:
            await self._membership.fail(send, reason, 1, self.rollout_uid)
        else:
            await send((self._outbox.failed(self._address, reason, 1, self.rollout_uid),))

    def _chain(self, before: Segment | None) -> Mapping[str, Any]:
        """The fields that tie a segment to the one before it."""
        if before is None:
            return {"segment_idx": 0}
        fields = before[1].fields
        hashed = prefix_hash(
            fields.get("prefix_hash", ""), fields["prompt_tokens"], fields["output_tokens"]
        )
        return {
            "segment_idx": fields["segment_idx"] + 1,
            "continuation_of": self.rollout_uid,
            "prefix_hash": hashed,
        }


class Trajectory(TrajectoryBlock):
    """Publishes the turns of one rollout; ``RolloutProducer.trajectory`` makes it.

    The rollout is complete when the block ends, and failed when it raises.
    """

    @takes(TurnArguments)
    def turn(self, **segment: Unpack[TurnArguments]) -> None:
        """Adds a turn, and publishes the one before it. A turn that raises is discarded.

        The arguments are those of ``RolloutProducer.publish``. Each turn gives its whole context as
        ``prompt_tokens``. A trajectory's return is the sum of its turns' rewards. If no later score
        comes, give the last turn a reward.
        """
        at_once(self._turn(segment))

    def __enter__(self) -> Self:
        self._begun = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        at_once(self._leave(error))


class AsyncTrajectory(TrajectoryBlock):
    """Publishes the turns of one rollout with ``await``; see ``Trajectory``."""

    @takes(TurnArguments)
    async def turn(self, **segment: Unpack[TurnArguments]) -> None:
        """Adds a turn, and publishes the one before it, as ``Trajectory.turn`` does."""
        await self._turn(segment)

    async def __aenter__(self) -> Self:
        self._begun = True
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._leave(error)
