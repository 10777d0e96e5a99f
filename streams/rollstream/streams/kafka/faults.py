"""What librdkafka's error callbacks say of the way to the brokers."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from contextlib import suppress

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.deadline import Deadline

SAY_EVERY_S = 60.0  # How often an outage that goes on is logged again.
# librdkafka dials again within 1.5 s (``RECONNECT_MS_MAX``) and then reports a refusal again: one
# that it did not report within this time has ended. Other attempts take up to 30 s to fail.
REFUSED_OVER_AFTER_S = 3.0
OVER_AFTER_S = 45.0
_WHY_WITHIN_S = 1.0
_FIRST_LOOK_S = 0.1
_CAUSES = frozenset(
    (KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._AUTHENTICATION, KafkaError._SSL)
)
_REFUSED = "refused"
_STATE = re.compile(r" \(after \d+ms .*?\)$")
_log = logging.getLogger("rollstream.wait")


class Faults:
    """The errors of clients, of which any thread may tell.

    No broker can be reached where librdkafka says that all are down and then fails to connect
    again: all are "down" too when the broker closed connections that were idle, which hurts nobody.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._down_s = self._failed_s = -math.inf
        self._failure: KafkaError | None = None

    def record(self, error: KafkaError) -> None:
        """An ``error_cb`` of librdkafka, which runs in the polls of its client."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._down_s = self._clock.monotonic_s()
        elif error.code() in _CAUSES:
            self._failure, self._failed_s = error, self._clock.monotonic_s()

    def reached(self) -> None:
        """A broker answered a client. Whatever was wrong before has ended; where not, as with an
        answer that was fetched ahead, librdkafka says so again."""
        self._down_s = -math.inf

    def cause(self) -> KafkaError | None:
        """Why no broker can be reached; None: as far as is known, one can."""
        failure = self._failure
        if failure is None:
            return None
        after_s = REFUSED_OVER_AFTER_S if _REFUSED in failure.str() else OVER_AFTER_S
        over_s = self._clock.monotonic_s() - after_s
        return failure if min(self._down_s, self._failed_s) > over_s else None


class OutageLog(Faults):
    """Logs an outage once it is known, and each minute for as long as it lasts, so that nothing
    that waits for the brokers waits without a word.

    Args:
        bootstrap: where the brokers are, for people.
        make: a client whose errors are recorded here.
    """

    def __init__(
        self, bootstrap: str, make: Callable[[], AdminClient], clock: Clock | None = None
    ) -> None:
        super().__init__(clock)
        self._bootstrap = bootstrap
        self._make = make
        self._said_s = -math.inf

    def record(self, error: KafkaError) -> None:
        super().record(error)
        sentence, now_s = self.sentence(), self._clock.monotonic_s()
        if not sentence or now_s - self._said_s < SAY_EVERY_S:
            return
        self._said_s = now_s
        _log.warning("%s; what needs it waits, and connecting is tried again", sentence)

    def sentence(self) -> str:
        """The outage as a sentence; empty where there is none."""
        cause = self.cause()
        if cause is None:
            return ""
        return f"Kafka at {self._bootstrap} cannot be reached: {sentence_of(cause)}"

    def why_away(self, timeout_s: float) -> str:
        """Why no broker can be reached, as a new client finds out; empty: one can."""
        # One that was kept would tell now what was wrong when it was asked last.
        client, deadline = self._make(), Deadline(min(timeout_s, _WHY_WITHIN_S))
        look_s = _FIRST_LOOK_S
        while not deadline.passed():
            with suppress(KafkaException):
                client.list_topics(timeout=deadline.slice_s(look_s))
                self.reached()
                return ""
            client.poll(0)  # Runs the error callback.
            if self.sentence():
                break
            look_s *= 2
        return self.sentence()


def sentence_of(error: KafkaError) -> str:
    """What librdkafka says, without its timings; and what a person can do."""
    text = _STATE.sub("", error.str())
    if error.code() == KafkaError._RESOLVE:
        return f"{text}; correct the host in this address, or what the brokers advertise"
    if _REFUSED in text:
        return f"{text}; does Kafka run there?"
    return text
