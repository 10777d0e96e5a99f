"""What every producer is: a broker, names of topics, an engine, and an end."""

from __future__ import annotations

import logging
import threading
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from copy import copy
from typing import Any, Self

import numpy as np

from rollstream.producers.engine.engine import Engine
from rollstream.producers.engine.failures import Failed, Failures
from rollstream.producers.engine.gather import Gatherer
from rollstream.producers.engine.hooks import Hooks
from rollstream.producers.engine.outbox import Outgoing
from rollstream.producers.engine.process import EXIT_S, watch
from rollstream.producers.engine.stats import ProducerStats
from rollstream.producers.engine.waits import Wait
from rollstream.producers.errors import (
    DeliveryFailed,
    FlushTimedOut,
    ForkedProducer,
    ProducerClosed,
)
from rollstream.producers.settings import check_broker, check_names, check_timeout
from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import RollstreamError
from rollstream.streams.broker import Broker
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.topics.layout import Layout

TIMEOUT_S = 30.0  # How long a call may wait: for room, for the topic's existence, for an answer.
_KEPT_BYTES = 8 * 1024 * 1024  # Several records; at most twice as many stay with the process.
_log = logging.getLogger("rollstream.producers")


class Connected(Hooks):
    """A producer, connected: it refuses calls once it is closed, or forked off.

    Args:
        stamped: names, as ``check_names`` takes them.

    Raises:
        InvalidSettings: names the argument, its value and what to give instead.
    """

    _lingers = False  # Whether entries wait for others by time.
    _failure_kind: type[DeliveryFailed] = DeliveryFailed

    def __init__(
        self,
        bootstrap: Any,
        broker: Any,
        timeout_s: Any,
        stamped: Mapping[str, Any],
        namespace: Any,
        generation: Any,
        clock: Clock | None,
    ) -> None:
        check_broker(bootstrap, broker)
        check_timeout(timeout_s)
        self._layout = Layout(namespace, check_names(stamped, namespace, generation))
        self._own_broker = None if bootstrap is None else KafkaBroker(bootstrap)
        self._broker: Broker = self._own_broker or broker
        kafka = isinstance(self._broker, KafkaBroker)
        self._broker_name = str(self._broker) if kafka else type(self._broker).__name__
        self._clock: Clock = clock or SystemClock()
        self._timeout_s: float = timeout_s

    def _begin(self, gatherer: Gatherer | None = None) -> None:
        """Makes the engine, as the last thing."""
        # Freeing a large block tells glibc to keep what is freed later (its thresholds for mmap and
        # trimming follow). Records are as large as what it would give back to the kernel at each
        # linger, and fresh pages cost more than encoding.
        np.empty(_KEPT_BYTES, np.uint8)
        self._failures = Failures(self._failure)
        self._closed: Future[RollstreamError | None] = Future()  # Of what the engine had died.
        self._closers = set[int]()  # The threads that are in ``close``.
        self._telling = threading.Lock()
        self._told: RollstreamError | None = None  # What ``close`` raised.
        self._engine = Engine(
            # Records come whole: there is nothing to linger for.
            self._broker.writer(linger_ms=0.0),
            self,
            self._failures,
            broker=self._broker_name,
            clock=self._clock,
            lingers=self._lingers,
            gatherer=gatherer,
        )
        watch(self)

    def stats(self) -> ProducerStats:
        """Returns figures since the producer was made. Any thread may call it."""
        return self._engine.stats()

    @property
    def refusal(self) -> RollstreamError | None:
        """What every call is refused with, since it is closed or died; None: calls are taken."""
        return self._engine.refusal

    def _after_fork(self) -> None:
        """Runs in a forked child: the producer stays the parent's."""
        refusal = ForkedProducer(
            "this producer was made before the process was forked off; make one in each process"
        )
        self._engine.after_fork(refusal)
        # Others may have held their locks.
        self._closed, self._telling = Future(), threading.Lock()
        self._closed.set_result(None)
        self._ended(refusal)

    def _failure(
        self, failed: Failed, outstanding: int = 0, nothing_queued: bool = False
    ) -> DeliveryFailed:
        """These failures as one error; the other arguments are its attributes."""
        uids = dict.fromkeys(about.named for about, _ in failed if about.rollout_uid)
        groups = dict.fromkeys(about.group_uid for about, _ in failed if not about.rollout_uid)
        return self._failure_kind(
            list(uids),
            list(groups),
            self._broker_name,
            str(failed[0][1]),
            outstanding=outstanding,
            nothing_queued=nothing_queued,
            entries=len(failed),
        )

    @abstractmethod
    def _at_exit(self, timeout_s: float) -> None:
        """Runs at the end of the process."""

    def _close(self, deadline: Deadline) -> None:
        """Flushes up to the deadline and releases everything. If another thread does so, returns
        when that is done.

        Raises:
            FlushTimedOut: the other one is not done by the deadline.
        """
        died, refusal = self._engine.refusal, ProducerClosed()
        if not self._engine.closes(refusal):
            if wait_for([self._closed], deadline.timeout_s).not_done:
                left = self._engine.outstanding
                raise FlushTimedOut(self._broker_name, left, deadline.timeout_s)
            return
        try:
            self._ended(refusal)
            try:
                self._engine.end(deadline, self._last())
            finally:  # Also if a signal ends it: the next call says what is in doubt.
                self._release()
                if self._own_broker is not None:
                    self._own_broker.close()
        finally:
            self._closed.set_result(died)

    def _raise_what_failed(self, *, again: bool) -> None:
        """Raises what no caller was told, and what the engine had died of; ``again``, also where
        another call that closes was told."""
        with self._telling:
            try:
                self._failures.raise_all()
            except DeliveryFailed as failed:
                self._told = copy(failed)  # Without the frames that it came through.
                raise
            if again and self._told is not None:
                raise copy(self._told)
        died = self._closed.result() if again else None
        if died is not None:
            raise died

    def _raise_after_flush(self, wait: Wait) -> None:
        """Raises what failed, and what ended the wait, if that is not that all is delivered."""
        left = self._engine.outstanding if wait.late else 0
        self._failures.raise_all(lambda: self._engine.outstanding if left else 0)
        if wait.error is not None:
            raise wait.error
        if left:
            raise FlushTimedOut(self._broker_name, left, wait.deadline.timeout_s)

    def _last(self) -> Iterable[Outgoing]:
        """The entries that it ends with."""
        return ()

    def _release(self) -> None:
        """Ends what the kind of producer has besides."""


