"""What of admission only a made clock, a broker that fails, or many that wait can show."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from harness.admission import announce, announced, granted
from harness.brokers import TIMEOUT_S, until
from harness.faults import Fate, FaultyBroker
from harness.granting import Granting
from harness.limited_worker import StillClock, Worker, play
from harness.producer_faults import (
    FILLING,
    Doubtful,
    NarrowBroker,
    leave_no_room,
    wide_rollout,
)
from harness.producers import (
    AnyProducer,
    sampled,
)
from rollstream.producers import (
    BufferFull,
    DeliveryFailed,
    NotAdmitted,
    ProducerDied,
    RolloutProducer,
)
from rollstream.producers.admission.log import AdmissionLog
from rollstream.producers.admission.shares import Allowance, Granted
from rollstream.producers.admission.standing import ALIVE_S, TELL_AGAIN_S, Standing
from rollstream.producers.admission.waiting import GRANTED_AFTER_S, AdmissionQueue
from rollstream.producers.engine import shell
from rollstream.runtime.clock import ManualClock
from rollstream.schemas.ingest.entry import EntryKind
from rollstream.schemas.order import PolicyRef
from rollstream.streams.memory import MemoryBroker

kinds = pytest.mark.parametrize("kind", ["sync", "async"])


@kinds
def test_shares_hold_for_their_time_by_the_workers_clock_and_then_a_few_more_are_admitted(
    kind: str,
) -> None:
    """The broker's clock, which stamps what samplers write, is years behind."""
    clock = StillClock(now_us=1_900_000_000_000_000)
    worker = Worker(MemoryBroker(clock=ManualClock(now_us=1_000_000_000_000_000)))
    idle: dict[str, Any] = {"valid_s": 15.0, "idle_s": 600.0, "idle_groups": 2}
    worker.granting.grant(**idle)

    async def scenario(producer: AnyProducer) -> None:
        with pytest.raises(NotAdmitted):
            await play(producer, timeout_s=0)
        await worker.grant(1, **idle)
        await play(producer)
        clock.advance(14.9)
        with pytest.raises(NotAdmitted) as told:
            await play(producer, timeout_s=0)
        assert told.value.away_s is None
        clock.advance(0.1)
        with pytest.raises(NotAdmitted, match="it is away, its shares have run out") as told:
            await play(producer, timeout_s=0)
        assert told.value.away_s == pytest.approx(0.0)
        waiting = asyncio.ensure_future(play(producer))
        clock.advance(600.0)
        await waiting
        await play(producer, timeout_s=0)
        with pytest.raises(NotAdmitted):
            await play(producer, timeout_s=0)

    worker.play(kind, scenario, clock)


@kinds
def test_a_sampler_whose_policy_is_known_may_grant_a_moment_later(kind: str) -> None:
    """Else all that wait for the first policy would begin groups."""
    clock = StillClock()
    worker = Worker(MemoryBroker())
    announce(worker.broker, worker.granting.topic, announced(0))

    async def scenario(producer: AnyProducer) -> None:
        playing = asyncio.ensure_future(play(producer))
        await asyncio.to_thread(worker.granting.grant)
        await asyncio.to_thread(worker.granting.until_told, 0, 1)
        await worker.grant(1)
        await playing

    worker.play(kind, scenario, clock)


@kinds
def test_a_sampler_that_grants_none_limits_nobody(kind: str) -> None:
    clock = StillClock()
    worker = Worker(MemoryBroker())
    announce(worker.broker, worker.granting.topic, announced(0))

    async def scenario(producer: AnyProducer) -> None:
        playing = asyncio.ensure_future(play(producer))
        # In small steps, and only while it waits: what it sends has a time-out by the same clock.
        await asyncio.to_thread(
            until,
            lambda: worker.count(EntryKind.DISPATCHED) > 0,
            lambda: clock.advance(GRANTED_AFTER_S / 20),
        )
        await playing

    worker.play(kind, scenario, clock)


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What sleeps by the machine's clock until it is to tell again looks soon."""
    monkeypatch.setattr(shell, "ALIVE_S", 0.01)


