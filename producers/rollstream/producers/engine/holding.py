"""Entries that are held until it is known where they belong, and what completes them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from rollstream.producers.engine.gather import Gatherer
from rollstream.producers.engine.hooks import Hooks
from rollstream.producers.engine.outbox import Outgoing
from rollstream.producers.engine.sending import Settle
from rollstream.producers.engine.topics import Topics
from rollstream.producers.engine.waits import in_real_time
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.errors import RollstreamError
from rollstream.streams.errors import BrokerError, BrokerUnavailable

_LOOK_S = 0.01  # How late an answer may be seen when the producer ends.

Call = tuple[Deadline, Sequence[Outgoing]]


@dataclass(eq=False)
class Holding:
    """Holds the entries of calls that nobody waits for, by topic and in their order, until the
    broker has answered. They count as gathered: in the bound on bytes, and for ``flush``.

    Whoever calls ``add`` and ``refuse`` holds the lock; the other calls come from one thread at a
    time.

    Args:
        lock: held while anything shared is used, and not while a hook is called.
        gather: takes complete entries of one topic.
        settle: is told of those that failed.
        broker: its name, for messages.
    """

    _lock: threading.Lock
    _gatherer: Gatherer
    _topics: Topics
    _hooks: Hooks
    _gather: Callable[[Sequence[Outgoing]], object]
    _settle: Settle
    _broker: str
    _calls: dict[str, deque[Call]] = field(default_factory=dict)
    _refused: dict[str, RollstreamError] = field(default_factory=dict)

    def __contains__(self, topic: str) -> bool:
        return topic in self._calls

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, outgoing: Sequence[Outgoing], deadline: Deadline) -> None:
        """Holds the entries of a call, up to its deadline."""
        self._gatherer.hold(outgoing)
        self._calls.setdefault(outgoing[0].topic, deque()).append((deadline, outgoing))

    def refuse(self, topic: str, error: RollstreamError) -> None:
        """Nothing that is held can be published there."""
        if topic in self._calls:
            self._refused[topic] = error

    def release(self) -> bool:
        """Gathers what is complete by now, and settles what is late or refused; whether there was
        anything."""
        released = [self._release(topic) for topic in [*self._calls]]
        return any(released)

    def await_release(self, deadline: Deadline, work: Callable[[], bool]) -> None:
        """Works until nothing is held, up to the deadline, and sends what is gathered. Other
        threads ask the broker, so the time is the system's, whatever the deadline's clock."""
        real = in_real_time(deadline)
        while self and not real.passed():
            with self._lock:
                self._gatherer.end_linger()
            if not work():
                real.wait(_LOOK_S)
            real.log_waiting(lambda: f"{self._broker} to say where what was published belongs")

    def abandon(self, error: RollstreamError) -> None:
        """Settles everything with this."""
        for topic, calls in [*self._calls.items()]:
            self._end(topic, [*calls], error)

    def _release(self, topic: str) -> bool:
        with self._lock:
            calls = [*self._calls[topic]]
            refused = self._refused.pop(topic, None) or self._topics.wrong(topic)
            is_known = self._topics.takes(topic)
        if refused is None and is_known:
            outgoing = [one for _, of_call in calls for one in of_call]
            try:
                failed = self._hooks._complete(topic, outgoing)
            except BrokerError as error:
                refused = error
            else:
                if failed is not None:
                    self._pass_on(topic, calls, failed)
                    return True
        if refused is not None:
            self._end(topic, calls, refused)
            return True
        late = [*takewhile(lambda call: call[0].passed(), calls)]
        if late:
            self._end(topic, late, unanswered(self._broker, topic, late[0][0].timeout_s))
        return bool(late)

    def _end(self, topic: str, calls: Sequence[Call], error: RollstreamError) -> None:
        outgoing = [one for _, of_call in calls for one in of_call]
        self._pass_on(topic, calls, dict.fromkeys(outgoing, error))

    def _pass_on(
        self, topic: str, calls: Sequence[Call], failed: dict[Outgoing, RollstreamError]
    ) -> None:
        """These calls, the first ones of the topic, are held no more."""
        outgoing = [one for _, of_call in calls for one in of_call]
        complete = [one for one in outgoing if one not in failed]
        with self._lock:
            for _ in calls:
                self._calls[topic].popleft()
            if not self._calls[topic]:
                del self._calls[topic]
                self._refused.pop(topic, None)  # It was of these.
            self._gatherer.forget(complete)
            if complete:
                self._gather(complete)
                self._gatherer.end_linger()  # They have waited long enough.
        for one, error in failed.items():
            self._settle([one], None, error)


def unanswered(broker: str, topic: str, timeout_s: float) -> BrokerUnavailable:
    """What completes entries of the topic was not known in time."""
    return BrokerUnavailable(
        f"{broker} did not say within {timeout_s:g} s which partitions {topic} has, and which "
        "policies its trainers announced; it was not sent. Check that the broker runs and can be "
        "reached from here"
    )
