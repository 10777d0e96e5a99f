"""When the sync producer's own thread ends the linger, and when it is not needed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from harness.brokers import TIMEOUT_S, until
from harness.faults import Append, Fate, FaultyBroker, FaultyWriter
from harness.producer_faults import NEVER_S, MutedBroker, never_linger
from harness.producers import PARTITIONS, flush_by_jumps, new_layout, published, records_of, sampled
from rollstream.producers import (
    DeliveryFailed,
    ProducerDied,
    RolloutProducer,
    Step,
    StepProducer,
)
from rollstream.producers.engine import engine
from rollstream.producers.engine.engine import LOOK_AGAIN_S
from rollstream.runtime.clock import ManualClock
from rollstream.schemas.ingest.record import decode_record
from rollstream.streams.broker import OnDelivery, Writer
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.partitioning import partition_of

PROGRAM = """
import atexit
from harness.faults import Fate, FaultyBroker
from harness.producer_faults import NEVER_S
from harness.producers import new_layout, published, sampled
from rollstream.producers import RolloutProducer
from rollstream.producers.engine import engine
from rollstream.streams.memory import MemoryBroker

engine.LINGER_S = NEVER_S  # However slow the machine is, nothing is sent before the end.
broker = FaultyBroker(MemoryBroker(), lambda append: Fate.{fate})
layout = new_layout(broker)
# What is registered first runs last.
atexit.register(lambda: print(len(published(broker, layout))))
producer = RolloutProducer(
    broker=broker, environment="math", namespace=layout.namespace, timeout_s=0.2
)
for number in range(100):
    producer.publish(example_id="ex", rollout_uid=f"uid-{number}", **sampled())
{end}
"""


def ended(fate: Fate, end: str = "") -> tuple[int, str, str]:
    """How a process ends, and how many rollouts are in the log then, and what it is told."""
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{fate}", fate.name).replace("{end}", end)],
        timeout=TIMEOUT_S,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return process.returncode, process.stdout, process.stderr


def test_a_process_that_never_closes_its_producer_sends_what_it_published() -> None:
    assert ended(Fate.PASS) == (0, "100\n", "")


def test_a_process_that_an_exception_ends_sends_what_it_published() -> None:
    status, found, told = ended(Fate.PASS, "raise RuntimeError('crashed')")
    assert (status, found, told.splitlines()[-1]) == (1, "100\n", "RuntimeError: crashed")


def test_a_process_that_never_closes_its_producer_names_what_did_not_arrive() -> None:
    status, found, told = ended(Fate.DROP)
    assert (status, found) == (0, "0\n")
    assert "100 rollouts were not delivered" in told
    assert "(uid-0, uid-1," in told


def test_a_forked_child_that_ends_sends_nothing_of_its_parents() -> None:
    fork = "import os, sys; child = os.fork(); child or sys.exit(); os.waitpid(child, 0)"
    assert ended(Fate.PASS, fork) == (0, "0\n100\n", "")


class SlowBroker(FaultyBroker):
    """A broker that answers no question for partitions until it is ``answering``."""

    def __init__(self) -> None:
        super().__init__(MemoryBroker())
        self.answering = threading.Event()

    def writer(self, *, linger_ms: float = 5.0, retries: bool = True) -> Writer:
        return SlowWriter(self, self.inner.writer())


class SlowWriter(FaultyWriter):
    def __init__(self, broker: SlowBroker, inner: Writer) -> None:
        super().__init__(broker, inner)
        self._answering = broker.answering

    def partitions(self, topic: str, timeout_s: float) -> int:
        assert self._answering.wait(TIMEOUT_S)
        return super().partitions(topic, timeout_s)


def test_a_slow_answer_about_partitions_does_not_keep_what_was_published() -> None:
    clock, broker = ManualClock(), SlowBroker()
    layout = new_layout(broker, "math")
    broker.answering.set()
    with RolloutProducer(
        broker=broker, environment="math", namespace=layout.namespace, clock=clock
    ) as producer:
        producer.publish(example_id="ex", **sampled())
        producer.flush()
        broker.answering.clear()
        clock.advance(LOOK_AGAIN_S)
        try:
            producer.publish(example_id="ex", **sampled())
            until(lambda: len(published(broker, layout)) == 2)
        finally:
            broker.answering.set()


def test_a_worker_that_publishes_one_at_a_time_does_not_wait_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, broker = ManualClock(), MemoryBroker()
    layout = new_layout(broker, "math")
    with RolloutProducer(
        broker=broker, environment="math", namespace=layout.namespace, clock=clock
    ) as producer:
        producer.publish(example_id="ex", **sampled())
        until(lambda: len(records_of(broker, layout)) == 1)  # A linger has held one, and ended.
        never_linger(monkeypatch)
        for count in range(2, 7):
            clock.advance(2 * NEVER_S)
            producer.publish(example_id="ex", **sampled())
            until(lambda count=count: len(records_of(broker, layout)) == count)  # type: ignore[misc]
        for _ in range(3):  # Soon after one another: the next linger holds them all.
            producer.publish(example_id="ex", **sampled())
        producer.flush()
        *_, last = records_of(broker, layout)
        assert decode_record(last.value).count == 3


class DyingBroker(FaultyBroker):
    """Its writer raises what no broker does, as soon as ``dying`` is set."""

    def __init__(self, inner: MemoryBroker) -> None:
        super().__init__(inner)
        self.dying = False

    def before_poll(self, timeout_s: float) -> float:
        if self.dying and threading.current_thread() is not threading.main_thread():
            raise TypeError("what nobody thought of")
        return timeout_s


@pytest.mark.proves("F20")
def test_a_thread_that_dies_is_an_error_at_the_next_call_and_close_loses_nothing() -> None:
    broker = DyingBroker(MemoryBroker())
    layout = new_layout(broker)
    producer = RolloutProducer(broker=broker, environment="math", namespace=layout.namespace)
    broker.dying = True
    published_before = 0

    def refused() -> bool:
        nonlocal published_before
        try:
            producer.publish(example_id="ex", **sampled())
        except ProducerDied as error:
            return "TypeError('what nobody thought of')" in str(error)
        published_before += 1
        return False

    until(refused)
    with pytest.raises(ProducerDied):
        producer.flush()
    with pytest.raises(ProducerDied, match="make a new one"):
        producer.close()
    assert len(published(broker, layout)) == published_before
    producer.close()


class BreakingBroker(FaultyBroker):
    """Its writer raises what no broker does, on the thread that publishes."""

    breaking = False

    def before_poll(self, timeout_s: float) -> float:
        if self.breaking and threading.current_thread() is threading.main_thread():
            raise TypeError("what nobody thought of")
        return timeout_s


@pytest.mark.proves("F20")
def test_what_ends_sending_on_a_callers_thread_is_an_error_at_the_next_call() -> None:
    clock, broker = ManualClock(), BreakingBroker(MemoryBroker())
    layout = new_layout(broker)
    producer = RolloutProducer(
        broker=broker, environment="math", namespace=layout.namespace, clock=clock
    )
    broker.breaking, published_before = True, 0

    def refused() -> bool:
        nonlocal published_before
        clock.advance(2 * NEVER_S)  # An entry alone waits for no others.
        try:
            producer.publish(example_id="ex", **sampled())
            published_before += 1
            producer.flush()
        except ProducerDied as error:
            return "TypeError('what nobody thought of')" in str(error)
        return False

    until(refused)
    broker.breaking = False
    with pytest.raises(ProducerDied, match="make a new one"):
        producer.close()
    assert len(published(broker, layout)) == published_before


class InterruptedBroker(FaultyBroker):
    """Appends, or polls, on the thread that publishes, are interrupted like by Ctrl-C."""

    interrupted = ""

    def interrupt(self, call: str) -> None:
        if self.interrupted == call and threading.current_thread() is threading.main_thread():
            self.interrupted = ""
            raise KeyboardInterrupt

    def before_append(self, append: Append, on_delivery: OnDelivery | None) -> OnDelivery | None:
        self.interrupt("append")
        return on_delivery

    def before_poll(self, timeout_s: float) -> float:
        self.interrupt("poll")
        return timeout_s


@pytest.mark.proves("F20")
@pytest.mark.parametrize("call", ["append", "poll"])
def test_an_entry_whose_sending_is_interrupted_is_sent_or_named(call: str) -> None:
    clock, broker = ManualClock(), InterruptedBroker(MemoryBroker())
    layout = new_layout(broker)
    producer = RolloutProducer(
        broker=broker, environment="math", namespace=layout.namespace, clock=clock
    )
    count = 0

    def interrupted() -> bool:
        nonlocal count
        clock.advance(2 * NEVER_S)  # An entry alone waits for no others.
        broker.interrupted = call
        count += 1
        try:
            producer.publish(example_id="ex", rollout_uid=f"uid-{count}", **sampled())
        except KeyboardInterrupt:
            return True
        broker.interrupted = ""
        producer.flush()
        return False

    until(interrupted)
    if call == "append":
        with pytest.raises(DeliveryFailed, match=f"uid-{count}.*KeyboardInterrupt"):
            producer.flush(TIMEOUT_S)
        count -= 1
    else:
        until(lambda: len(published(broker, layout)) == count)  # Nobody calls again.
    producer.publish(example_id="ex", **sampled())
    producer.close()
    assert len(published(broker, layout)) == count + 1


def test_what_waits_behind_a_record_does_not_wait_for_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "UNWATCHED_S", NEVER_S)
    clock, broker = ManualClock(), MutedBroker(MemoryBroker())
    layout = new_layout(broker)
    prompts = {partition_of(f"{number}".encode(), PARTITIONS): f"{number}" for number in range(50)}
    busy, free, *_ = prompts.values()

    def step(prompt: str, index: int) -> Step:
        return Step([1], [2], 1.0, "trajectory", prompt, index, "v", 0)

    with StepProducer(broker=broker, namespace=layout.namespace, clock=clock) as producer:
        producer.submit_step(step(busy, 0), environment="math")
        flush_by_jumps(producer)  # It was alone.
        broker.muted = True
        for steps in ([step(busy, 1)], [step(busy, 2), step(free, 0)]):
            clock.advance(2 * engine.LINGER_S)
            producer.submit_steps(steps, environment="math")
        broker.muted = False
        until(lambda: len(published(broker, layout)) == 4)
