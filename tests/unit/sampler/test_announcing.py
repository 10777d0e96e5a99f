"""What env workers are told of policies: by every owner, in no decision's way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import PurePosixPath
from typing import Any

import pytest

from harness.admission import announced, granted, share, told, valid
from harness.brokers import until
from harness.faults import Append, Fate, FaultyBroker
from harness.groups import GroupSpec
from harness.sampler_worlds import LocalWorld, config_of, new_name
from rollstream.sampler.engine.outbox import announcing
from rollstream.sampler.engine.outbox.announcing import Announcer
from rollstream.schemas.codec import decode, encode
from rollstream.schemas.events import PolicyAnnounced, SharesGranted, SharesValid, share_key
from rollstream.store import MemoryBlobs
from rollstream.streams.broker import TopicPartition, TopicSpec
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.partitioning import partition_of
from rollstream.streams.topics.layout import SHARES_PARTITIONS, Layout
from rollstream.streams.topics.specs import specs_for

WAIT_S = 30.0
LAYOUT = Layout("test")


class World(LocalWorld):
    """A sampler over environments ``code`` and ``math``.

    Attributes:
        fate: of what is written for env workers.
        tries: how often that was tried.
    """

    def __init__(self, **sampler: Any) -> None:
        self.logs = MemoryLogs()
        self.fate = Fate.PASS
        self.tries = 0
        broker = FaultyBroker(MemoryBroker(self.logs), self._fate)
        config = config_of("file:///unused", new_name(), **sampler)
        super().__init__(broker, MemoryBlobs(), config)

    def topic(self, environment: str) -> str:
        return Layout(self.config.kafka.namespace).admission(environment)

    def told(self, environment: str = "math") -> list[PolicyAnnounced]:
        events = told(MemoryBroker(self.logs), self.topic(environment))
        return [event for event in events if isinstance(event, PolicyAnnounced)]

    def was_told(self, environment: str = "math") -> bool:
        return bool(self.told(environment))

    def newest(self, environment: str = "math") -> PolicyAnnounced:
        return max(self.told(environment), key=lambda event: event.offset)

    def train(self, steps: int) -> None:
        """Batches 0 to ``steps`` - 1, each with its new weights."""
        self.writer().flush(*(GroupSpec(example_id=f"ex-{n}") for n in range(steps)))
        sampler = self.open()
        sampler.resume(None)
        for step in range(steps):
            sampler.ack(sampler.next_batch(step, 1, timeout_s=WAIT_S))
            sampler.publish_policy(
                step + 1, policy_version=f"step-{step + 1}", weights=f"/w/{step + 1}"
            )

    def _fate(self, append: Append) -> Fate:
        if ".admission." not in append.topic:
            return Fate.PASS
        self.tries += 1
        return self.fate


@pytest.fixture
def world() -> Iterator[World]:
    made = World(max_policy_lag=4)
    yield made
    made.close()


@pytest.mark.proves("F22")
def test_workers_of_every_environment_are_told_what_was_published(world: World) -> None:
    sampler = world.open()
    sampler.resume(None)
    weights = PurePosixPath("/w/0")
    sampler.publish_policy(0, policy_version="first", weights=weights, metadata={"bits": [4, 8]})
    for environment in ("code", "math"):
        until(partial(world.was_told, environment))
        event = world.newest(environment)
        assert (event.sampler, event.lineage) == (world.name, "")
        assert (event.policy_epoch, event.step, event.policy_version) == (0, 0, "first")
        assert (event.weights, event.metadata) == ("/w/0", '{"bits":[4,8]}')
        assert (event.max_policy_lag, event.branch_epochs.tolist()) == (4, [])


@pytest.mark.proves("F22")
def test_how_many_groups_may_be_begun_is_told_before_the_first_policy(world: World) -> None:
    sampler = world.open()
    sampler.resume(None)
    sampler.publish_policy(0, policy_version="first")
    topic = Layout(world.config.kafka.namespace).shares("math")
    for partition in range(SHARES_PARTITIONS):
        events = told(MemoryBroker(world.logs), topic, partition)
        kinds = [type(event) for event in events]
        assert kinds.index(SharesValid) < kinds.index(PolicyAnnounced)


@pytest.mark.proves("F22")
def test_a_resume_is_told_with_its_branch_and_the_newest_policy_that_is_on_it(
    world: World,
) -> None:
    world.train(4)
    until(lambda: world.was_told() and world.newest().step == 4)
    world.open().resume(1, later="release")
    until(lambda: world.newest().step == 2)
    event = world.newest()
    assert (event.policy_epoch, event.policy_version, event.weights) == (0, "step-2", "/w/2")
    assert (event.branch_epochs.tolist(), event.branch_steps.tolist()) == ([1], [2])
    world.open().publish_policy(2, policy_version="again")
    until(lambda: world.newest().policy_epoch == 1)


def test_that_the_run_is_over_is_told_and_that_it_begins_again(world: World) -> None:
    world.train(1)
    sampler = world.open()
    sampler.finish()
    until(lambda: world.was_told() and world.newest().over)
    sampler.finish()
    assert (world.newest().step, world.newest().policy_version) == (1, "step-1")
    sampler.set_current_step(1)
    until(lambda: not world.newest().over)


def test_where_the_run_goes_back_before_all_policies_the_newest_is_told_to_be_left(
    world: World,
) -> None:
    world.train(2)
    world.open().resume(None, later="release")
    until(lambda: world.was_told() and world.newest().branch_steps.tolist() == [0])
    assert world.newest().step == 2


@pytest.mark.proves("F22")
def test_a_new_owner_tells_what_an_older_one_did_not(world: World) -> None:
    world.fate = Fate.DROP
    world.train(1)
    world.restart()
    assert world.told() == []
    world.fate = Fate.PASS
    world.open().publish_policy(1, policy_version="step-1", weights="/w/1")  # It was published.
    until(world.was_told)
    assert world.newest().weights == "/w/1"


@pytest.mark.parametrize("fate", [Fate.DROP, Fate.DOUBT_AND_DROP])
def test_a_broker_that_is_away_keeps_no_trainer_waiting_and_is_said_once(
    world: World, fate: Fate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(announcing, "ANSWER_S", 0.05)
    monkeypatch.setattr(announcing, "AGAIN_S", 0.01)
    world.fate = fate
    world.train(2)
    until(lambda: world.tries > 10)
    world.fate = Fate.PASS
    until(lambda: world.was_told() and world.newest().step == 2)
    said = [line for line in caplog.messages if f"{world.topic('math')}: " in line]
    assert len(said) == 1
    assert "cannot tell env workers" in said[0]


@pytest.mark.proves("F17")
def test_without_the_topic_all_else_works_and_the_log_says_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Older(MemoryLogs):
        def create(self, spec: TopicSpec) -> None:
            if ".admission." not in spec.name:
                super().create(spec)

    world = LocalWorld(
        MemoryBroker(Older()), MemoryBlobs(), config_of("file:///unused", new_name())
    )
    world.writer().flush(GroupSpec(example_id="ex"))
    sampler = world.open()
    assert sampler.resume(None) == 0
    assert sampler.publish_policy(0, policy_version="first").version == "first"
    assert sampler.next_batch(0, 1, timeout_s=WAIT_S).num_groups == 1
    until(lambda: len(_said(caplog)) == 4)  # One an environment and generation.
    sampler.publish_policy(1, policy_version="second")
    world.close()
    assert len(_said(caplog)) == 4
    assert all("rollstream topics create" in line for line in _said(caplog))


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "cannot tell env workers" in line]


class Announced:
    """What one announcer wrote of ``math``."""

    def __init__(self, is_owner: Callable[[], bool] = lambda: True) -> None:
        self.broker = MemoryBroker()
        self.topic = LAYOUT.admission("math")
        self.broker.admin().create(specs_for(LAYOUT, {"math": 1}), WAIT_S)
        self.announcer = Announcer(self.broker, LAYOUT, "a", is_owner)

    def told(self) -> list[Any]:
        return told(self.broker, self.topic)

    def shares(self, producer_id: str) -> list[bytes]:
        """What was written under the producer's key; a tombstone is empty."""
        partition = partition_of(producer_id.encode(), SHARES_PARTITIONS)
        where = TopicPartition(LAYOUT.shares("math"), partition)
        with closing(self.broker.reader({where: 0})) as reader:
            records = reader.poll(1_000, 0.0)
        return [one.value for one in records if one.key == share_key("a", producer_id)]