class Blocking(Connected):
    """A producer whose calls block: threads may share it."""

    def flush(self, timeout_s: float = TIMEOUT_S) -> None:
        """Returns once everything published before is in the log.

        Raises:
            DeliveryFailed: some failed (``ScoresNotDelivered``, of scores). ``outstanding`` more
                stay queued: flush again.
            FlushTimedOut: some were still on their way; they stay queued.
            InvalidSettings: ``timeout_s`` is no number of seconds.
        """
        self._engine.refuse()
        check_timeout(timeout_s, zero_allowed=True)
        wait = Wait(timeout_s, self._clock)
        if not self._engine.flush(wait):
            wait.block(lambda: f"{self._broker_name} to take what was published")
            self._engine.give_up(wait)
        self._raise_after_flush(wait)

    def close(self) -> None:
        """Flushes within ``timeout_s`` and releases everything. Idempotent. A call during another
        one waits for it, and raises the same. In a signal handler that interrupts ``close`` of the
        same thread, it returns at once; the interrupted call goes on after it.

        Raises:
            DeliveryFailed: names what is not, or perhaps not, in the log (``ScoresNotDelivered``,
                of scores).
            FlushTimedOut: another call still closes the producer after ``timeout_s``.
        """
        self._close_by(Deadline(self._timeout_s, self._clock))

    def _close_by(self, deadline: Deadline) -> None:
        thread = threading.get_ident()
        if thread in self._closers:  # To wait here would hold up what it waits for.
            return
        self._closers.add(thread)
        try:
            was_open = not self._closed.done()
            self._close(deadline)
            self._raise_what_failed(again=was_open)
        finally:
            self._closers.discard(thread)

    def _notify(self, ended: Sequence[Wait]) -> None:
        for wait in ended:
            assert isinstance(wait.ended, threading.Event), "an awaited one"
            wait.ended.set()

    def _at_exit(self, timeout_s: float) -> None:
        try:
            self._close_by(Deadline(min(self._timeout_s, timeout_s)))
        except Exception as error:  # noqa: BLE001  The other producers are to be ended too.
            _log.error("a producer was not closed: %s", error)

    def _put(self, outgoing: Sequence[Outgoing], *, raise_earlier: bool = True) -> None:
        """Queues entries of one topic, all of them or none; waits for room and for the topic."""
        if raise_earlier and self._failures:
            self._engine.refuse()
            self._failures.raise_all(nothing_queued=True)
        if not self._engine.put(outgoing):
            self._wait_for(Wait(self._timeout_s, self._clock, outgoing))

    def _wait_for(self, wait: Wait) -> None:
        """Queues the entries of a call, and waits until they are gathered, or in the log."""
        if not self._engine.put(wait.outgoing, wait) or wait.delivered:
            if not wait.block(lambda: f"room in the buffer for {self._broker_name}"):
                self._engine.give_up(wait, self._engine.late)
            if wait.error is not None:
                raise wait.error

    def __del__(self) -> None:
        # An __init__ that raised made no engine.
        left = self._engine.outstanding if hasattr(self, "_engine") else 0
        if not left or self._engine.refusal is not None:
            return
        warnings.warn(
            f"a producer was dropped without close(), with {left} rollouts and events on their "
            "way; they are still sent. Use a with block, or call close()",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )
        # Not here: a collection runs wherever memory is asked for, and must not wait for a broker.
        # A thread that is no daemon, so the end of the process waits for it.
        threading.Thread(target=self._at_exit, args=(EXIT_S,), name="rollstream-dropped").start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with behind(error):
            self.close()


@contextmanager
def behind(error: BaseException | None) -> Iterator[None]:
    """What the caller's block raised stays in front of what was not delivered."""
    try:
        yield
    except DeliveryFailed as failed:
        if error is None:
            raise
        error.add_note(str(failed))