@kinds
@pytest.mark.usefixtures("_soon")
def test_a_producer_with_open_groups_tells_every_five_seconds_and_an_idle_one_never(
    kind: str,
) -> None:
    clock = StillClock()
    worker = Worker(MemoryBroker())

    async def scenario(producer: AnyProducer) -> None:
        async with producer.dispatch(example_id="ex", group_size=1) as group:
            for count in range(1, 4):
                clock.advance(ALIVE_S)
                await worker.until_alive(count)
            await group.publish(**sampled())
        clock.advance(10 * ALIVE_S)
        await producer.publish(example_id="ex", **sampled())
        await asyncio.to_thread(until, lambda: worker.count(EntryKind.SEGMENT) == 2)

    worker.play(kind, scenario, clock)
    assert worker.count(EntryKind.ALIVE) == 3
    assert {one[1:] for one in worker.granting.told()} == {(1, 0)}


@kinds
@pytest.mark.usefixtures("_soon")
def test_a_producer_that_waits_tells_so_every_five_seconds(kind: str) -> None:
    clock = StillClock()
    worker = Worker(MemoryBroker())
    worker.granting.grant()

    async def scenario(producer: AnyProducer) -> None:
        playing = asyncio.ensure_future(play(producer))
        await worker.until_alive(1)
        clock.advance(ALIVE_S)
        await worker.until_alive(2)
        await worker.grant(1)
        await playing

    worker.play(kind, scenario, clock)
    assert worker.count(EntryKind.ALIVE) == 2


@kinds
def test_that_it_lives_may_get_lost_and_nobody_is_told(kind: str) -> None:
    broker = FaultyBroker(MemoryBroker(), Doubtful(Fate.DOUBT_AND_DROP, EntryKind.ALIVE.name))
    worker = Worker(broker)
    worker.granting.grant()

    async def scenario(producer: AnyProducer) -> None:
        with pytest.raises(NotAdmitted):
            await play(producer, timeout_s=0.1)
        await producer.publish(example_id="ex", **sampled())
        await producer.flush()

    worker.play(kind, scenario, StillClock())
    assert worker.count(EntryKind.ALIVE) == 0


@kinds
def test_a_group_whose_dispatch_never_left_is_not_begun(kind: str) -> None:
    clock = StillClock()
    broker = NarrowBroker(MemoryBroker(), clock)
    worker = Worker(broker)
    worker.granting.grant()

    async def scenario(producer: AnyProducer) -> None:
        with pytest.raises(NotAdmitted):
            await play(producer, timeout_s=0)
        await worker.grant(1)
        async with producer.admit():  # From here on it knows.
            pass
        await leave_no_room(kind, producer, broker)
        with pytest.raises(BufferFull):
            await play(producer)
        broker.refusals, broker.poll_moves_s = 0, 0.0
        await producer.flush()
        await play(producer, timeout_s=0)
        with pytest.raises(NotAdmitted):
            await play(producer, timeout_s=0)

    worker.play(kind, scenario, clock)
    assert worker.count(EntryKind.DISPATCHED) == 1


def test_a_group_whose_dispatch_is_in_doubt_is_begun() -> None:
    doubt = Doubtful(Fate.DOUBT, EntryKind.DISPATCHED.name)
    worker = Worker(FaultyBroker(MemoryBroker(), doubt))
    worker.granting.grant()

    async def scenario(producer: AnyProducer) -> None:
        with pytest.raises(NotAdmitted):
            await play(producer, timeout_s=0)
        await worker.grant(1)
        with pytest.raises(DeliveryFailed):
            await play(producer)
        with pytest.raises(NotAdmitted) as told:
            await play(producer, timeout_s=0)
        assert told.value.open_groups == ()

    worker.play("async", scenario, StillClock())


