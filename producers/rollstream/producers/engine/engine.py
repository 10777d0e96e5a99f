"""The thread behind a producer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf

from rollstream.producers.engine.failures import Failures
from rollstream.producers.engine.gather import Gatherer
from rollstream.producers.engine.holding import Holding
from rollstream.producers.engine.hooks import IDLE_S, Hooks
from rollstream.producers.engine.outbox import Outgoing
from rollstream.producers.engine.sending import Sender
from rollstream.producers.engine.stats import stats_of
from rollstream.producers.engine.topics import Topics
from rollstream.producers.engine.waits import Wait, Waiting
from rollstream.producers.errors import ProducerDied
from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.stepping import StepThread
from rollstream.schemas.errors import RollstreamError
from rollstream.streams.broker import Delivery, Writer
from rollstream.streams.errors import BrokerError, BrokerUnavailable, UnknownTopic

# Records of many rollouts cost the broker, the sealer and this process least; nobody waits for one
# rollout, and ``flush`` does not wait for it either.
LINGER_S = 0.05
GROUP_S = 0.01  # How long a group that has ended may wait for others, unless none ended lately.
BEHIND_S = 0.005  # How soon it looks where a record that is due waits for one before it.
POLL_S = 0.002  # How late an answer may be seen for which somebody waits.
POLL_S_MAX = 0.02  # The same where none came for long.
UNWATCHED_S = 1.0  # The same where nobody waits for it.
LOOK_AGAIN_S = 60.0  # How often it asks whether its topics have the partitions they had.


class Engine:
    """One thread a producer. It gathers by partition, lingers, encodes, sends, and settles each
    entry once: in the log, or why not. It says that the producer lives, whatever its callers do.
    An entry that waits for no others is sent on its caller's thread, if no other one sends: the
    client queues it, and waits for nothing.

    A caller holds the lock while it appends to memory, and never while anything is waited for.
    Calls that wait for room are served in the order of their arrival, each up to its deadline.

    Args:
        writer: used by one thread at a time, but for ``partitions``, which lookups ask beside it.
        hooks: of the producer; the engine's thread keeps neither of them alive.
        failures: takes what failed and nobody waits for.
        broker: its name, for messages.
        lingers: whether entries wait for others by time; else ``send`` ends each wait.

    Attributes:
        refusal: what every call raises; None: calls are taken.
        topics: that it was asked for.
        holding: entries that are held; others of their topics go behind them.
    """

    def __init__(
        self,
        writer: Writer,
        hooks: Hooks,
        failures: Failures,
        *,
        broker: str,
        clock: Clock,
        lingers: bool,
        gatherer: Gatherer | None = None,
    ) -> None:
        self.refusal: RollstreamError | None = None
        self._writer = writer
        self._hooks = hooks
        self._failures = failures
        self._broker = broker
        self._clock = clock
        self._lingers = lingers
        self._gatherer = gatherer or Gatherer()
        self._lock = threading.Lock()
        self.topics = Topics(broker, writer, self._lock, self._asks, self._found, self._die)
        self._working = threading.Lock()  # Held by the thread that uses the writer.
        self._sender = Sender(
            self._lock, writer, self._gatherer, self.topics, hooks, self._settle, broker
        )
        self.full = self._sender.full
        self.holding = Holding(
            self._lock, self._gatherer, self.topics, hooks, self._gather, self._settle, broker
        )
        self._thread = StepThread(self._step, "rollstream-engine")
        self._waiting = Waiting(self._gatherer)
        self.stats = partial(stats_of, self._gatherer, self._waiting, self.topics, failures)
        self._sleeps_s = IDLE_S
        self._poll_s = POLL_S
        self._linger_ends_s: float | None = None  # None: nothing is gathered.
        self._alone = False  # Whether the last linger held one entry.
        self._group_sent_s = -GROUP_S
        self._alone_at_s = 0.0  # When the next entry may be sent alone.
        self._look_again_s = clock.monotonic_s() + LOOK_AGAIN_S
        self._real = SystemClock()

    @property
    def outstanding(self) -> int:
        """How many entries are gathered or on their way."""
        return self._gatherer.entries

    def refuse(self) -> None:
        """Raises what every call is refused with, if any."""
        if self.refusal is not None:
            raise self.refusal

    def put(
        self, outgoing: Sequence[Outgoing], wait: Wait | None = None, *, at_once: bool = False
    ) -> bool:
        """Gathers entries of one topic, all of them or none; False where that needs to wait: for
        room, behind others, or for the topic. Then ``wait`` is queued, but not if ``at_once``.

        Raises:
            RolloutTooLarge: there will never be room for all of them at once.
            TopicMismatch: the topic has more partitions by now. Others: every call is refused.
        """
        topic = outgoing[0].topic
        with self._lock:
            self.refuse()
            if topic not in self.topics.places:
                if wait is not None:
                    self._ask(topic, wait)
                return False
            if self.topics.mismatches and (wrong := self.topics.wrong(topic)):
                raise wrong
            if not self._gatherer.has_room_for(outgoing) or self._waiting.queue:
                if wait is not None and not at_once:
                    self._waiting.queue_up(wait)
                    self._wake()
                return False
            if wait is not None and wait.delivered:
                self._take(wait)
                self._waiting.gathered(wait)
                return True
            is_alone = self._gather(outgoing)
        if is_alone:
            self._send_here(outgoing)
        return True

    def hold(self, outgoing: Sequence[Outgoing], deadline: Deadline) -> bool:
        """Holds entries of one topic, all of them or none, until it is known and the producer
        completes them; False where there is no room."""
        topic = outgoing[0].topic
        with self._lock:
            self.refuse()
            if not self._gatherer.has_room_for(outgoing) or self._waiting.queue:
                return False
            self.holding.add(outgoing, deadline)
            if topic not in self.topics.partitions:
                self._ask(topic)
            self._wake()
        return True

    def find(self, topic: str, wait: Wait) -> bool:
        """Whether it is known how many partitions the topic has; else ``wait`` is queued."""
        with self._lock:
            self.refuse()
            if topic not in self.topics.partitions:
                self._ask(topic, wait)
                return False
        return True

    def tell(self, alive: Outgoing) -> None:
        """Sends an entry that says that the producer lives, or that it waits; where there is no
        room, much else tells it."""
        with self._lock:
            self._tell(alive)
            self._wake()

    def send(self) -> None:
        """Sends everything that is gathered: it waits for no others."""
        with self._lock:
            self._waiting.end_tick()
            self._gatherer.end_linger()
            self._wake()

    def send_group(self, topic: str, group_uid: str) -> None:
        """Sends what is gathered where the group belongs: nothing more of it comes. Groups that end
        within ``GROUP_S`` share records."""
        with self._lock:
            if not self.topics.takes(topic):
                return
            now_s, next_s = self._real.monotonic_s(), self._group_sent_s + GROUP_S
            if now_s >= next_s:
                self._group_sent_s = now_s
                self._gatherer.end_linger(self.topics.address(topic, group_uid))
            elif (self._linger_ends_s or inf) > next_s:
                self._linger_ends_s = self._group_sent_s = next_s
            else:
                return
            self._wake()

    def stay_awake(self, sleeps_s: float) -> None:
        """From now on it sleeps no longer than that."""
        with self._lock:
            self.refuse()
            if self._sleeps_s > sleeps_s:
                self._wake()

    def flush(self, wait: Wait) -> bool:
        """Sends everything; whether all of it is settled. Else ``wait`` is queued, till it is."""
        with self._lock:
            self.refuse()
            wait.left, wait.last = self._gatherer.entries, self._gatherer.numbered
            if not wait.left:
                return True
            self._gatherer.end_linger()
            self._waiting.flushes.append(wait)
            self._waiting.new.append(wait)
            self._wake()
        return False

    def give_up(self, wait: Wait, late: Callable[[Wait], RollstreamError] | None = None) -> bool:
        """Ends a call's wait, unless it has ended; whether it was so. What of its entries has not
        left is not sent any more; what fails of the others is kept for ``Failures``.

        Args:
            late: makes the error of a call of which nothing has left.
        """
        with self._lock:
            if wait.done:
                return False
            wait.done = True
            self._waiting.withdraw(wait, late)
            ended = self._waiting.end_flushes()
        self._hooks._notify(ended)
        return True

    def closes(self, refusal: RollstreamError) -> bool:
        """Refuses every call with this from now on; False where it was closed, or forked off."""
        with self._lock:
            if not (self.refusal is None or isinstance(self.refusal, ProducerDied)):
                return False
            self.refusal = refusal
            ended = self._waiting.end([*self._waiting.queue, *self.topics.calls()], refusal)
        self._hooks._notify(ended)
        self._thread.join()
        return True

    def end(self, deadline: Deadline, last: Iterable[Outgoing]) -> None:
        """Sends what is gathered and ``last``, waits for answers up to the deadline, and ends; it
        was closed. What has no answer by then, or when a signal ends the wait, is in doubt. The
        thread has ended: the caller's does its work."""
        with self._lock:
            for one in last:
                self._tell(one)
        try:
            with self._working:
                self.holding.await_release(deadline, self._work)
                while self._gatherer.entries:
                    with self._lock:
                        self._gatherer.end_linger()
                    self._writer.poll(0.0 if self._work() else deadline.slice_s(LINGER_S))
                    if deadline.passed():
                        break
                    deadline.log_waiting(lambda: f"{self._broker} to take what was published")
        finally:
            self._end_all()

    def _end_all(self) -> None:
        assert self.refusal is not None, "it was closed"
        with self._lock:  # Before what they wait for fails.
            ended = self._waiting.end(self._waiting.flushes, self.refusal)
        self._sender.abandon()  # What is on its way is reported as in doubt.
        self.holding.abandon(BrokerUnavailable("it was never sent: the broker did not answer"))
        self._hooks._notify(ended)
        with self._lock:
            ended = self._waiting.end_all(self.refusal)
        self._hooks._notify(ended)

    def after_fork(self, refusal: RollstreamError) -> None:
        """Runs in a forked child, which has no thread; another one may have held the lock."""
        self._lock = threading.Lock()
        self.refusal = refusal

    def late(self, wait: Wait) -> RollstreamError:
        """Why a call could not queue its entries in time."""
        timeout_s, topic = wait.deadline.timeout_s, wait.outgoing[0].topic
        if topic not in self.topics.partitions:
            return self.topics.unreachable(topic, timeout_s)
        return self.full(f"no room for {timeout_s:g} s")

    # What follows up to the next comment is called with the lock held.

    def _wake(self) -> None:
        self._sleeps_s = 0.0
        self._thread.wake()

    def _ask(self, topic: str, wait: Wait | None = None) -> None:
        if wait is not None:
            if wait.delivered:
                self._waiting.await_end(wait)
            self._wake()
        self.topics.ask(topic, wait)

    def _take(self, wait: Wait) -> None:
        """Gathers the entries of a call."""
        wait.gathered = True
        if wait.delivered:
            for one in wait.outgoing:
                one.wait = wait
        self._gather(wait.outgoing)

    def _gather(self, outgoing: Sequence[Outgoing]) -> bool:
        """Gathers entries of one topic; whether they wait for no others, and are to be sent."""
        topic = outgoing[0].topic
        address_of, append, is_ready = self.topics.places[topic], self._gatherer.append, False
        for one in outgoing:
            one.address = address_of(one.key)
            if append(one):
                is_ready = True
        self.topics.gathered[topic] += len(outgoing)
        if self._lingers and self._linger_ends_s is None:
            if self._goes_alone():
                return True
            self._wake()
        elif is_ready:
            self._wake()
        return False

    def _goes_alone(self) -> bool:
        """The first entry is gathered: it waits for others, unless that is likely in vain, since
        the last linger held one entry, and none has ended since."""
        now_s = self._clock.monotonic_s()
        if self._alone and now_s >= self._alone_at_s:
            self._alone_at_s = now_s + LINGER_S
            self._gatherer.end_linger()
            return True
        self._alone = False
        self._linger_ends_s = self._real.monotonic_s() + LINGER_S
        return False

    def _tell(self, alive: Outgoing) -> None:
        if self.topics.takes(alive.topic) and self._gatherer.has_room_for([alive]):
            alive.address = self.topics.address(alive.topic, alive.key)
            self._gatherer.append(alive)
            self._gatherer.end_linger(alive.address)

    def _serve(self) -> list[Wait]:
        """Gathers for those that waited longest; returns the calls that this ends."""
        ended: list[Wait] = []
        while (wait := self._waiting.first()) is not None:
            error = self.topics.wrong(wait.outgoing[0].topic)
            if error is None:
                if not self._gatherer.has_room_for(wait.outgoing):
                    break
                self._take(wait)
                if wait.delivered:  # Its caller's tick has ended.
                    self._gatherer.end_linger()
            self._waiting.queue.popleft()
            if error is not None or not wait.delivered:
                ended += self._waiting.end([wait], error)
        return ended

    # What follows runs on the engine's thread, on the one that closes the producer, or on one that
    # publishes; whoever works holds ``_working``.

    def _step(self) -> float | None:
        try:
            with self._working:
                return self._look()
        except Exception as error:  # noqa: BLE001, whatever it is, the next call raises it
            self._die(error)
            return None

    def _send_here(self, outgoing: Sequence[Outgoing]) -> None:
        """Sends entries that wait for no others on the caller's thread, which costs less than to
        wake the engine's. That one goes on with what is left, and looks for the answer."""
        try:
            if self._working.acquire(blocking=False):
                try:
                    if self.refusal is None:
                        self._work()
                except Exception as error:  # noqa: BLE001, whatever it is, the next call raises it
                    self._die(error)
                finally:
                    self._working.release()
        finally:  # A signal may have ended it.
            if self._sleeps_s > UNWATCHED_S or not all(one.left for one in outgoing):
                with self._lock:
                    self._wake()

    def _die(self, error: BaseException) -> None:
        with self._lock:
            refusal = self.refusal = self.refusal or ProducerDied.of(error)
            ended = self._waiting.end_all(refusal, self.topics.calls())
        self._hooks._notify(ended)
        self._hooks._ended(refusal)

    def _look(self) -> float | None:
        """Does what is due; in how many seconds to look again."""
        if self.refusal is not None:
            return None
        self._sleeps_s = inf  # What changes from here on may be seen at the next look alone.
        alive, next_s = self._hooks._to_tell()
        if self._clock.monotonic_s() >= self._look_again_s:
            self._look_around()
        with self._lock:
            new = self._waiting.take_new()
            for one in alive:
                self._tell(one)
            lingered = (self._linger_ends_s or inf) <= self._real.monotonic_s()
            if lingered or self._waiting.flushes or self._waiting.queue:
                self._alone = self._gatherer.waiting == 1
                self._linger_ends_s = None
                self._gatherer.end_linger()
        worked = False
        while self._work():
            worked = True
        with self._lock:
            ended = self._waiting.expire(self.late) + self._waiting.end_flushes()
            self._waiting.looked(new, is_held=bool(self.holding))
            sleeps_s = self._sleeps_s = self._sleep_s(next_s, worked)
        self._hooks._notify(ended)
        return sleeps_s

    def _sleep_s(self, next_s: float, worked: bool) -> float:
        gatherer, waiting = self._gatherer, self._waiting
        if not gatherer.waiting:
            self._linger_ends_s = None
        if waiting.flushes or waiting.queue or (waiting.awaited and gatherer.entries):
            self._poll_s = POLL_S if worked else min(1.05 * self._poll_s, POLL_S_MAX)
            return self._poll_s
        self._poll_s = POLL_S
        if gatherer.behind:
            return BEHIND_S
        if self._linger_ends_s is not None:
            return max(0.0, self._linger_ends_s - self._real.monotonic_s())
        if self.topics.asked or waiting.awaited or self.holding:
            return LINGER_S  # The client logs why there is no answer; calls may be late.
        return min(next_s, UNWATCHED_S if gatherer.entries else IDLE_S)

    def _work(self) -> bool:
        """Settles what the broker answered, and sends what may be sent; whether anything was."""
        before = self._gatherer.entries
        released = bool(self.holding) and self.holding.release()
        self._writer.poll(0.0)
        if self._waiting.queue:
            with self._lock:
                ended = self._serve()
            self._hooks._notify(ended)
        return self._sender.send() or released or self._gatherer.entries != before

    def _asks(self) -> bool:
        """Whether topics are asked for: after a close only for what is held still."""
        died = isinstance(self.refusal, ProducerDied)
        return self.refusal is None or (bool(self.holding) and not died)

    def _settle(
        self,
        record: Sequence[Outgoing],
        delivery: Delivery | None,
        error: RollstreamError | None,
    ) -> None:
        self._hooks._settled(record, delivery, error)
        self._failures.count(len(record), error)
        with self._lock:
            self._gatherer.forget(record)  # A flush ends no earlier than what failed is kept.
            kept, ended = self._waiting.answer(record, error)
            self._failures.keep(kept)
            ended += self._waiting.end_flushes()
        self._hooks._notify(ended)

    def _look_around(self) -> None:
        self._look_again_s = self._clock.monotonic_s() + LOOK_AGAIN_S
        with self._lock:
            for topic in self.topics.partitions:
                self._ask(topic)
        self._hooks._looked_around()

    # What follows runs on the thread that asks for topics.

    def _found(self, topic: str, found: int | BrokerError) -> bool:
        """Ends the calls that wait for the topic; returns whether it is to be asked for again."""
        ended = list[Wait]()
        with self._lock:
            waits = [one for one in self.topics.asked.pop(topic) if not one.done]
            known = self.topics.partitions.get(topic)
            if isinstance(found, int):
                if known is None:
                    self.topics.know(topic, found)
                    ended = self._waiting.topic_found(waits) + self._serve()
                elif found != known:
                    self.topics.mismatch(topic, found)  # What is gathered, the sender settles.
            elif not isinstance(found, BrokerUnavailable):
                if isinstance(found, UnknownTopic):
                    found = self.topics.unknown(topic)
                ended = self._waiting.end(waits, found)
                self.holding.refuse(topic, found)
            elif waits or topic in self.holding:
                self.topics.asked[topic] = waits  # Behind others that are asked for.
                for one in waits:
                    one.look()
            self._wake()
        self._hooks._notify(ended)
        return topic in self.topics.asked
