"""How many groups env workers may begin, as they read it in ``admission.<env>``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import pytest

from harness.brokers import until
from harness.groups import GroupSpec, GroupWriter
from harness.sampler_worlds import WITHOUT_RAY, SamplerWorld, memory_world
from rollstream.consumers import create_deployment
from rollstream.producers import NotAdmitted, RolloutProducer, RunOver
from rollstream.producers.admission.log import AdmissionLog
from rollstream.producers.admission.shares import Allowance
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import NotEnoughGroups, Sampler, SamplerApi
from rollstream.schemas.events import SharesGranted
from rollstream.streams.topics.layout import Layout

TIMEOUT_S = 30.0


class Worker:
    """What a worker of math knows."""

    def __init__(self, world: SamplerWorld, producer_id: str = "a") -> None:
        topic = Layout.of(world.config.kafka).admission("math")
        self._log = AdmissionLog(world.broker(), topic, producer_id, SystemClock())
        self._name = world.name
        self.shares, self.wait, self.close = self._log.shares, self._log.wait, self._log.close

    def until(self, wanted: Callable[[SharesGranted], bool]) -> SharesGranted:
        """The first shares that it reads of which that is true."""
        deadline, seen = Deadline(TIMEOUT_S), 0
        while True:
            seen = self._log.wait(seen, deadline.left_s())
            newest = self._log.shares().get(self._name)
            if newest is not None and wanted(newest.shares):
                return newest.shares
            assert not deadline.passed(), newest

    def until_total(self, total: int) -> SharesGranted:
        return self.until(lambda one: one.totals.tolist() == [total])


@pytest.fixture
def worker(world: SamplerWorld) -> Iterator[Worker]:
    with closing(Worker(world)) as made:
        yield made


@contextmanager
def running(world: SamplerWorld, groups_per_step: int) -> Iterator[tuple[SamplerApi, GroupWriter]]:
    """A sampler of math whose trainer published its first policy, and who seals groups."""
    world.configure(groups_per_step=groups_per_step, environments=("math",))
    with world.open() as sampler:
        sampler.resume(None)
        sampler.publish_policy(0, policy_version="v0")
        yield sampler, world.writer()


@WITHOUT_RAY
@pytest.mark.proves("F5")
def test_capacity_comes_back_with_each_batch_while_the_trainer_is_silent(
    world: SamplerWorld, worker: Worker
) -> None:
    with running(world, groups_per_step=4) as (sampler, sealer):
        sealer.report(a=(0, 0, 9))
        first = worker.until_total(12)
        assert (first.valid_s > 0, first.idle_s) == (True, 600.0)
        sealer.report(a=(12, 6, 9))  # All were begun, half of them sealed: no call reads it.
        sealer.flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(6)))
        batch = sampler.next_batch(0, 4)
        sampler.ack(batch)
        sealer.report(a=(12, 6, 7))
        worker.until_total(16)


@WITHOUT_RAY
@pytest.mark.proves("F5")
def test_a_successor_goes_on_with_what_is_open_and_one_that_leaves_says_so(
    world: SamplerWorld, worker: Worker
) -> None:
    with running(world, groups_per_step=2) as (_, sealer), closing(Worker(world, "b")) as other:

        def until_all(newer_than: int) -> SharesGranted:
            one, another = (
                of.until(lambda one: one.epoch > newer_than and len(one.totals) > 0)
                for of in (worker, other)
            )
            assert int(one.totals[0] + another.totals[0]) == 2 + 7 + 3
            return one

        sealer.report(a=(2, 1, 0), b=(7, 2, 0))
        before = until_all(-1)
        with world.successor() as successor:
            successor.resume(None)
            sealer.report(a=(2, 1, 0), b=(7, 2, 0))  # However long that took, they are there.
            after = until_all(before.epoch)
        left = worker.until(lambda one: one.valid_s == 0)
        assert (left.epoch, left.idle_groups) == (after.epoch, 3)


@pytest.mark.proves("F5")
def test_a_trainer_that_waits_goes_on_while_another_one_of_its_lineage_is_quiet() -> None:
    with ExitStack() as stack:
        world = stack.enter_context(closing(memory_world()))
        world.configure(groups_per_step=2, environments=("math",))
        samplers = {"quiet": world.config.samplers[world.name], **world.config.samplers}
        config = world.config.model_copy(update={"samplers": samplers})
        create_deployment(config, broker=world.broker(), store=world.store)
        quiet = Sampler("quiet", config=config, broker=world.broker(), store=world.store)
        trainers = [stack.enter_context(one) for one in (quiet, world.open())]
        worker = stack.enter_context(closing(Worker(world, "p")))
        calls = stack.enter_context(ThreadPoolExecutor(1))
        sealer, allowance = world.writer(), Allowance("math", "p", None)
        begun = seen = 0

        def make(groups: int) -> int:
            sealer.report(p=(begun + groups, 0, 4))
            sealer.flush(*(GroupSpec(example_id=f"ex-{begun + i}") for i in range(groups)))
            return begun + groups

        begun = make(2)
        for trainer in trainers:
            trainer.resume(None)
            trainer.publish_policy(0, policy_version="v0")
            trainer.ack(trainer.next_batch(0, 2))

        def grant() -> list[str]:
            return [name for name, one in worker.shares().items() if "p" in one.shares.producer_ids]

        until(lambda: {*grant()} == {*samplers}, lambda: worker.wait(0, 0.05))
        for step in range(1, 9):
            call = calls.submit(trainers[1].next_batch, step, 2, timeout_s=TIMEOUT_S)
            while not call.done():
                now_s = SystemClock().monotonic_s()
                limit = allowance.limit(worker.shares(), begun, now_s).groups
                assert limit is not None
                if limit > begun:
                    begun = make(limit - begun)
                seen = worker.wait(seen, 0.05)
            trainers[1].ack(call.result())
        left_behind = worker.shares()["quiet"].shares
        assert (left_behind.valid_s > 0, int(left_behind.totals[0]) < begun) == (True, True)


@pytest.mark.proves("F5")
def test_a_sampler_that_is_opened_without_admission_frees_those_it_limited() -> None:
    with closing(memory_world()) as world, closing(Worker(world)) as worker:
        with running(world, groups_per_step=4) as (_, sealer):
            sealer.report(a=(0, 0, 9))
            worker.until_total(12)
        with producer_of(world) as producer:
            with pytest.raises(NotAdmitted):
                dispatch(producer, timeout_s=0.0)
            world.restart()
            world.configure(environments=("math",), admission=False)
            with world.open() as sampler:
                sampler.resume(None)
                dispatch(producer, timeout_s=TIMEOUT_S)
            dispatch(producer, timeout_s=0.0)


@WITHOUT_RAY
@pytest.mark.proves("F5")
def test_a_run_that_is_finished_frees_those_it_limited(world: SamplerWorld) -> None:
    with closing(Worker(world)) as worker, running(world, 4) as (sampler, sealer):
        sealer.report(a=(0, 0, 9))
        worker.until_total(12)
        with producer_of(world) as producer:
            with pytest.raises(NotAdmitted):
                dispatch(producer, timeout_s=0.0)
            policy = producer.policy()
            sampler.finish()
            with suppress(RunOver):  # It waited.
                dispatch(producer, timeout_s=TIMEOUT_S)
            dispatch(producer, timeout_s=0.0)
            with pytest.raises(RunOver, match=world.name):
                producer.policy(newer_than=policy, timeout_s=TIMEOUT_S)


@pytest.mark.proves("F5")
def test_a_batch_that_the_ratio_holds_back_opens_what_it_waits_for_whoever_is_restarted(
    world: SamplerWorld, worker: Worker
) -> None:
    ratio: dict[str, Any] = {"samples_per_insert": 2, "error_buffer": (0, 16)}
    ratio["target_policy_lag"] = 0
    world.configure(groups_per_step=4, environments=("math",), max_samples=4, **ratio)
    sealer = world.writer()
    sealer.report(a=(4, 0, 9))
    sealer.flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(4)))
    sampler = world.open()
    sampler.resume(None)
    sampler.publish_policy(0, policy_version="v0")
    for step in (0, 1):
        sampler.ack(sampler.next_batch(step, 4, timeout_s=TIMEOUT_S))
    with pytest.raises(NotEnoughGroups, match=r"4 groups were ready .* used 8 times"):
        sampler.next_batch(2, 4, timeout_s=0.05)
    with ThreadPoolExecutor(1) as calls:
        call = calls.submit(sampler.next_batch, 2, 4, timeout_s=TIMEOUT_S)
        opened = worker.until(lambda one: one.needed.tolist() == [6])
        assert opened.totals.tolist() == [6]
        sealer.report(a=(6, 0, 9))
        sealer.flush(GroupSpec(example_id="ex-4"), GroupSpec(example_id="ex-5"))
        served = call.result()
    sampler.ack(served)
    world.restart()
    sampler = world.open()
    again = sampler.next_batch(2, 4, timeout_s=TIMEOUT_S)
    assert again.sampled.group_ids == served.sampled.group_ids
    with pytest.raises(NotEnoughGroups, match=r"6 groups were ready .* used 12 times"):
        sampler.next_batch(3, 4, timeout_s=0.05)
    step = sampler.resume(2)
    assert sampler.next_batch(step, 4, timeout_s=TIMEOUT_S).num_groups == 4


def producer_of(world: SamplerWorld) -> RolloutProducer:
    namespace = world.config.kafka.namespace
    return RolloutProducer(broker=world.broker(), environment="math", namespace=namespace)


def dispatch(producer: RolloutProducer, timeout_s: float) -> None:
    with producer.dispatch(example_id="ex", group_size=1, timeout_s=timeout_s):
        pass