def test_a_cancelled_wait_gives_its_place_back() -> None:
    worker = Worker(MemoryBroker())
    worker.granting.grant()
    clock = StillClock()

    async def scenario(producer: AnyProducer) -> None:
        first, second = (asyncio.ensure_future(play(producer)) for _ in range(2))

        def told(waiting: int) -> bool:
            said = worker.granting.told()
            return bool(said) and said[-1].waiting >= waiting

        await asyncio.to_thread(until, lambda: told(1))
        clock.advance(TELL_AGAIN_S)  # Once: shares run out by this clock.
        await asyncio.to_thread(until, lambda: told(2))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await worker.grant(1)
        await second

    worker.play("async", scenario, clock)


def test_a_wait_that_is_cancelled_as_it_is_admitted_gives_its_group_back() -> None:
    worker = Worker(MemoryBroker())
    worker.granting.grant()

    async def scenario(producer: AnyProducer) -> None:
        first = asyncio.ensure_future(play(producer))
        await asyncio.to_thread(worker.granting.until_told, 0, 1)
        worker.granting.grant(1)
        until(lambda: worker_thread() is None)  # It admitted the first, which had no turn since.
        first.cancel()
        await play(producer, timeout_s=0)

    worker.play("async", scenario, StillClock())


def worker_thread() -> threading.Thread | None:
    """The thread that serves those that wait, while there is one."""
    found = [one for one in threading.enumerate() if one.name == "rollstream-admission-waits"]
    assert len(found) <= 1, found
    return found[0] if found else None


@pytest.mark.usefixtures("_soon")
def test_thousands_of_coroutines_wait_by_one_thread_and_are_admitted_in_their_order() -> None:
    worker, clock, count = Worker(MemoryBroker()), StillClock(), 2_000
    worker.granting.grant(idle_s=1e9)
    admitted: list[int] = []

    async def scenario(producer: AnyProducer) -> None:
        async def take(number: int) -> None:
            async with producer.admit():
                admitted.append(number)

        taking = [asyncio.ensure_future(take(number)) for number in range(count)]

        def all_told() -> bool:
            told = worker.granting.told()
            return bool(told) and told[-1].waiting == count

        await asyncio.to_thread(until, all_told, lambda: clock.advance(1.0))
        assert worker_thread() is not None
        await worker.grant(3, idle_s=1e9)
        await asyncio.gather(*taking)

    worker.play("async", scenario, clock)
    assert admitted == list(range(count))
    assert len(worker.granting.told()) < count / 10, "it does not tell of each"


class DyingBroker(FaultyBroker):
    """Its writers, or its readers, raise what no broker does, as soon as they are ``dying``."""

    dying = ""

    def before_poll(self, timeout_s: float) -> float:
        if self.dying == "writer" and threading.current_thread() is not threading.main_thread():
            raise TypeError("what nobody thought of")
        return timeout_s

    def reader(self, *arguments: Any, **named: Any) -> Any:
        if self.dying == "reader":
            raise TypeError("what nobody thought of")
        return super().reader(*arguments, **named)


@contextmanager
def waiting_thread(producer: RolloutProducer, granting: Granting) -> Iterator[list[Exception]]:
    """A thread that dispatches, and waits when the block begins; it has ended when that ends."""
    told: list[Exception] = []

    def dispatch() -> None:
        try:
            with producer.dispatch(example_id="ex", group_size=1):
                raise AssertionError("nobody granted it")
        except Exception as error:  # noqa: BLE001, whatever it is
            told.append(error)

    thread = threading.Thread(target=dispatch)
    thread.start()
    granting.until_told(0, 1)
    yield told
    thread.join()


def test_a_thread_that_dies_ends_what_waits() -> None:
    broker = DyingBroker(MemoryBroker())
    worker = Worker(broker)
    worker.granting.grant()
    producer = RolloutProducer(broker=broker, environment="math", namespace=worker.layout.namespace)
    with waiting_thread(producer, worker.granting) as told:
        broker.dying = "writer"
        producer.publish(example_id="ex", **sampled())
    (error,) = told
    assert isinstance(error, ProducerDied)
    assert "what nobody thought of" in str(error)
    with pytest.raises(ProducerDied):
        producer.close()