def test_a_record_is_made_anew_for_each_repetition_under_its_own_key() -> None:
    numbers = count()
    one = Announced()
    one.announcer.put("math", "shares", lambda: granted(next(numbers)), every_s=0.001)
    one.announcer.put("math", "policy", lambda: announced(5))
    until(lambda: len(one.told()) > 5)
    one.announcer.close()
    one.announcer.close()
    shares = [event.number for event in one.told() if isinstance(event, SharesGranted)]
    assert shares == list(range(len(shares)))
    policies = [event.step for event in one.told() if isinstance(event, PolicyAnnounced)]
    assert policies == [5]
    reader = one.broker.reader({TopicPartition(one.topic, 0): 0})
    assert {record.key for record in reader.poll(1000, 0.0)} == {b"shares/a", b"policy/a"}


@pytest.mark.proves("F5")
def test_each_partition_of_the_second_generation_has_what_holds_for_all() -> None:
    one = Announced()
    one.announcer.put("math", "policy", lambda: announced(5))
    one.announcer.put("math", "validity", partial(valid, 3))
    one.announcer.close()
    for partition in range(SHARES_PARTITIONS):
        written = told(one.broker, LAYOUT.shares("math"), partition)
        assert {type(event) for event in written} == {PolicyAnnounced, SharesValid}


