"""The owner's side of an owned log: claim, append, wait until it is confirmed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Generic, TypeVar

import xxhash

import rollstream
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import Entropy
from rollstream.schemas.events import Claimed, Event, OwnedEvent
from rollstream.streams.broker import Broker, LogReader, Record, TopicPartition
from rollstream.streams.errors import (
    BrokerUnavailable,
    ClaimFailed,
    DeliveryUnknown,
    Fenced,
    LogLost,
    lost_message,
)
from rollstream.streams.owned.adoption import find_start, holds
from rollstream.streams.owned.clients import OwnerClients
from rollstream.streams.owned.fence import Fence
from rollstream.streams.owned.fold import FoldedLog, FoldPlace, LogFold, SavedFold
from rollstream.streams.owned.reading import event_in
from rollstream.streams.owned.sending import Sending, Ticket
from rollstream.streams.owned.state import State
from rollstream.streams.reading import POLL_RECORDS_MAX, read_between

RECLAIM_EVERY_RECORDS = 1000  # So often an owner claims again, to keep its log short to adopt.
NONCES_KEPT_MAX = 256  # Claims of ours that may still land late; older ones count as foreign.
CLAIM_ATTEMPT_S = 10.0  # A claim that was neither reported nor read back by then is made anew.
CLAIM_ATTEMPTS_MIN = 3  # At least this many silent attempts within one deadline, however short.
REPORT_SLICE_S = 0.05  # Whoever polls first serves the reports of all.
READ_SLICE_S = 0.05

F = TypeVar("F", bound=LogFold)
OnWay = Callable[[int], object]


class OwnedLog(Generic[F]):
    """One owner's hold on one partition.

    Guarantees: after ``claim`` returned, ``fold`` holds everything that counts up to the claim. An
    event for which ``wait_confirmed`` returned is in the partition and counts for ever, with
    nothing of a newer owner before it. Whoever acts on an event does so only after that.

    One event is on its way at a time: append the next one once the one before is confirmed. So of
    what an owner appended the log always holds a prefix, never a later event without an earlier
    one, and at most one event is ever in doubt.

    Where the log no longer holds what was folded of it (it was deleted, made anew, or restored from
    an older copy), every call that asks it raises ``LogLost`` from then on, and nothing more is
    written. Before each claim the newest record that was folded is compared with the log's.

    Not shared between threads.

    Attributes:
        where: the partition.
        epoch: offset of this owner's newest claim, -1 before the first; also the hint to leave for
            the next owner.
        nonce: the claim's nonce; every event that is appended carries both.
        root_id: of the store's root, named in claims; empty: this owner has none.
        confirmed_us: LogAppendTime of the newest event that was confirmed, a claim's ``Adopted``
            among them; -1 before the first.

    Args:
        make_fold: an empty fold.
        saved: folds that were saved, the newest first; the first one that this log proves is gone
            on from, and none that it does not.
        clients: that others share; None: its own.
    """

    def __init__(
        self,
        broker: Broker,
        where: TopicPartition,
        *,
        owner: str,
        make_fold: Callable[[], F],
        entropy: Entropy,
        root_id: str = "",
        make_fence: Callable[[], Fence] = Fence,
        saved: Callable[[Deadline], Iterable[SavedFold[F]]] = lambda _: (),
        clients: OwnerClients | None = None,
    ) -> None:
        self.where = where
        self.epoch = -1
        self.nonce = ""
        self.confirmed_us = -1
        self._broker = broker
        self._owner = owner
        self.root_id = root_id
        self._make_fold = make_fold
        self._make_fence = make_fence
        self._saved = saved
        self._entropy = entropy
        self._clients = clients or OwnerClients(broker)
        self._own_clients = clients is None
        self._sending = Sending(self._clients, where)
        self._nonces: deque[str] = deque(maxlen=NONCES_KEPT_MAX)
        self._folded = FoldedLog(make_fold(), make_fence(), 0)
        self._fold_anew = True  # Whether the next claim begins with an empty fold.
        self._state, self._why = State.UNCLAIMED, "not claimed yet; claim first"

    @property
    def fold(self) -> F:
        """The fold over the events that count, up to the newest that was confirmed."""
        return self._folded.fold

    @property
    def next_offset(self) -> int:
        """Everything below it is folded."""
        return self._folded.next_offset

    @property
    def admitted(self) -> int:
        """The offset of the newest event that counts; the owner's claim is one."""
        return self._folded.admitted

    @property
    def foreign(self) -> int:
        """How many of the records that were folded no owner wrote."""
        return self._folded.foreign

    def place(self, *, owned: bool = True) -> FoldPlace | None:
        """How far the fold went, for it to be saved; None: not ``owned``, or by nobody ever."""
        known = self._state is State.OWNER if owned else self._folded.owner is not None
        return self._folded.place() if known else None

    def claim(self, deadline: Deadline, *, hint: int | None = None, retake: bool = True) -> F:
        """Takes over: appends ``Claimed``, reads until that very claim comes back, folds, appends
        ``Adopted`` and waits until it is confirmed. Also the way out of doubt: the writer is thrown
        away and made anew.

        Where no foreign claim intervened since this object's last claim, the fold goes on from
        where it stood; else it is made anew.

        Args:
            deadline: for all of it.
            hint: offset of any claim (from the consumer group's metadata). A wrong, stale or
                missing one, or a zombie's, does no harm; at worst it is slow.
            retake: False: where a foreign claim comes after this object's last one, ``Fenced``,
                and nothing more is appended: whoever took over keeps it. Looked at before each
                attempt; a claim that crosses with another's takes over all the same.

        Raises:
            UnreadableLog: a record cannot be read, as where a newer version of Rollstream owned the
            log, or the log lost its end; nothing is appended. ClaimFailed: not proven by the
            deadline. Fenced: another owner claimed before this claim was adopted. BrokerError: a
            permanent refusal.
        """
        self._expect_log()
        self._sending.give_up()
        if self._state is not State.FENCED:
            self._enter(State.IN_DOUBT, "the claim was not proven; claim again")
        attempt_s = min(CLAIM_ATTEMPT_S, deadline.left_s() / CLAIM_ATTEMPTS_MIN)
        failure: Exception | None = None
        with self._clients.reader(self.where, deadline) as reader:
            while not deadline.passed():
                try:
                    if not retake:
                        self._check_no_successor(reader, deadline)
                    self._claim_once(reader, deadline, hint, attempt_s)
                except (DeliveryUnknown, BrokerUnavailable) as error:
                    failure = error
                    self._sending.give_up()
                    self._log_waiting(deadline, f"a claim; the last attempt failed: {error}")
                    # Do not busy-loop on a broker that refuses at once.
                    deadline.wait(READ_SLICE_S)
                else:
                    return self.fold
        why = self._broker.outage() or failure or "no time was left for an attempt"
        raise ClaimFailed(
            f"{self.where}: claim not proven within {deadline.timeout_s} s: {why}"
        ) from failure

    def look(
        self, deadline: Deadline, *, end_within_s: float = math.inf, on_way: OnWay = bool
    ) -> F:
        """Folds what counts up to the log's present end, and returns the fold; appends nothing, so
        that no other owner is fenced. A claim goes on from there. An owner's fold holds everything
        already: it is only checked that there is no successor.

        Args:
            deadline: for all of it.
            end_within_s: for the log's end alone: a broker that does not answer is told apart soon.
            on_way: called with the end after each record that was folded.

        Raises:
            Fenced: after this object's own claim another owner claimed. BrokerUnavailable: not read
            by the deadline. LogLost.
        """
        self._expect_log()
        with self._clients.reader(self.where, deadline) as reader:
            _, end = reader.bounds(self.where, deadline.slice_s(end_within_s))
            self._check_no_successor(reader, deadline)
            if self._state is State.OWNER:
                return self.fold
            if self._fold_anew:
                self._start_fold(reader, None, deadline)
                _, end = reader.bounds(self.where, deadline.left_s())  # Maybe at a newer claim.
            for record in self._unfolded(reader, end, deadline):
                event = self._folded.apply_record(record)
                if self.epoch >= 0 and isinstance(event, Claimed):
                    self._check_own(record.offset, event)
                on_way(end)
        return self.fold

    def append(self, event: Event) -> Ticket:
        """Sends an event that carries this claim's epoch and nonce; returns at once. The one before
        must be confirmed.

        Raises:
            Fenced: a newer owner is known. DeliveryUnknown: in doubt; claim again first.
            RecordTooLarge: nothing was sent.
        """
        self._expect_owner()
        assert isinstance(event, OwnedEvent), f"{type(event).__name__} is no owner's event"
        assert (event.epoch, event.nonce) == (self.epoch, self.nonce), (
            f"{type(event).__name__} of another claim: {event.epoch}, {event.nonce}"
        )
        return self._sending.send(event)

    def is_answered(self, ticket: Ticket) -> bool:
        """Whether ``wait_confirmed`` would not wait for the broker's report; waits for nothing."""
        self._clients.poll()
        return ticket.delivery is not None or ticket.offset is not None

    def wait_confirmed(self, ticket: Ticket, deadline: Deadline) -> int:
        """Waits until every offset between the claim and this event is known and ours; returns the
        event's offset.

        Applies it to ``fold``, after what others wrote before it.

        Raises:
            Fenced: a newer claim stands before it. DeliveryUnknown: time-out or lost report: claim
            again, then ``fold`` shows whether it is there. PermanentBrokerError: it is certainly
            not there. BrokerError: any other; it is in doubt too. So it is if anything else is
            raised, such as ``UnreadableLog`` of a record before it.
        """
        if ticket.offset is not None:
            return ticket.offset
        self._expect_owner()
        if isinstance(ticket.event, OwnedEvent) and ticket.event.epoch != self.epoch:
            raise DeliveryUnknown(
                f"{self.where}: appended before the claim at {self.epoch}; the fold holds it if it "
                "was written"
            )
        try:
            return self._confirm(ticket, deadline)
        except Fenced:
            raise
        except BaseException as error:  # Also an interrupt, or an unreadable record.
            self._enter(State.IN_DOUBT, f"{str(error) or repr(error)}; claim again")
            raise

    def check_still_owner(self, deadline: Deadline) -> None:
        """Asks the log itself whether somebody took over: for an answer that appends nothing.

        Raises:
            Fenced: somebody did. BrokerUnavailable: not known by the deadline. LogLost.
        """
        self._expect_owner()
        with self._clients.reader(self.where, deadline) as reader:
            self._check_no_successor(reader, deadline)

    def fold_arrived(self, deadline: Deadline) -> None:
        """Folds what others wrote behind the newest confirmed event: requests. Only while no event
        of this owner is on its way; one that is confirmed later folds these too.

        Raises:
            Fenced: among it is a claim. DeliveryUnknown: an earlier claim of this owner is: claim
            again. BrokerUnavailable: the log's end is not known by the deadline; nothing changed.
            LogLost.
        """
        self._expect_owner()
        assert self._sending.on_way is None, f"{self.where}: an event is on its way"
        with self._clients.reader(self.where, deadline) as reader:
            _, end = reader.bounds(self.where, deadline.left_s())
            if end != self._folded.next_offset:
                try:
                    self._read_gap(reader, end, deadline)
                except DeliveryUnknown as error:
                    self._enter(State.IN_DOUBT, f"{error}; claim again")
                    raise

    def should_reclaim(self) -> bool:
        """Whether it is time to claim again, so that adopting this log stays short."""
        records = self._folded.next_offset - self.epoch
        return self._state is State.OWNER and records >= RECLAIM_EVERY_RECORDS

    def release(self) -> None:
        """Gives the log up, and closes its own clients. Idempotent; nothing is written."""
        self._sending.give_up()
        if self._own_clients:
            self._clients.close()
        if self._state is not State.FENCED:
            self._enter(State.UNCLAIMED, "released; claim again")

    # --- states ---

    def _enter(self, state: State, why: str) -> None:
        if self._state is not State.LOST:
            self._state = state
            self._why = why  # Why this is no owner, with what to do.

    def _expect_log(self) -> None:
        if self._state is State.LOST:
            raise LogLost(self._why)

    def _expect_owner(self) -> None:
        self._expect_log()
        if self._state is not State.OWNER:
            kind = Fenced if self._state is State.FENCED else DeliveryUnknown
            raise kind(f"{self.where}: {self._why}")

    def _fenced_by(self, offset: int, claim: Claimed) -> Fenced:
        """Enters FENCED and returns the error for it."""
        self._fold_anew = True
        self._enter(State.FENCED, f"{claim.owner!r} claimed at {offset}, after this owner")
        return Fenced(f"{self.where}: {self._why}")

    # --- the claim ---

    def _claim_once(
        self, reader: LogReader, deadline: Deadline, hint: int | None, attempt_s: float
    ) -> None:
        # Until claim() has returned a fold, a foreign claim need not restart it.
        given = self.epoch >= 0 and not self._fold_anew
        _, end = reader.bounds(self.where, deadline.left_s())
        for _ in self._unfolded(reader, min(end, self._folded.next_offset), deadline, compare=True):
            pass  # Nothing is to be written to a log that is not the one that was folded.
        if self._fold_anew:
            self._start_fold(reader, hint, deadline)
            end = max(end, self._folded.next_offset)  # It may begin at a newer claim.
        # What cannot be read is found before anything is written, and before its owner is fenced.
        for record in self._unfolded(reader, end, deadline):
            if given:
                event_in(record, self._folded.owner)
            else:
                self._folded.apply_record(record)
        self._clients.find_leaders(self.where.topic, deadline.clock.monotonic_s())
        self._nonces.append(self._entropy.token())
        claimed = Claimed(
            owner=self._owner,
            nonce=self._nonces[-1],
            software=rollstream.__version__,
            root_id=self.root_id,
        )
        claim = self._sending.send(claimed)
        silence = Deadline(attempt_s, deadline.clock)
        if not self._fold_until(reader, claim, silence, deadline, stop_at_foreign=given):
            self._start_fold(reader, self.epoch, deadline)
            self._fold_until(reader, claim, silence, deadline, stop_at_foreign=False)
        self._sending.finish(claim, self._folded.next_offset - 1)
        adopted = self._folded.adoption()
        within = Deadline(deadline.slice_s(attempt_s), deadline.clock)
        self._confirm(self._sending.send(adopted), within, reader)
        self.epoch, self.nonce = adopted.epoch, adopted.nonce
        self._enter(State.OWNER, "")

    def _start_fold(self, reader: LogReader, hint: int | None, deadline: Deadline) -> None:
        for saved in self._saved(deadline):
            if holds(reader, self.where, saved.place, deadline):
                self._folded = FoldedLog.going_on(saved, self._make_fence())
                break
        else:
            start = find_start(reader, self.where, hint, deadline)
            self._folded = FoldedLog(self._make_fold(), self._make_fence(), start)
        self._fold_anew = False

    def _fold_until(
        self,
        reader: LogReader,
        claim: Ticket,
        silence: Deadline,
        deadline: Deadline,
        *,
        stop_at_foreign: bool,
    ) -> bool:
        """Folds up to our newest claim; returns False where it stopped at a foreign one."""
        reader.seek(self.where, self._folded.next_offset)
        while True:
            self._clients.poll()
            if claim.delivery is not None and claim.delivery.error is not None:
                raise claim.delivery.error
            records = reader.poll(POLL_RECORDS_MAX, deadline.slice_s(READ_SLICE_S))
            for record in records:
                event = self._folded.apply_record(record)
                if isinstance(event, Claimed):
                    if event.nonce == self._nonces[-1]:
                        return True
                    if stop_at_foreign and event.nonce not in self._nonces:
                        self._fenced_by(record.offset, event)
                        return False
            self._log_waiting(deadline, "the claim to come back")
            if deadline.passed():
                raise BrokerUnavailable(
                    f"{self.where}: read up to {self._folded.next_offset} by the deadline"
                )
            if not records and claim.delivery is None and silence.passed():
                raise BrokerUnavailable(f"the claim was not reported within {silence.timeout_s} s")

    def _check_no_successor(self, reader: LogReader, deadline: Deadline) -> None:
        """Folds nothing; ``Fenced`` where a foreign claim stands above all that was folded."""
        if self.epoch < 0:
            return  # It never owned the log: it takes over from whoever does.
        if self._state is State.FENCED:
            raise Fenced(f"{self.where}: {self._why}")
        _, end = reader.bounds(self.where, deadline.left_s())
        for record in self._unfolded(reader, end, deadline):
            event = event_in(record, self._folded.owner)
            if isinstance(event, Claimed):
                self._check_own(record.offset, event)

    def _check_own(self, offset: int, claim: Claimed) -> None:
        if claim.nonce not in self._nonces:
            raise self._fenced_by(offset, claim)

    def _unfolded(
        self, reader: LogReader, stop: int, deadline: Deadline, *, compare: bool = False
    ) -> Iterator[Record]:
        """The records of what is not folded below ``stop``, which is not beyond the log's end.

        Args:
            compare: whether the newest record is compared even where there are none.

        Raises:
            LogLost: the log ends before what was folded, or holds another record as the newest.
        """
        start, newest = self._folded.next_offset, self._folded.newest
        if stop < start:
            raise self._lost(f"the log ends at {stop}")
        if stop == start and not compare:
            return
        records = read_between(reader, self.where, start - 1 if newest else start, stop, deadline)
        for record in records:
            if not newest:
                yield record
                continue
            if (record.offset, xxhash.xxh3_128_digest(record.value)) != (start - 1, newest):
                raise self._lost(f"the log holds another record at {start - 1}")
            newest = b""

    def _lost(self, found: str) -> LogLost:
        """Enters LOST and returns the error for it."""
        self._enter(State.LOST, lost_message(str(self.where), self._folded.next_offset, found))
        return LogLost(self._why)

    # --- confirmed ---

    def _confirm(self, ticket: Ticket, deadline: Deadline, reader: LogReader | None = None) -> int:
        """Folds the event on its way, once all offsets before it are known. Callers that have a
        reader hand it on: they would wait for one another if each needed a second one."""
        while ticket.delivery is None:
            self._clients.poll(deadline.slice_s(REPORT_SLICE_S))
            if ticket.delivery is None and deadline.passed():
                raise DeliveryUnknown(f"{self.where}: no report within {deadline.timeout_s} s")
            self._log_waiting(deadline, "a delivery report")
        if ticket.delivery.error is not None:
            raise ticket.delivery.error
        offset = ticket.delivery.offset
        if offset < self._folded.next_offset:
            raise DeliveryUnknown(
                f"{self.where}: a report names {offset}, which was folded already"
            )
        if self._folded.next_offset != offset:  # Contiguous reports are the proof themselves.
            with (
                nullcontext(reader) if reader else self._clients.reader(self.where, deadline) as gap
            ):
                self._read_gap(gap, offset, deadline)
        self.confirmed_us = ticket.delivery.timestamp_us
        counts = self._folded.apply(offset, self.confirmed_us, ticket.event, ticket.value)
        assert counts, f"{self.where}: our own event at {offset} does not count"
        self._sending.finish(ticket, offset)
        return offset

    def _read_gap(self, reader: LogReader, offset: int, deadline: Deadline) -> None:
        """Folds what others wrote before ``offset``: that of an event of ours, or the log's end."""
        try:
            for record in self._unfolded(reader, offset, deadline):
                event = self._folded.apply_record(record)
                if isinstance(event, Claimed):
                    if event.nonce in self._nonces:
                        raise DeliveryUnknown(
                            f"{self.where}: an earlier claim of our own landed late, at "
                            f"{record.offset}"
                        )
                    raise self._fenced_by(record.offset, event)
        except BrokerUnavailable as error:
            raise DeliveryUnknown(str(error)) from error

    def _log_waiting(self, deadline: Deadline, what: str) -> None:
        deadline.log_waiting(lambda: f"{self.where}: {what}")
