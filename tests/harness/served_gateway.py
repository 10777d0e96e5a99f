"""A gateway in this process, at a socket of its own."""

from __future__ import annotations

import logging
import queue
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from harness.producers import new_layout
from harness.step_writers import gateway_config
from rollstream.gateway import serve
from rollstream.runtime.config.metrics import MetricsConfig
from rollstream.streams.memory import MemoryBroker

TIMEOUT_S = 60.0
_log = logging.getLogger("rollstream.gateway")


class _Listening(logging.Handler):
    """Passes on the port that the log names."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.port: queue.SimpleQueue[int] = queue.SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        if found := re.search(r"listening on http://\S+:(\d+),", record.getMessage()):
            self.port.put(int(found[1]))


@contextmanager
def served(metrics: MetricsConfig | None = None, /, **gateway: Any) -> Iterator[int]:
    """The port on the loopback address at which it answers, over a broker in memory."""
    broker = MemoryBroker()
    layout = new_layout(broker, "math", "code")
    given = gateway_config(**{"shutdown_delay_s": 0.0, **gateway})
    kafka = given.kafka.model_copy(update={"namespace": layout.namespace})
    config = given.model_copy(update={"kafka": kafka, "metrics": metrics or given.metrics})
    listening, stopping, level = _Listening(), threading.Event(), _log.level
    _log.addHandler(listening)
    _log.setLevel(logging.INFO)
    running = threading.Thread(
        target=serve,
        args=(config,),
        kwargs={"broker": broker, "host": "127.0.0.1", "port": 0, "stopping": stopping},
    )
    running.start()
    try:
        yield listening.port.get(timeout=TIMEOUT_S)
    finally:
        stopping.set()
        running.join(TIMEOUT_S)
        assert not running.is_alive()
        _log.removeHandler(listening)
        _log.setLevel(level)
