"""The owner's side of an owned log: claim, append, confirmed."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import Entropy
from rollstream.schemas import codec
from rollstream.schemas.events import Adopted, Claimed, Event
from rollstream.streams.broker import Broker, Delivery, LogReader, Record, TopicPartition
from rollstream.streams.errors import (
    BrokerError,
    BrokerUnavailable,
    ClaimFailed,
    DeliveryUnknown,
    Fenced,
)
from rollstream.streams.owned.adoption import find_start
from rollstream.streams.owned.fence import Fence
from rollstream.streams.owned.fold import FoldCheckpoint, LogFold
from rollstream.streams.owned.sending import Append, Sending
from rollstream.streams.reading import POLL_RECORDS_MAX, read_between

RECLAIM_EVERY_RECORDS = 1000  # So often an owner claims again, to keep its log short to adopt.
CONFIRMED_KEPT_MAX = 10_000  # Tickets whose offset `confirmed` still knows.
CLAIMS_KEPT_MAX = 4096  # Offered to `checkpoint`; beyond, every other older one is forgotten.
NONCES_KEPT_MAX = 256  # Claims of ours that may still land late; older ones count as foreign.
CLAIM_ATTEMPT_S = 10.0  # A claim that was neither reported nor read back by then is made anew.
CLAIM_ATTEMPTS_MIN = 3  # So many silent attempts fit into one deadline, however short it is.
REPORT_SLICE_S = 0.5
READ_SLICE_S = 0.05

__all__ = ["FoldCheckpoint", "LogFold", "OwnedLog", "Ticket"]


F = TypeVar("F", bound=LogFold)


class Ticket(NamedTuple):
    """An append that is on its way; ``OwnedLog.confirmed`` tells what became of it."""

    number: int


class _ClaimAgain(Exception):
    """This attempt came to nothing, without harm; the next may do better."""


class OwnedLog(Generic[F]):
    """One owner's hold on one partition.

    Guarantees: after ``claim`` returned, ``fold`` holds everything that counts up to the claim. An
    event for which ``wait_confirmed`` returned is in the partition and counts for ever, with
    nothing of a newer owner before it. Whoever acts on an event does so only after that.

    One event is on its way at a time: the next is sent once the one before is known to be in the
    log. So of what an owner appended the log always holds a beginning, never a later event without
    an earlier one, and at most one event is ever in doubt.

    Not shared between threads.

    Attributes:
        fold: what the events that count say, up to the newest that was confirmed.
        epoch: offset of this owner's claim; also the hint to leave for the next owner.
        nonce: the claim's nonce; every event that is appended carries both.
    """

    fold: F
    epoch: int
    nonce: str

    def __init__(
        self,
        broker: Broker,
        where: TopicPartition,
        *,
        owner: str,
        make_fold: Callable[[], F],
        clock: Clock,
        entropy: Entropy,
        make_fence: Callable[[], Fence] = Fence,
    ) -> None:
        self.where = where
        self.epoch = -1
        self.nonce = ""
        self._broker = broker
        self._owner = owner
        self._make_fold = make_fold
        self._clock = clock
        self._entropy = entropy
        self.fold = make_fold()
        self._make_fence = make_fence
        self._fence = make_fence()
        self._claims: list[int] = []  # Offsets that `checkpoint` may choose from.
        self._next: int | None = None  # Everything below is folded; None: nothing was read yet.
        self._proven: int | None = (
            None  # Our newest claim whose `Adopted` was confirmed: our own hint.
        )
        self._successor: str | None = None  # Who claimed behind all that is ours, if seen.
        self._sending = Sending(broker, where)
        self._reader: LogReader | None = None
        self._watch: LogReader | None = None  # Of an owner that confirms; it asks often.
        self._confirmed_offsets: OrderedDict[int, int] = OrderedDict()
        self._number_at_claim = 0
        self._nonces: deque[str] = deque(maxlen=NONCES_KEPT_MAX)
        self._trouble: Fenced | DeliveryUnknown | None = DeliveryUnknown(
            f"{where}: not claimed yet; claim first"
        )

    def claim(self, deadline: Deadline, *, hint: int | None = None, retake: bool = True) -> F:
        """Takes over: appends ``Claimed``, reads until that very claim comes back, folds, appends
        ``Adopted`` and hears it. Also the way out of doubt: the writer is thrown away and made
        anew.

        Where no foreign claim intervened since this object's last claim, the fold goes on from
        where it stood; else it is made anew.

        Args:
            deadline: for all of it.
            hint: offset of any claim (from the consumer group's metadata); wrong, stale, missing or
                a zombie's: never harmful, at worst slow.
            retake: False: where a foreign claim stands behind this object's last one, ``Fenced``,
                and nothing more is appended: whoever took over keeps it. Looked at before each
                attempt; a claim that crosses with another's takes over all the same.

        Raises:
            ClaimFailed: not proven by the deadline. Fenced: overtaken before it was adopted.
            BrokerError: a permanent refusal.
        """
        if self._trouble is not None or self._sending.first() is not None:
            self._sending.throw_away()
        self._trouble = DeliveryUnknown(f"{self.where}: the claim was not proven; claim again")
        attempt_s = min(CLAIM_ATTEMPT_S, deadline.left_s() / CLAIM_ATTEMPTS_MIN)
        failure: Exception | None = None
        try:
            while not deadline.passed():
                try:
                    if not retake:
                        self._expect_no_successor(self._open_reader(), deadline)
                    self._claim_once(deadline, hint, attempt_s)
                except (_ClaimAgain, DeliveryUnknown, BrokerUnavailable) as error:
                    failure = error
                    self._sending.throw_away()
                    self._say(deadline, f"a claim; the last came to nothing: {error}")
                    # A broker that refuses at once is not asked in a spin.
                    self._clock.wait(threading.Event(), deadline.slice_s(READ_SLICE_S))
                else:
                    return self.fold
        except Fenced as error:
            self._trouble = error
            raise
        finally:
            self._close_reader()
        raise ClaimFailed(
            f"{self.where}: claim not proven within {deadline.timeout_s} s; last: {failure}"
        ) from failure

    def append(self, event: Event) -> Ticket:
        """Queues an event that carries this claim's epoch and nonce; returns at once.

        Raises:
            Fenced: already known to be overtaken. DeliveryUnknown: in doubt; claim again first.
            BufferFull: too many are not confirmed yet. RecordTooLarge: nothing was queued.
        """
        self._expect_no_trouble()
        return self._append(event)

    def wait_confirmed(self, ticket: Ticket, deadline: Deadline) -> int:
        """Waits until every offset between the claim and this event is known and ours; its offset.

        Applies each event to ``fold`` in order as it is confirmed, this one last.

        Raises:
            Fenced: a newer claim stands before it. DeliveryUnknown: time-out or lost report: claim
            again, then ``fold`` tells whether it is there. PermanentBrokerError: it is certainly
            not there, and what was appended behind it is in doubt. BrokerError: any other; it is in
            doubt too.
        """
        known = self._confirmed_offsets.get(ticket.number)
        if known is not None:
            return known
        self._expect_no_trouble()
        if ticket.number <= self._number_at_claim:
            raise DeliveryUnknown(
                f"{self.where}: appended before the claim at {self.epoch}; the fold tells what "
                "became of it"
            )
        try:
            return self._confirm(ticket, deadline)
        except (Fenced, DeliveryUnknown) as error:
            self._trouble = error
            raise
        except BrokerError as error:
            self._trouble = DeliveryUnknown(f"{self.where}: in doubt after {error}; claim again")
            raise
        finally:
            self._close_reader()

    def poll(self) -> None:
        """Serves reports and sends what is next, without waiting; call it where a loop turns."""
        self._sending.poll()

    def check_still_owner(self, deadline: Deadline) -> None:
        """Asks the log itself whether somebody took over: for an answer that appends nothing.

        Raises:
            Fenced: somebody did. BrokerUnavailable: not known by the deadline.
        """
        self._expect_no_trouble()
        if self._watch is None:
            self._watch = self._broker.reader({self.where: 0})
        try:
            self._expect_no_successor(self._watch, deadline)
        except Fenced as error:
            self._trouble = error
            raise

    def should_reclaim(self) -> bool:
        """Whether it is time to claim again, so that adopting this log stays short."""
        return self._next is not None and self._next - self.epoch >= RECLAIM_EVERY_RECORDS

    def release(self) -> None:
        """Lets go: closes the writer and reader. Idempotent; nothing is written."""
        self._sending.throw_away()
        self._close_reader()
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if not isinstance(self._trouble, Fenced):
            self._trouble = DeliveryUnknown(f"{self.where}: released; claim again")

    # --- the claim ---

    def _claim_once(self, deadline: Deadline, hint: int | None, attempt_s: float) -> None:
        resumed = self._next is not None
        start = self._next if self._next is not None else self._begin_anew(hint, deadline)
        nonce = self._entropy.token()
        self._nonces.append(nonce)
        attempt = self._sending.add_claim(Claimed(owner=self._owner, nonce=nonce))
        silence = Deadline(attempt_s, self._clock)
        if not self._fold_until(start, nonce, attempt, silence, deadline, stop_at_foreign=resumed):
            # Somebody else owned it meanwhile: what we remember decides nothing any more.
            start = self._begin_anew(self._proven if self._proven is not None else hint, deadline)
            self._fold_until(start, nonce, attempt, silence, deadline, stop_at_foreign=False)
        assert self._fence.current_claim is not None
        self.epoch, self.nonce = self._fence.current_claim.epoch, nonce
        self._adopt(Deadline(min(attempt_s, deadline.left_s()), self._clock))
        self._proven = self.epoch
        self._successor = None
        self._number_at_claim = self._sending.number
        self._trouble = None

    def _expect_no_trouble(self) -> None:
        """Raises anew what made the last claim worthless."""
        if self._trouble is not None:
            raise type(self._trouble)(str(self._trouble))

    def _expect_no_successor(self, reader: LogReader, deadline: Deadline) -> None:
        """Looks at what came behind all that was read, and folds nothing."""
        if self._proven is None:
            return  # It never owned the log: it takes over from whoever does.
        if self._successor is not None:
            raise Fenced(self._successor)
        assert self._next is not None, "the fold is forgotten for a successor's sake only"
        _, end = reader.bounds(self.where, max(deadline.left_s(), 0.001))
        for record in read_between(reader, self.where, self._next, end, deadline):
            event = codec.decode(record.value)
            if isinstance(event, Claimed) and event.nonce not in self._nonces:
                self._overtaken(record.offset, event)

    def _begin_anew(self, hint: int | None, deadline: Deadline) -> int:
        """Forgets the fold; where the next one starts."""
        self._next = None
        self.fold = self._make_fold()
        self._fence = self._make_fence()
        self._claims = []
        return find_start(self._open_reader(), self.where, hint, deadline)

    def _fold_until(
        self,
        start: int,
        nonce: str,
        attempt: Append,
        silence: Deadline,
        deadline: Deadline,
        *,
        stop_at_foreign: bool,
    ) -> bool:
        """Folds from ``start`` up to our claim; False where a foreign claim stands before it."""
        reader = self._open_reader()
        reader.seek(self.where, start)
        self._next = start
        while True:
            self._expect_no_refusal(attempt)
            records = reader.poll(POLL_RECORDS_MAX, deadline.slice_s(READ_SLICE_S))
            for record in records:
                event = self._apply_record(record)
                if isinstance(event, Claimed):
                    if event.nonce == nonce:
                        return True
                    if stop_at_foreign and event.nonce not in self._nonces:
                        self._note_successor(record.offset, event)
                        return False
            self._say(deadline, "the claim to come back")
            if deadline.passed():
                raise BrokerUnavailable(f"{self.where}: read up to {self._next} by the deadline")
            if not records and attempt.delivery is None and silence.passed():
                raise _ClaimAgain(f"no word of the claim within {silence.timeout_s} s")

    def _expect_no_refusal(self, attempt: Append) -> None:
        self._sending.poll()
        error = None if attempt.delivery is None else attempt.delivery.error
        if error is not None:
            raise error

    def _adopt(self, deadline: Deadline) -> None:
        checkpoint = self.fold.checkpoint(tuple(self._claims))
        assert checkpoint.fold_from in self._claims, (checkpoint, self._claims)
        self._claims = [claim for claim in self._claims if claim >= checkpoint.fold_from]
        adopted = Adopted(
            epoch=self.epoch,
            nonce=self.nonce,
            fold_from=checkpoint.fold_from,
            watermark=checkpoint.watermark,
            counts=checkpoint.counts,
        )
        self._confirm(self._append(adopted), deadline)

    # --- append and confirmed ---

    def _append(self, event: Event) -> Ticket:
        mark = (getattr(event, "epoch", None), getattr(event, "nonce", None))
        assert mark == (self.epoch, self.nonce), f"{type(event).__name__} of another claim: {mark}"
        return Ticket(self._sending.add(event))

    def _confirm(self, ticket: Ticket, deadline: Deadline) -> int:
        while ticket.number not in self._confirmed_offsets:
            append = self._sending.first()
            assert append is not None, f"{ticket} is not one of this log's"
            if append.delivery is None:
                self._sending.poll(deadline.slice_s(REPORT_SLICE_S))
                if append.delivery is None and deadline.passed():
                    raise DeliveryUnknown(
                        f"{self.where}: no report within {deadline.timeout_s} s; claim again"
                    )
                self._say(deadline, "a delivery report")
                continue
            if append.delivery.error is not None:
                raise append.delivery.error
            self._read_gap(append.delivery.offset, deadline)
            self._sending.pop_first()
            self._apply_own(append.event, append.delivery)
            self._confirmed_offsets[append.number] = append.delivery.offset
            if len(self._confirmed_offsets) > CONFIRMED_KEPT_MAX:
                self._confirmed_offsets.popitem(last=False)
        return self._confirmed_offsets[ticket.number]

    def _read_gap(self, offset: int, deadline: Deadline) -> None:
        """Reads what others wrote before ``offset``, if anything."""
        assert self._next is not None
        if self._next > offset:
            raise DeliveryUnknown(
                f"{self.where}: a report names {offset}, which was folded already"
            )
        if self._next == offset:
            return  # Contiguous: the reports themselves are the proof.
        reader = self._open_reader()
        try:
            for record in read_between(reader, self.where, self._next, offset, deadline):
                event = self._apply_record(record)
                if isinstance(event, Claimed):
                    self._overtaken(record.offset, event)
        except BrokerUnavailable as error:
            raise DeliveryUnknown(f"{error}; claim again") from error

    def _overtaken(self, offset: int, claim: Claimed) -> None:
        if claim.nonce in self._nonces:
            raise DeliveryUnknown(
                f"{self.where}: an earlier claim of our own landed late, at {offset}; claim again"
            )
        raise Fenced(self._note_successor(offset, claim))

    def _note_successor(self, offset: int, claim: Claimed) -> str:
        """What we remember decides nothing any more: the next claim begins anew."""
        self._next = None
        self._successor = (
            f"{self.where}: {claim.owner!r} claimed at {offset}, after our claim at {self.epoch}"
        )
        return self._successor

    def _apply_own(self, event: Event, delivery: Delivery) -> None:
        counts = self._fence.admits(delivery.offset, event)
        assert counts, f"{self.where}: our own event at {delivery.offset} does not count"
        self.fold.apply(delivery.offset, delivery.timestamp_us, event)
        self._next = delivery.offset + 1

    def _apply_record(self, record: Record) -> Event:
        """Folds a record that was read; the event, whether it counts or not."""
        event = codec.decode(record.value)
        assert not isinstance(event, codec.Segment), f"{self.where}: a rollout in an owned log"
        if self._fence.admits(record.offset, event):
            if isinstance(event, Claimed):
                self._note_claim(record.offset)
            self.fold.apply(record.offset, record.timestamp_us, event)
        self._next = record.offset + 1
        return event

    def _say(self, deadline: Deadline, what: str) -> None:
        deadline.log_waiting(lambda: f"{self.where}: {what}")

    def _note_claim(self, offset: int) -> None:
        self._claims.append(offset)
        if len(self._claims) > CLAIMS_KEPT_MAX:
            # The first stays (a fold from there is whole); any others may go.
            self._claims = (
                self._claims[: CLAIMS_KEPT_MAX // 2 : 2] + self._claims[CLAIMS_KEPT_MAX // 2 :]
            )

    # --- clients ---

    def _open_reader(self) -> LogReader:
        if self._reader is None:
            self._reader = self._broker.reader({self.where: 0})
        return self._reader

    def _close_reader(self) -> None:
        """Between claims a reader is needed over a gap only; it would hold memory and threads."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
