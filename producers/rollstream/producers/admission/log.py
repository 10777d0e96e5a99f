"""Follows ``admission.<env>`` for one producer, from its beginning: that is little, since it is
compacted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from math import inf

from rollstream.producers.admission.newest import NewestRecords
from rollstream.producers.admission.shares import Granted
from rollstream.producers.errors import ProducerClosed
from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.deadline import LOG_WAITING_EVERY_S, Deadline
from rollstream.runtime.stepping import StepThread
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import PolicyAnnounced
from rollstream.schemas.order import PolicyRef
from rollstream.streams.broker import Broker, Record, TopicPartition
from rollstream.streams.compacted import CompactedLog
from rollstream.streams.errors import BrokerUnavailable, UnknownTopic
from rollstream.streams.partitioning import partition_of
from rollstream.streams.topics.layout import SHARES_PARTITIONS, shares_topic

LOOK_S = 0.1  # How late a record may be read for which somebody waits.
_UNWATCHED_S = 0.5  # The same where nobody waits: each look costs as much as a rollout's checks.
_LOADING_S = 0.01  # The same while the log is read for the first time.
_AGAIN_S = 0.5  # After an error.
_MISSING_S = 60.0  # A deployment may do without the topic; whoever waits is answered at once.
_MADE_S = 10.0  # How often it is tried whether the second generation was made meanwhile.
_log = logging.getLogger("rollstream.admission")


class AdmissionLog:
    """One environment's. May be shared between threads; nothing is read before the first ``wait``.
    That starts a thread, which reads; each ``wait`` after that reads for itself.

    Of a sampler the policy with the highest ``offset`` holds, and the shares with the highest
    ``(epoch, number)``, in whatever order they are read.

    The thread keeps nothing alive: it ends too where this is dropped without ``close``. It sleeps
    by the system's clock, whatever clock was given. In a forked child there is no thread; what was
    known stays readable.

    It reads the partition of the log's second generation that has the producer's share. While no
    sampler's shares there are valid, it reads the first generation, too: samplers of older releases
    write that alone.

    Args:
        topic: ``Layout.admission`` of the environment.
        producer_id: whose share is read.
        clock: measures ``Granted.read_s`` and time-outs of ``wait``.

    Attributes:
        unreadable: records that were passed over: garbage, or a newer release's.
    """

    def __init__(self, broker: Broker, topic: str, producer_id: str, clock: Clock) -> None:
        self.unreadable = 0
        self._broker = broker
        self._topic = topic
        self._clock = clock
        partition = partition_of(producer_id.encode(), SHARES_PARTITIONS)
        self._log = CompactedLog(broker, TopicPartition(shares_topic(topic), partition))
        self._again_s = -inf  # When it is read next, where it does not exist.
        self._older = CompactedLog(broker, TopicPartition(topic, 0))
        self._needs_older = True  # Unless it does not exist, and the second generation does.
        self._newest = NewestRecords(producer_id)
        self._loaded = False  # Whether all was read that it held then.
        self._failure: Exception | None = None  # How the last look ended.
        self._version = 0  # How often anything changed.
        self._looks = 0  # Begun.
        self._looked = 0  # The last one that ended.
        self._lock = threading.Lock()
        self._reading = threading.Lock()  # Held by whoever reads.
        self._waiting: set[threading.Event] = set()
        self._thread = StepThread(self.look, "rollstream-admission")
        self._closed = False

    def policies(self) -> Mapping[str, PolicyAnnounced]:
        """The newest of each sampler that lives, as far as was read: one that last announced it
        600 s before the newest record of the log, by the broker's clock, is left out.

        Raises:
            ProducerClosed: it was closed, so whether anything is newer is not known.
        """
        if self._closed:
            raise ProducerClosed
        return self._newest.policies()

    def ended(self) -> Mapping[str, PolicyAnnounced]:
        """The last one of each sampler that ``policies`` leaves out, and whose run is over."""
        return self._newest.ended()

    def versions(self) -> Mapping[tuple[str, str], PolicyRef]:
        """Each policy that was read so far, by lineage and version; the newest 4,096."""
        return self._newest.versions

    def shares(self) -> Mapping[str, Granted]:
        """The newest of each sampler, as far as was read; those that left among them."""
        return self._newest.shares

    def wait(self, seen: int, timeout_s: float) -> int:
        """Returns as soon as what was read is not what it was when this returned ``seen`` (0 at
        first), the whole log as it stood at the first call being read; or after ``timeout_s``, or
        when it is closed. An empty log that was read is another than none.

        Raises:
            UnknownTopic: the environment has no such topic. NotAuthorised. BrokerUnavailable: none
                can be reached, or the log was not read so far, when the time is up.
        """
        if self._looks_here() and self._version != seen:
            return self._version
        changed = threading.Event()
        with self._lock:
            look = self._looks + 1  # What is in the log now, that one reads.
            self._waiting.add(changed)
            if not self._closed:
                self._thread.wake()
        # Whatever the caller's clock, the broker needs time of this world.
        reading = Deadline(timeout_s, SystemClock())
        try:
            self._wait(changed, reading, lambda: self._looked >= look and self._loaded)
            waiting = Deadline(timeout_s, self._clock)
            self._wait(changed, waiting, lambda: self._version != seen)
        finally:
            with self._lock:
                self._waiting.discard(changed)
        return self._version

    def outage(self) -> str:
        """Why the log cannot be read now; empty: it can. Asks nobody."""
        failure = self._failure
        return self._broker.outage() or ("" if failure is None else str(failure))

    def close(self) -> None:
        """Ends its thread. Idempotent."""
        with self._lock:
            self._closed = True
            self._notify()
        self._thread.join()

    def look(self) -> float | None:
        """Reads what has come; returns how many seconds the thread may sleep then, None where this
        was closed."""
        with self._reading:
            if not self._closed:
                return self._look()
            self._log.close()
            self._older.close()
            return None

    def _looks_here(self) -> bool:
        """Reads what has come on the caller's thread, which costs less than to wait for the other
        one; False where that is not to be, or failed."""
        if not self._loaded or self._failure is not None or not self._reading.acquire(False):
            return False
        try:
            if not self._closed:
                self._look()
            return self._failure is None
        finally:
            self._reading.release()

    def _look(self) -> float:
        """Callers hold ``_reading``."""
        with self._lock:
            self._looks += 1
        failure, count = None, 0
        try:
            count = self._read()
        except Exception as error:  # noqa: BLE001, whatever it is, those that wait get it
            failure = error
        with self._lock:
            self._failure, self._looked = failure, self._looks
            if not self._loaded and self._is_loaded():
                self._loaded = True
                self._version += 1
            self._notify()
            look_s = LOOK_S if self._waiting else _UNWATCHED_S
        if failure is not None:
            return _MISSING_S if isinstance(failure, UnknownTopic) else _AGAIN_S
        return 0.0 if count else look_s if self._loaded else _LOADING_S

    def _notify(self) -> None:
        for changed in self._waiting:
            changed.set()

    def _wait(
        self, changed: threading.Event, deadline: Deadline, is_done: Callable[[], bool]
    ) -> None:
        """Returns once it is done, or this is closed, or the time is up where all was read."""
        while True:
            changed.clear()
            if is_done() or self._closed:
                return
            failure = self._failure
            late = deadline.passed()
            outage = self._broker.outage() if late else ""  # It names the broker's address.
            is_away = isinstance(failure, BrokerUnavailable)
            if failure is not None and not (is_away and (outage or not late)):
                raise failure
            if late:
                if self._loaded and not outage:
                    return
                found = outage or "the broker has not handed over all that it holds"
                raise BrokerUnavailable(
                    f"{self._topic} was not read within {round(deadline.timeout_s, 2):g} s: {found}"
                )
            deadline.log_waiting(lambda: f"{self._topic} to be read")
            deadline.clock.wait(changed, deadline.slice_s(LOG_WAITING_EVERY_S))

    def _is_loaded(self) -> bool:
        """Whether all was read that the logs held, of those that are read."""
        has_all = not self._needs_older or self._has_valid_shares()
        return self._older.loaded or (self._log.loaded and has_all)

    def _has_valid_shares(self) -> bool:
        """Whether the second generation has any."""
        now_s = self._clock.monotonic_s()
        return any(now_s < one.ends_s for one in self._newest.shares_by_producer())

    def _read(self) -> int:
        """Reads what has come: how many records."""
        count, now_s = 0, self._clock.monotonic_s()
        if now_s >= self._again_s:
            try:
                count = self._read_log(self._log)
            except UnknownTopic:
                self._again_s = now_s + _MADE_S
            else:
                if not self._log.loaded:
                    return count
        if self._has_valid_shares():
            self._older.rewind()
            return count
        try:
            return count + self._read_log(self._older)
        except UnknownTopic:
            if not self._log.loaded:
                raise
            self._needs_older = False
            return count

    def _read_log(self, log: CompactedLog) -> int:
        was_loaded, records = log.loaded, log.poll()
        for record in records:
            try:
                self._version += self._newest.add(record, self._clock.monotonic_s())
            except UnreadableEvent as error:
                self._pass_over(record, error)
        if log.loaded and not was_loaded:
            self._newest.age_shares(self._clock.monotonic_s())
        return len(records)

    def _pass_over(self, record: Record, error: UnreadableEvent) -> None:
        if not self.unreadable:
            where = f"{TopicPartition(record.topic, record.partition)}, offset {record.offset}"
            remedy = "if a newer release of Rollstream wrote it, upgrade this process"
            _log.warning("%s: %s; it and others like it are passed over; %s", where, error, remedy)
        self.unreadable += 1