def test_what_cannot_be_read_at_all_is_an_error_of_the_first_dispatch() -> None:
    broker = DyingBroker(MemoryBroker())
    worker = Worker(broker)
    broker.dying = "reader"
    with (
        RolloutProducer(
            broker=broker, environment="math", namespace=worker.layout.namespace
        ) as producer,
        pytest.raises(TypeError, match="what nobody thought of"),
        producer.dispatch(example_id="ex", group_size=1),
    ):
        pass


class BreakingLog(AdmissionLog):
    """Grants nothing, until it breaks."""

    breaks = False

    def __init__(self) -> None:
        """It follows nothing."""

    def policies(self) -> dict[str, Any]:
        return {}

    ended = policies

    def versions(self) -> dict[tuple[str, str], PolicyRef]:
        return {}

    def shares(self) -> dict[str, Granted]:
        return {"a": Granted(granted(), 0.0)}

    def wait(self, seen: int, timeout_s: float) -> int:
        if seen and self.breaks:
            raise TypeError("what nobody thought of")
        return seen + 1

    def outage(self) -> str:
        return ""

    def close(self) -> None:
        pass


def test_whatever_ends_the_thread_that_serves_those_that_wait_ends_their_waits() -> None:
    log, woken = BreakingLog(), threading.Event()
    allowance, standing = Allowance("math", "p", None), Standing("p")
    admission = AdmissionQueue("math", None, allowance, standing, log, StillClock())
    admission.was_read = True
    request = admission.ask(1, "g", woken.set)
    log.breaks = True
    assert woken.wait(TIMEOUT_S)
    with pytest.raises(ProducerDied, match="what nobody thought of"):
        admission.conclude(request, 1.0)


PROGRAM = """
import os, threading
from harness.granting import Granting
from harness.limited_worker import StillClock, Worker, play
from harness.brokers import until
from harness.producers import new_layout
from rollstream.producers import ForkedProducer, NotAdmitted, RolloutProducer
from rollstream.streams.memory import MemoryBroker

broker = MemoryBroker()
layout = new_layout(broker)
granting = Granting(broker, layout)
granting.grant()
producer = RolloutProducer(broker=broker, environment="math", namespace=layout.namespace)

def dispatch(timeout_s):
    with producer.dispatch(example_id="ex", group_size=1, timeout_s=timeout_s):
        print("admitted", flush=True)

waiting = threading.Thread(target=dispatch, args=(60.0,))
waiting.start()
granting.until_told(0, 1)
child = os.fork()
if not child:
    try:
        dispatch(60.0)
    except ForkedProducer:
        print("refused", flush=True)
    os._exit(0)
os.waitpid(child, 0)
granting.grant(1)
waiting.join()
producer.close()
"""


def test_a_forked_child_is_refused_and_its_parent_waits_on() -> None:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        timeout=TIMEOUT_S,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (process.returncode, process.stdout) == (0, "refused\nadmitted\n"), process.stderr


def test_what_waits_for_room_is_one_entry_of_its_block_however_often_it_is_tried() -> None:
    clock = StillClock()
    broker = NarrowBroker(MemoryBroker(), clock)
    worker = Worker(broker)
    worker.granting.grant()

    async def scenario(producer: AnyProducer) -> None:
        with pytest.raises(NotAdmitted):
            await play(producer, timeout_s=0)
        await worker.grant(5)
        broker.refusals = 1_000_000
        for _ in range(FILLING):
            await producer.publish(**wide_rollout())
        async with producer.admit(groups=5):
            publish = producer.publish(example_id="ex", **sampled())
            publishing = asyncio.create_task(asyncio.to_thread(asyncio.run, publish))
            await asyncio.to_thread(until, lambda: broker.refusals < 999_980)
            broker.refusals = 0
            await publishing
        async with producer.admit():
            clock.advance(ALIVE_S)
            await asyncio.to_thread(worker.granting.until_told, 1, 0)

    worker.play("sync", scenario, clock)
