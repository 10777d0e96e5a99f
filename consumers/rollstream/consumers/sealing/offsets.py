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
DROPPED_AFTER_S = 1.0  # A question whose answer nobody took.
LOOK_EVERY_S = 0.5  # At what hinders, while that does not change.
LOG_EVERY_S = 60.0  # What hinders is logged, where its words change all the while.
_log = logging.getLogger("rollstream.sealer")
GroupOffsets = Asked[dict[TopicPartition, Committed]]


def group_offsets(context: SealerContext, asked: Collection[TopicPartition]) -> GroupOffsets:
    """Returns the one question to the group for what it committed of these partitions."""
    group, admin = context.layout.sealer_group(context.environment), context.broker.admin()
    return Asked(
        lambda: context.threads.askers.submit(admin.committed, group, asked, context.ask_s)
    )


class _Commit(NamedTuple):
    """One that was sent, until when its answer is waited for, and whether it is a question."""

    answer: Future[bool]
    offset: int
    trouble: str
    until_s: float
    asks: bool


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
        self._logged = ""  # What hindered last, as the log has it.
        self._log_at_s = 0.0
        self._wanted = 0
        self._commit_at_s = 0.0
        self._sent: _Commit | None = None

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
        if self._sent is None or not self._sent.asks:  # Whatever becomes of the one before.
            self._send(max(self.offset, self._wanted), self.told, asks=True)
        return self._take_answer()

    def move(self, watermark: int) -> None:
        """Everything below is settled."""
        self._wanted = max(self._wanted, watermark)
        self.commit_if_due()

    def commit_if_due(self) -> None:
        """Commits what was settled since, once in ``COMMIT_EVERY_S``."""
        may_send, now_s = self._may_send(), self._context.clock.monotonic_s()
        if may_send and self._wanted > self.offset and now_s >= self._commit_at_s:
            self._commit(self._wanted, self.told)

    def tell(self, find_trouble: Callable[[], str]) -> None:
        """Logs what hinders this partition, and commits it beside the offset, or that nothing does
        any more: for `status`, which reads no file and no log of a sealer. At most once in
        ``LOG_EVERY_S`` and ``TELL_EVERY_S``; it is looked for once in ``LOOK_EVERY_S``. It is
        logged also where the group does not answer."""
        may_send, now_s = self._may_send(), self._context.clock.monotonic_s()
        if now_s < self._tell_at_s:
            return
        trouble, every_s = find_trouble(), LOOK_EVERY_S
        if not trouble:
            self._logged = ""
        elif trouble != self._logged and now_s >= self._log_at_s:
            self._logged, self._log_at_s = trouble, now_s + LOG_EVERY_S
            _log.warning("%s: %s", self._source, trouble)
        if may_send and trouble != self.told:
            every_s = TELL_EVERY_S
            self._commit(max(self.offset, self._wanted), trouble)
        self._tell_at_s = now_s + every_s

    def leave(self) -> Future[bool] | None:
        """Commits on leaving; what is to be waited for, if anything."""
        self._commit_at_s = 0.0
        self.commit_if_due()
        return None if self._sent is None else self._sent.answer

    def _commit(self, offset: int, trouble: str) -> None:
        self._commit_at_s = self._context.clock.monotonic_s() + COMMIT_EVERY_S
        self._send(offset, trouble)
        self._may_send()  # The answer may be there.

    def _send(self, offset: int, trouble: str, *, asks: bool = False) -> None:
        claim = self._claim()
        note = CommitNote(claim if claim >= 0 else self.hint, trouble).metadata()
        answer = self._reader.commit(self._source, offset, note)
        until_s = self._context.clock.monotonic_s() + self._context.ask_s
        self._sent = _Commit(answer, offset, trouble, until_s, asks)

    def _may_send(self) -> bool:
        """Whether the group said what it has, and nothing is on its way. ``is_ours`` takes the
        answer to a question, and that there was none; if nobody asks any more, this drops it."""
        sent, now_s = self._sent, self._context.clock.monotonic_s()
        if sent is None or not sent.asks or now_s >= sent.until_s + DROPPED_AFTER_S:
            try:
                self._take_answer()
            except BrokerUnavailable as error:
                _log.warning("%s: the offset was not committed: %s", self._source, error)
        return self._is_known and self._sent is None

    def _take_answer(self) -> bool | None:
        """Whether the group took what was sent; None: nothing was, or it did not answer so far."""
        sent, self._sent = self._sent, None
        taken = None if sent is None else self._answer_to(sent)
        if taken is None:
            self._sent = sent
        elif sent is not None and taken:
            self.offset, self.told = max(self.offset, sent.offset), sent.trouble
        return taken

    def _answer_to(self, sent: _Commit) -> bool | None:
        """None: there is none so far. Raises where it is an error, or did not come in time."""
        if sent.answer.done():
            return sent.answer.result()
        if self._context.clock.monotonic_s() < sent.until_s:
            return None
        raise BrokerUnavailable(f"{self._source}: no answer within {self._context.ask_s} s")
