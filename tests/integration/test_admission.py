"""Env workers, a sealer and a trainer: who generates faster than is trained waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from harness.admission import told
from harness.brokers import TIMEOUT_S, until
from rollstream.consumers import InlineExecutor, Sealer, create_deployment
from rollstream.producers import NotAdmitted, ProducerClosed, RolloutProducer
from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Sampler
from rollstream.schemas.events import SharesGranted
from rollstream.store import open_store
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.topics.layout import Layout

GROUPS = 4  # A step.
LAG = 2  # Steps that generation may be ahead: the default.
STEPS = 4


@contextmanager
def running(body: Callable[[threading.Event], None], count: int = 1) -> Iterator[None]:
    """Threads that do it until the block ends."""
    stopping = threading.Event()
    threads = [threading.Thread(target=body, args=(stopping,)) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


class FastClock(SystemClock):
    """The machine's clock, several times as fast."""

    FASTER = 3  # What says that it lives each 2 s is dead after 8 s of it.

    def now_us(self) -> int:
        return super().now_us() * self.FASTER

    def monotonic_s(self) -> float:
        return super().monotonic_s() * self.FASTER

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return super().wait(event, timeout_s / self.FASTER)


class Deployment:
    """A broker and a store, with a sampler that has published its first policy."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.clock = clock
        self.broker = MemoryBroker(clock=clock)
        self.store = open_store(folder.as_uri())
        self.config = RollstreamConfig.model_validate(
            {
                "kafka": {"bootstrap": "in-memory:0"},
                "store": {"root": folder.as_uri()},
                "environments": {"math": {"partitions": 2, "flush_interval_s": 0.0}},
                "samplers": {"a": {"environments": ["math"], "groups_per_step": GROUPS}},
            }
        )
        create_deployment(self.config, broker=self.broker, store=self.store, clock=clock)

    def producer(self) -> RolloutProducer:
        return RolloutProducer(environment="math", broker=self.broker, clock=self.clock)

    @contextmanager
    def training(self) -> Iterator[Sampler]:
        """A sampler, and a sealer on a thread."""
        with (
            Sampler(
                "a", config=self.config, broker=self.broker, store=self.store, clock=self.clock
            ) as sampler,
            running(self._seal),
        ):
            step = sampler.resume(None)
            sampler.publish_policy(step, policy_version="step-0")
            until(self._has_granted)  # A worker that begins before waits a second for it.
            yield sampler

    def _has_granted(self) -> bool:
        events = told(self.broker, Layout().admission("math"))
        return any(isinstance(event, SharesGranted) for event in events)

    def _seal(self, stopping: threading.Event) -> None:
        with Sealer(
            self.config,
            broker=self.broker,
            store=self.store,
            clock=self.clock,
            workers=InlineExecutor(),
        ) as sealer:
            while not stopping.is_set():
                sealer.step(Deadline(0.1, self.clock))


@pytest.mark.proves("F5")
def test_workers_that_are_faster_begin_no_more_than_the_trainer_can_use(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, SystemClock())
    begun = [0]
    lock = threading.Lock()

    def have_begun(groups: int) -> bool:
        return begun[0] >= groups

    def work(stopping: threading.Event) -> None:
        with suppress(ProducerClosed):
            while not stopping.is_set():
                with producer.dispatch(example_id="ex", group_size=1) as group:
                    policy = producer.policy(timeout_s=TIMEOUT_S)  # The newest, after the wait.
                    with lock:
                        begun[0] += 1
                    group.publish(policy=policy, output_tokens=[1], logprobs=[-0.1], reward=1.0)

    with deployment.training() as sampler, deployment.producer() as producer:
        producer.policy(timeout_s=TIMEOUT_S)  # Workers have nothing to do before.
        with running(work, 3):
            try:
                for step in range(STEPS):
                    allowed = GROUPS * (step + 1 + LAG)
                    until(partial(have_begun, allowed))
                    batch = sampler.next_batch(step, GROUPS, timeout_s=TIMEOUT_S)
                    assert begun[0] == allowed
                    # One more where a group began between an ack and the next policy.
                    assert batch.metrics()["lag/max"] <= LAG + 1
                    sampler.ack(batch)
                    sampler.publish_policy(step + 1, policy_version=f"step-{step + 1}")
            finally:
                producer.close()  # Ends the workers' waits.


@pytest.mark.proves("F5")
def test_a_worker_that_dies_with_all_that_may_be_begun_gives_it_back(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, FastClock())
    capacity = GROUPS * (1 + LAG)
    with deployment.training(), deployment.producer() as other:
        dying = deployment.producer()
        dying.policy(timeout_s=TIMEOUT_S)
        for number in range(capacity):
            # Their blocks never end.
            dying.dispatch(example_id=f"ex-{number}", group_size=1).__enter__()
        with (
            pytest.raises(NotAdmitted) as refused,
            dying.dispatch(example_id="ex", group_size=1, timeout_s=0),
        ):
            pass
        assert len(refused.value.open_groups) == capacity
        dying.close()  # From here on it says nothing, as one that was killed.
        for number in range(capacity):
            other.dispatch(example_id=f"ex-{number}", group_size=1).__enter__()