@pytest.mark.proves("F5")
def test_a_share_stands_in_its_producers_partition_alone_until_the_producer_is_gone() -> None:
    one = Announced()
    one.announcer.put_shares("math", {"p": encode(share(1, 7)), "q": encode(share(2, 8))})
    until(lambda: len(one.shares("q")) == 1)
    one.announcer.put_shares("math", {"p": None})
    until(lambda: len(one.shares("p")) == 2)
    assert [decode(value) for value in one.shares("q")] == [share(2, 8)]
    assert one.shares("p")[1] == b""
    assert one.announcer.shares_written("math") == {"q": 8}
    one.announcer.close()


@pytest.mark.proves("F5")
def test_of_shares_that_cannot_be_written_the_newest_of_each_producer_is_written_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(announcing, "AGAIN_S", 0.01)
    one, fate = Announced(), Fate.DOUBT_AND_DROP
    broker = FaultyBroker(one.broker, lambda append: fate)
    announcer = Announcer(broker, LAYOUT, "a", lambda: True)
    for total in range(5):
        announcer.put_shares("math", {"p": encode(share(total, total))})
    fate = Fate.PASS
    until(lambda: bool(one.shares("p")))
    announcer.close()
    assert decode(one.shares("p")[-1]) == share(4, 4)


def test_who_lost_the_claim_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing, "AGAIN_S", 0.001)
    answers: list[bool] = []
    has_claim = True

    def is_owner() -> bool:
        answers.append(has_claim)
        return has_claim

    one = Announced(is_owner)
    one.announcer.put("math", "policy", lambda: announced(1), every_s=0.0)
    until(lambda: len(one.told()) > 3)
    has_claim = False
    until(lambda: answers[-2:] == [False, False])  # What it began before has ended.
    written, asked = len(one.told()), len(answers)
    until(lambda: len(answers) > asked + 20)
    assert len(one.told()) == written
    one.announcer.close()


def test_what_was_put_is_written_before_a_close_returns() -> None:
    one = Announced()
    one.announcer.put("math", "policy", lambda: announced(1))
    one.announcer.close()
    assert [event.step for event in one.told()] == [1]


def test_a_record_that_cannot_be_made_is_said_and_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing, "AGAIN_S", 0.001)
    tries = count()

    def make() -> PolicyAnnounced:
        if next(tries) < 3:
            raise ZeroDivisionError
        return announced(1)

    one = Announced()
    one.announcer.put("math", "policy", make)
    until(lambda: bool(one.told()))
    one.announcer.close()
    assert len(_said(caplog)) == 2  # One a generation.
