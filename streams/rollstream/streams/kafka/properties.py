"""What librdkafka is configured with, and why; and its log, without repeated lines."""

from __future__ import annotations

import logging
import math
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from rollstream.streams.broker import IDLE_S
from rollstream.streams.topics.layout import RECORD_BYTES_MAX

QUEUED_KIB_MAX = 32 * 1024  # Bytes that wait for the broker in one writer; BufferFull beyond.
QUEUED_RECORDS_MAX = 100_000  # The same, counted in records.
BATCH_BYTES_MAX = 4 * 1024 * 1024  # In one request to one partition.
FETCHED_KIB_MAX = 32 * 1024  # Bytes read ahead by one reader, and so what one poll returns.
ONCE_MS_MAX = 30_000  # A record that is sent once is dropped if it is not acknowledged by then.
NO_TOPIC_AFTER_MS = 5_000  # A broker that just started, or a new topic, may need a moment.
# Until a request has waited for so long, a client looks for no other leader of what a broker leads
# that is silent and keeps its connections; the default is a minute. What is appended may wait for
# a replica that Kafka gives up after 11 s, a commit for one that it gives up after 5 s.
SILENT_MS_MAX = 15_000
SILENT_READ_MS_MAX = 8_000
RECONNECT_MS_MAX = 1_000  # Between two attempts to connect; its jitter adds half.
SESSION_TIMEOUT_MS = 10_000  # A dead member's partitions move after this.
POLL_INTERVAL_MS_MAX = 300_000  # A member that does not poll for this long loses its partitions.
QUIET_S = 10.0  # The same line is let through once in this time.
LINES_MAX = 256  # Remembered; beyond it the one that was let through first is forgotten.
# Of a broker that ends while a client connects: all that are supported are newer by far.
_MISLEADING = "probably due to broker version < 0.10"
_TIMING = re.compile(r"\(after \d+ms .*?\)$")


class RepeatFilter(logging.Filter):
    """Lets a line through once in ``QUIET_S``.

    A client dials a broker that is down twenty times a second and logs each failure; its own
    suppression does not recognise lines that differ only in their milliseconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self._passed_at_s: OrderedDict[str, float] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        line = _TIMING.sub("", record.getMessage())
        if record.created - self._passed_at_s.get(line, -math.inf) < QUIET_S:
            return False
        self._passed_at_s[line] = record.created
        self._passed_at_s.move_to_end(line)
        if len(self._passed_at_s) > LINES_MAX:
            self._passed_at_s.popitem(last=False)
        return True


LOG = logging.getLogger("rollstream.kafka")
LOG.addHandler(logging.NullHandler())  # A library logs nothing unless its user asks for it.
# One section of properties serves all clients; each complains about those of the others.
LOG.addFilter(lambda record: "property and will be ignored" not in record.getMessage())
LOG.addFilter(lambda record: _MISLEADING not in record.getMessage())
LOG.addFilter(RepeatFilter())


# Of every client.
CLIENT: Final[Mapping[str, Any]] = {
    # At its default of 10 s a reader comes back that long after its broker.
    "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
    "socket.timeout.ms": SILENT_MS_MAX,
}
# Of every consumer.
READER: Final[Mapping[str, Any]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # A log may end in markers of transactions, which are no records.
    "enable.partition.eof": True,
    # An offset that was deleted is a loss to report, never a reason to start elsewhere.
    "auto.offset.reset": "error",
    "topic.metadata.propagation.max.ms": NO_TOPIC_AFTER_MS,
    # No transactions are written here; those of others must not block these readers.
    "isolation.level": "read_uncommitted",
    # At its default of 1 s a reader that drains in bursts idles in between.
    "fetch.queue.backoff.ms": 5,
    # A seek waits for the fetch that is under way.
    "fetch.wait.max.ms": round(IDLE_S * 1000),
    "fetch.message.max.bytes": 4 * 1024 * 1024,
    "queued.max.messages.kbytes": FETCHED_KIB_MAX,
    # No broker compares the checksums of what it reads from its disk.
    "check.crcs": True,
    "socket.nagle.disable": True,
    "socket.timeout.ms": SILENT_READ_MS_MAX,
}
# Of a member of a consumer group.
MEMBER: Final[Mapping[str, Any]] = {
    **READER,
    "partition.assignment.strategy": "cooperative-sticky",
    # Under load a few large answers, not one a record; otherwise one waits `fetch.wait.max.ms`.
    "fetch.min.bytes": 1024 * 1024,
    "session.timeout.ms": SESSION_TIMEOUT_MS,
    "heartbeat.interval.ms": 500,
    "max.poll.interval.ms": POLL_INTERVAL_MS_MAX,
}


def writer(*, linger_ms: float, retries: bool) -> dict[str, Any]:
    return {
        # A record that is sent once cannot be doubled by a retry. Without retries no producer id is
        # asked for either, which librdkafka does half a second after it connected.
        "enable.idempotence": retries,
        **({} if retries else {"message.send.max.retries": 0, "message.timeout.ms": ONCE_MS_MAX}),
        # With more, an idempotent librdkafka spins while it waits for answers: ten times the
        # processor time a rollout, which a broker on the same cores then lacks. Big batches keep
        # one request at a time fast.
        "max.in.flight": 1,
        "acks": "all",
        "linger.ms": linger_ms,
        # Big batches cost the broker and the client least a record (8 KiB rollouts: half the CPU).
        "batch.size": BATCH_BYTES_MAX,
        "partitioner": "murmur2_random",
        "message.max.bytes": RECORD_BYTES_MAX,
        "queue.buffering.max.kbytes": QUEUED_KIB_MAX,
        "queue.buffering.max.messages": QUEUED_RECORDS_MAX,
        "topic.metadata.propagation.max.ms": NO_TOPIC_AFTER_MS,
        "allow.auto.create.topics": False,  # One that Kafka makes has its defaults, not ours.
        "socket.nagle.disable": True,
    }
