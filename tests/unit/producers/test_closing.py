"""A producer is closed once, and every call that closes it says what came of that."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.brokers import TIMEOUT_S, until
from harness.faults import Fate, FaultyBroker, FaultyWriter
from harness.producer_faults import Doubtful
from harness.producers import new_layout, published, sampled, segments_of
from rollstream.producers import (
    AsyncRolloutProducer,
    DeliveryFailed,
    FlushTimedOut,
    RolloutProducer,
)
from rollstream.producers.engine.producer import Blocking
from rollstream.streams.broker import Writer
from rollstream.streams.memory import MemoryBroker

CLOSE_S = 0.5
TESTS = Path(__file__).parents[2]


class ClosingBroker(FaultyBroker):
    """It never answers "a"; and what abandons its writers goes on once ``go_on`` is set."""

    def __init__(self) -> None:
        super().__init__(MemoryBroker(), Doubtful(Fate.HOLD, "a"))
        self.abandoned, self.go_on = threading.Event(), threading.Event()

    def writer(self, *, linger_ms: float = 5.0, retries: bool = True) -> Writer:
        return _ClosingWriter(self, self.inner.writer())


class _ClosingWriter(FaultyWriter):
    def __init__(self, broker: ClosingBroker, inner: Writer) -> None:
        super().__init__(broker, inner)
        self._closing = broker

    def abandon(self) -> None:
        self._closing.abandoned.set()
        assert self._closing.go_on.wait(TIMEOUT_S)
        super().abandon()


def told(close: Callable[[], object]) -> Exception | None:
    try:
        close()
    except Exception as error:  # noqa: BLE001  The test looks at it.
        return error
    return None


def test_a_close_during_another_one_waits_for_it_and_says_the_same() -> None:
    broker = ClosingBroker()
    layout = new_layout(broker)
    producer = RolloutProducer(
        broker=broker, environment="math", namespace=layout.namespace, timeout_s=CLOSE_S
    )
    producer.publish(example_id="ex", rollout_uid="a", **sampled())
    with ThreadPoolExecutor(3) as pool:
        closing = [pool.submit(told, producer.close)]
        assert broker.abandoned.wait(TIMEOUT_S)
        late = told(producer.close)
        closing += [pool.submit(told, producer.close) for _ in range(2)]
        broker.go_on.set()
        errors = [one.result(TIMEOUT_S) for one in closing]
    assert isinstance(late, FlushTimedOut)
    assert late.outstanding == 1
    for error in errors:
        assert isinstance(error, DeliveryFailed)
        assert error.uids == ("a",)
    assert len({*map(id, errors)}) == 3  # Each has the frames of its own thread alone.
    assert told(producer.close) is None  # It was told.


class _Interrupting(threading.Event):
    def set(self) -> None:
        super().set()
        signal.raise_signal(signal.SIGUSR1)


def test_a_close_in_a_signal_handler_lets_the_one_that_it_interrupts_go_on() -> None:
    broker = ClosingBroker()
    broker.abandoned = _Interrupting()
    layout = new_layout(broker)
    producer = RolloutProducer(
        broker=broker, environment="math", namespace=layout.namespace, timeout_s=CLOSE_S
    )
    producer.publish(example_id="ex", rollout_uid="a", **sampled())
    handled = list[Exception | None]()

    def handle(*_: object) -> None:
        handled.append(told(producer.close))
        broker.go_on.set()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        error = told(producer.close)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert handled == [None]
    assert isinstance(error, DeliveryFailed)
    assert error.uids == ("a",)


def test_a_close_after_one_that_a_signal_ended_says_what_is_in_doubt() -> None:
    broker = FaultyBroker(MemoryBroker(), Doubtful(Fate.HOLD, "a"))
    layout = new_layout(broker)
    producer = RolloutProducer(broker=broker, environment="math", namespace=layout.namespace)
    producer.publish(example_id="ex", rollout_uid="a", **sampled())

    def handle(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, CLOSE_S)
    try:
        with pytest.raises(KeyboardInterrupt):
            producer.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    error = told(producer.close)
    assert isinstance(error, DeliveryFailed)
    assert error.uids == ("a",)
    assert told(producer.close) is None


def test_an_awaited_close_during_another_one_waits_for_it_and_says_the_same() -> None:
    broker = ClosingBroker()
    layout = new_layout(broker)

    async def scenario() -> None:
        producer = AsyncRolloutProducer(
            broker=broker, environment="math", namespace=layout.namespace, timeout_s=CLOSE_S
        )
        publishing = asyncio.ensure_future(
            producer.publish(example_id="ex", rollout_uid="a", **sampled())
        )
        await asyncio.to_thread(until, lambda: broker.held == 1)
        publishing.cancel()
        cancelled = asyncio.ensure_future(producer.close())
        await asyncio.to_thread(broker.abandoned.wait, TIMEOUT_S)
        cancelled.cancel()
        closing = [asyncio.ensure_future(producer.close()) for _ in range(2)]
        await asyncio.sleep(0)
        broker.go_on.set()
        for error in await asyncio.gather(*closing, return_exceptions=True):
            assert isinstance(error, DeliveryFailed)
            assert error.uids == ("a",)
        await producer.close()

    asyncio.run(scenario())


def test_a_block_delivers_without_a_finaliser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Blocking, "__del__")
    broker = MemoryBroker()
    layout = new_layout(broker)
    with RolloutProducer(broker=broker, environment="math", namespace=layout.namespace) as producer:
        uids = [producer.publish(example_id="ex", **sampled()) for _ in range(3)]
    assert [one["rollout_uid"] for one in segments_of(published(broker, layout))] == uids


UNCLOSED = """
import atexit
from harness.producers import new_layout, published, sampled, segments_of
from rollstream.producers import RolloutProducer
from rollstream.producers.engine.producer import Blocking
from rollstream.streams.memory import MemoryBroker
del Blocking.__del__
broker = MemoryBroker()
layout = new_layout(broker)
atexit.register(lambda: print(len(segments_of(published(broker, layout)))))
producer = RolloutProducer(broker=broker, environment="math", namespace=layout.namespace)
for _ in range(3):
    producer.publish(example_id="ex", **sampled())
"""


def test_the_end_of_a_process_delivers_without_a_finaliser() -> None:
    command = [sys.executable, "-c", UNCLOSED]
    ended = subprocess.run(
        command, cwd=TESTS, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "3\n"), ended.stderr
