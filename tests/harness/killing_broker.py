"""A broker that kills its own process once, at an event of some kind; it travels to an actor."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import ray.cloudpickle

import harness.faults
from harness.faults import Append, Fate, FaultyBroker, write_now
from rollstream.schemas import codec
from rollstream.streams.kafka import KafkaBroker

# The actor's process cannot import the tests: what is defined here travels with its object.
ray.cloudpickle.register_pickle_by_value(harness.faults)  # type: ignore[no-untyped-call]
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class KillingBroker(FaultyBroker):
    """Kafka, until an event named ``kind`` is appended: then kill -9, once in all processes.

    Args:
        written: whether the event is in the log by then; its writer never learns of it.
        marker: a file that tells the next process that it was done.
    """

    def __init__(self, bootstrap: str, kind: str, *, written: bool, marker: Path) -> None:
        super().__init__(KafkaBroker(bootstrap), self._decide_fate)
        self._arguments = bootstrap, kind, written, marker

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, self._arguments

    def _decide_fate(self, append: Append) -> Fate:
        _, kind, written, marker = self._arguments
        if marker.exists() or type(codec.decode(append.value)).__name__ != kind:
            return Fate.PASS
        marker.touch()
        if written:
            write_now(self.inner, append)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still alive")


def _rebuilt(bootstrap: str, kind: str, written: bool, marker: Path) -> KillingBroker:
    return KillingBroker(bootstrap, kind, written=written, marker=marker)
