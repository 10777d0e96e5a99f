"""The consumer group's offset of one partition: a hint for the next owner, with what hinders this
one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import NamedTuple

from rollstream.consumers.beside.asked import Asked
from rollstream.consumers.sealing.context import SealerContext
from rollstream.streams.broker import Committed, GroupReader, TopicPartition
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.troubles import CommitNote, note_in

COMMIT_EVERY_S = 1.0  # The committed offset is a hint: the seal log carries the watermark.
TELL_EVERY_S = 5.0
LOOK_EVERY_S = 0.5  # At what hinders, while that does not change.
_log = logging.getLogger("rollstream.sealer")
GroupOffsets = Asked[dict[TopicPartition, Committed]]


def group_offsets(context: SealerContext, asked: Collection[TopicPartition]) -> GroupOffsets:
    """Returns the one question to the group for what it committed of these partitions."""
    group, admin = context.layout.sealer_group(context.environment), context.broker.admin()
    return Asked(context.threads.askers, lambda: admin.committed(group, asked, context.ask_s))


class _Commit(NamedTuple):
    """One that was sent, and until when its answer is waited for."""

    answer: Future[bool]
    offset: int
    trouble: str
    until_s: float


class CommittedOffset:
    """Commits one after the other, and waits for none. Nothing depends on it: the next commit says
    the same or more.

    Args:
        found: what the group committed of this partition, and of others.
        claim: the newest claim, from which a fold may start; negative: none of this sealer's.

    Attributes:
        offset: what the group committed, by this sealer or another; 0: nothing.
        hint: a claim of the seal log that was committed with it, if any.
        told: what hinders, as it was committed last.
    """

    def __init__(
        self,
        context: SealerContext,
        reader: GroupReader,
        source: TopicPartition,
        found: GroupOffsets,
        claim: Callable[[], int],
    ) -> None:
        self.offset = 0
        self.hint: int | None = None
        self.told = ""
        self._context = context
        self._reader = reader
        self._source = source
        self._claim = claim
        self._found = found
        self._is_known = False
        self._tell_at_s = 0.0
        self._wanted = 0
        self._commit_at_s = 0.0
        self._committing: _Commit | None = None
        self._asking: _Commit | None = None

    def is_known(self) -> bool:
        """Whether the group said what it has; the first calls ask.

        Raises:
            BrokerUnavailable: it did not answer; the next call asks again.
        """
        if not self._is_known and (found := self._found.answer()) is not None:
            offset, note = found.get(self._source, Committed(0, ""))
            self.offset, (self.hint, self.told) = offset, note_in(note)
            self._is_known = True
        return self._is_known

    def is_ours(self) -> bool | None:
        """Whether the group says that the partition is still this sealer's, as it takes the commit
        of what is committed; None: no answer so far.

        Raises:
            BrokerUnavailable: no answer in time; the next call asks again.
        """
        if not self.is_known():
            return None
        if self._asking is None:
            self._committing = None  # Whatever becomes of it.
            self._asking = self._send(max(self.offset, self._wanted), self.told)
        asked, self._asking = self._asking, None
        ours = self._answer_to(asked)
        if ours is None:
            self._asking = asked
        return ours

    def move(self, watermark: int) -> None:
        """Everything below is settled."""
        self._wanted = max(self._wanted, watermark)
        self.commit_if_due()

    def commit_if_due(self) -> None:
        """Commits what was settled since, once in ``COMMIT_EVERY_S``."""
        self._take_answer()
        now_s = self._context.clock.monotonic_s()
        if self._is_known and self._wanted > self.offset and now_s >= self._commit_at_s:
            self._commit(self._wanted, self.told)

    def tell(self, find_trouble: Callable[[], str]) -> None:
        """Commits beside the offset what hinders this partition, or that nothing does any more: for
        `status`, which reads no file and no log of a sealer. At most once in ``TELL_EVERY_S``; it
        is looked for once in ``LOOK_EVERY_S``."""
        self._take_answer()
        now_s = self._context.clock.monotonic_s()
        if not self._is_known or now_s < self._tell_at_s:
            return
        trouble, every_s = find_trouble(), LOOK_EVERY_S
        if trouble != self.told:
            every_s = TELL_EVERY_S
            self._commit(max(self.offset, self._wanted), trouble)
        self._tell_at_s = now_s + every_s

    def leave(self) -> Future[bool] | None:
        """Commits on leaving; what is to be waited for, if anything."""
        self._commit_at_s = 0.0
        self.commit_if_due()
        return None if self._committing is None else self._committing.answer

    def _commit(self, offset: int, trouble: str) -> None:
        self._take_answer()
        if self._committing is not None or self._is_asking():
            return
        self._commit_at_s = self._context.clock.monotonic_s() + COMMIT_EVERY_S
        self._committing = self._send(offset, trouble)
        self._take_answer()

    def _send(self, offset: int, trouble: str) -> _Commit:
        claim = self._claim()
        note = CommitNote(claim if claim >= 0 else self.hint, trouble).metadata()
        answer = self._reader.commit(self._source, offset, note)
        until_s = self._context.clock.monotonic_s() + self._context.ask_s
        return _Commit(answer, offset, trouble, until_s)

    def _take_answer(self) -> None:
        sent, self._committing = self._committing, None
        if sent is None:
            return
        try:
            taken = self._answer_to(sent)
        except BrokerUnavailable as error:
            _log.warning("%s: the offset was not committed: %s", self._source, error)
            return
        if taken:
            self.offset, self.told = max(self.offset, sent.offset), sent.trouble
        elif taken is None:
            self._committing = sent

    def _is_asking(self) -> bool:
        """Whether the answer to ``is_ours`` may still come."""
        now_s = self._context.clock.monotonic_s()
        return self._asking is not None and now_s < self._asking.until_s

    def _answer_to(self, sent: _Commit) -> bool | None:
        """None: there is none so far. Raises where it is an error, or did not come in time."""
        if sent.answer.done():
            return sent.answer.result()
        if self._context.clock.monotonic_s() < sent.until_s:
            return None
        raise BrokerUnavailable(f"{self._source}: no answer within {self._context.ask_s} s")
