"""One deployment, one store: whoever has another root, or none, does not start."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.faults import Append, Fate, FaultyBroker
from harness.owned_logs import in_time, owner_of
from harness.seal_events import flushed
from harness.sealing import SealWorld
from rollstream.consumers import Created, InlineExecutor, Sealer, audit, create_deployment
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.entropy import SystemEntropy
from rollstream.sampler import Sampler
from rollstream.schemas.codec import decode
from rollstream.schemas.events import Claimed, RootRecorded
from rollstream.schemas.ids import PartitionAddress, RootId
from rollstream.store import (
    Blobs,
    CorruptFile,
    MemoryBlobs,
    create_or_compare,
    create_root_id,
    hand_root_over,
    project,
    read_root_id,
)
from rollstream.store.layout import ROOT_ID
from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import Fenced, RootMismatch
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.topics.create import create_topics
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.root import CREATOR, root_log
from rollstream.streams.topics.specs import specs_for

ADDRESS = PartitionAddress("math", 1, 0)


def config_of(
    root: str, *environments: str, namespace: str = "rollstream", generation: int = 1
) -> RollstreamConfig:
    names = environments or ("math",)
    kafka = {"bootstrap": "memory:0", "namespace": namespace, "generation": generation}
    return RollstreamConfig.model_validate(
        {
            "kafka": kafka,
            "store": {"root": root},
            "environments": {name: {"partitions": 2} for name in names},
            "samplers": {"trainer-a": {"environments": list(names)}},
        }
    )


class Machines:
    """Machines with the same Kafka, each with a store of its own."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.logs = MemoryLogs(self.clock)

    def shared(self, store: Blobs) -> dict[str, Any]:
        return {"broker": MemoryBroker(self.logs), "store": store, "clock": self.clock}

    def create(self, store: Blobs, config: RollstreamConfig) -> Created:
        return create_deployment(config, **self.shared(store))

    def create_topics(self, config: RollstreamConfig) -> None:
        """As a version did that knew no root's id."""
        specs = specs_for(Layout(), dict.fromkeys(config.environments, 2), config.samplers)
        create_topics(MemoryBroker(self.logs).admin(), specs, 10)

    def start(self, what: str, store: Blobs, config: RollstreamConfig) -> None:
        match what:
            case "sealer":
                Sealer(config, workers=InlineExecutor(), **self.shared(store)).close()
            case "sampler":
                Sampler("trainer-a", config=config, **self.shared(store)).close()
            case "audit":
                assert audit(config, **self.shared(store)).holds

    def records(self, environment: str = "math") -> list[bytes]:
        where = root_log(Layout(), environment)
        return [record.value for record in self.logs.read(where, 0, 1000)]


RIGHT, WRONG = config_of("file:///data/run-17"), config_of("file:///data/run-71")
PROCESSES = pytest.mark.parametrize("what", ["sealer", "sampler", "audit"])


@PROCESSES
@pytest.mark.proves("F20")
def test_who_has_an_empty_folder_does_not_start_and_makes_no_id(what: str) -> None:
    machines, store, empty = Machines(), MemoryBlobs(), MemoryBlobs()
    root_id = machines.create(store, RIGHT).root_id
    before = machines.records()
    with pytest.raises(RootMismatch) as raised:
        machines.start(what, empty, WRONG)
    told = str(raised.value)
    assert told.startswith(f"rollstream.groups.math.1[0] names root {root_id} (offset 2, recorded")
    assert "for file:///data/run-17), but file:///data/run-71 has none: correct store.root" in told
    assert "mount" in told
    assert "`rollstream topics create`" in told
    assert list(empty.list("")) == []
    assert machines.records() == before
    machines.start(what, store, RIGHT)


@PROCESSES
def test_who_has_another_deployments_root_does_not_start(what: str) -> None:
    machines, store, other = Machines(), MemoryBlobs(), MemoryBlobs()
    root_id = machines.create(store, RIGHT).root_id
    other_id = Machines().create(other, WRONG).root_id
    with pytest.raises(RootMismatch) as raised:
        machines.start(what, other, WRONG)
    assert f"names root {root_id} (" in str(raised.value)
    assert f"file:///data/run-71 has the id {other_id}: " in str(raised.value)


@PROCESSES
def test_a_fresh_deployment_is_told_apart_from_a_root_that_is_lost(what: str) -> None:
    fresh = Machines()
    fresh.create_topics(RIGHT)
    with pytest.raises(RootMismatch) as raised:
        fresh.start(what, MemoryBlobs(), RIGHT)
    assert str(raised.value) == (
        "rollstream.groups.math.1[0] names no root of a store yet; file:///data/run-17 has none: "
        "run `rollstream topics create`"
    )


def test_claims_and_flushes_name_the_root() -> None:
    world = SealWorld(partitions=1)
    for uid in "ab":
        world.publish(uid)
    sealer = world.sealer()
    world.until(sealer)
    sealer.close()
    root_id = read_root_id(world.blobs).root_id
    assert root_id
    events = [confirmed.event for confirmed in world.confirmed_events()]
    claims = [event for event in events if isinstance(event, Claimed) and event.owner != CREATOR]
    assert [claim.root_id for claim in claims] == [root_id]
    assert [flushed.root_id for flushed in world.flushes()] == [root_id]


def test_repeating_it_changes_nothing() -> None:
    machines, store = Machines(), MemoryBlobs()
    first = machines.create(store, RIGHT)
    assert first.recorded == ("math",)
    assert first.root_id == read_root_id(store).root_id
    before = machines.records()
    again = machines.create(store, RIGHT)
    assert (again.topics, again.root_id, again.recorded) == ((), first.root_id, ())
    assert machines.records() == before


def test_it_makes_no_second_root() -> None:
    machines, store, empty = Machines(), MemoryBlobs(), MemoryBlobs()
    machines.create(store, RIGHT)
    before = machines.records()
    with pytest.raises(RootMismatch, match=r"run-71 has none: correct store\.root"):
        machines.create(empty, WRONG)
    assert list(empty.list("")) == []
    assert machines.records() == before


def test_a_new_environment_gets_the_id_that_is_there() -> None:
    machines, store = Machines(), MemoryBlobs()
    root_id = machines.create(store, RIGHT).root_id
    larger = config_of("file:///data/run-17", "math", "code")
    machines.create_topics(larger)
    with pytest.raises(RootMismatch, match=r"groups\.code\.1\[0\] names no root of a store yet"):
        machines.start("sealer", store, larger)
    with pytest.raises(RootMismatch, match=r"groups\.math\.1\[0\] names root"):
        machines.create(MemoryBlobs(), config_of("file:///data/run-71", "math", "code"))
    made = machines.create(store, larger)
    assert (made.root_id, made.recorded) == (root_id, ("code",))
    machines.start("sealer", store, larger)


def test_a_root_that_had_its_id_when_the_process_was_killed_keeps_it() -> None:
    machines, store = Machines(), MemoryBlobs()
    machines.create_topics(RIGHT)
    root_id = create_root_id(store, SystemEntropy(), "rollstream", 1).root_id
    assert machines.create(store, RIGHT).root_id == root_id
    machines.start("sealer", store, RIGHT)


def settle(machines: Machines, store: Blobs | None, log: OwnedLog[SealFold]) -> None:
    """One entry of math[0], by a sealer of a version that named no root."""
    at = log.fold.watermark
    event = flushed(log.epoch, log.nonce, [at], at + 1)
    offset = log.wait_confirmed(log.append(event), in_time())
    if store is not None:
        project(store, ADDRESS, offset, event)


@pytest.mark.proves("F20")
def test_a_deployment_that_runs_gets_its_id_beside_its_sealers() -> None:
    machines, store = Machines(), MemoryBlobs()
    machines.create_topics(RIGHT)
    older = owner_of(MemoryBroker(machines.logs), root_log(Layout(), "math"), "older")
    older.claim(in_time())
    settle(machines, store, older)
    taken_back: list[SealFold] = []

    def take_back(append: Append) -> Fate:
        """The sealer claims again before the event arrives, the first time."""
        if isinstance(decode(append.value), RootRecorded) and not taken_back:
            with pytest.raises(Fenced):
                settle(machines, store, older)
            taken_back.append(older.claim(in_time()))
        return Fate.PASS

    broker = FaultyBroker(MemoryBroker(machines.logs), take_back, clock=machines.clock)
    made = create_deployment(RIGHT, **{**machines.shared(store), "broker": broker})
    assert (len(taken_back), made.recorded) == (1, ("math",))
    with pytest.raises(Fenced):
        settle(machines, store, older)
    older.claim(in_time())
    settle(machines, store, older)
    assert older.fold.root_id == made.root_id == read_root_id(store).root_id
    machines.start("sealer", store, RIGHT)


def test_of_two_roots_that_are_named_at_a_time_one_is_the_deployments() -> None:
    machines, right, wrong = Machines(), MemoryBlobs(), MemoryBlobs()
    machines.create_topics(RIGHT)
    other: list[str] = []

    def be_slower(append: Append) -> Fate:
        """The other machine is done between this one's look and its claim."""
        if not other:
            other.append(machines.create(right, RIGHT).root_id)
        return Fate.PASS

    broker = FaultyBroker(MemoryBroker(machines.logs), be_slower, clock=machines.clock)
    with pytest.raises(RootMismatch, match="names root"):
        create_deployment(WRONG, **{**machines.shared(wrong), "broker": broker})
    assert list(wrong.list("")) == []
    assert machines.create(right, RIGHT).root_id == other[0]


@pytest.mark.parametrize("partition", [0, 1])
def test_a_root_with_files_that_the_log_does_not_know_is_refused(partition: int) -> None:
    machines, store = Machines(), MemoryBlobs()
    project(store, ADDRESS._replace(partition=partition), 7, flushed(3, "nonce", [0], 1))
    for _ in range(2):
        with pytest.raises(RootMismatch, match=rf"manifests of math\[{partition}\] .* nothing"):
            machines.create(store, RIGHT)
        assert read_root_id(store).root_id == ""
        topics = [Layout().groups("math"), Layout().sampler("trainer-a")]
        assert not MemoryBroker(machines.logs).admin().describe(topics, 10)


@PROCESSES
def test_who_has_the_root_of_logs_that_are_gone_is_not_sent_to_make_topics(what: str) -> None:
    machines, store = Machines(), MemoryBlobs()
    project(store, ADDRESS, 7, flushed(3, "nonce", [0], 1))
    create_root_id(store, SystemEntropy(), "rollstream", 1)
    machines.create_topics(RIGHT)
    with pytest.raises(RootMismatch) as raised:
        machines.start(what, store, RIGHT)
    assert "the log was lost, or this is another deployment's root" in str(raised.value)
    assert "Kafka's disk is lost" in str(raised.value)
    assert "topics create" not in str(raised.value)


def test_an_older_deployments_root_is_not_made_of_an_empty_folder() -> None:
    machines = Machines()
    machines.create_topics(RIGHT)
    older = owner_of(MemoryBroker(machines.logs), root_log(Layout(), "math"), "older")
    older.claim(in_time())
    settle(machines, None, older)
    with pytest.raises(RootMismatch, match=r"settles 1 entries, but file:///data/run-71 holds no"):
        machines.create(MemoryBlobs(), WRONG)


def test_a_damaged_id_is_an_error_of_its_own() -> None:
    machines, store = Machines(), MemoryBlobs()
    machines.create(store, RIGHT)
    store.replace(ROOT_ID, b"torn")
    with pytest.raises(CorruptFile, match=r"root_id\.json holds no root's id"):
        machines.start("sealer", store, RIGHT)


ROOT = "file:///data/run-17"
OTHERS = pytest.mark.parametrize(
    "other",
    [config_of(ROOT, namespace="second"), config_of(ROOT, generation=2)],
    ids=["namespace", "generation"],
)


def topics_of(machines: Machines, config: RollstreamConfig) -> list[str]:
    prefix = f"{config.kafka.namespace}."
    names = MemoryBroker(machines.logs).admin().topics(prefix, 10)
    return [name for name in names if name.endswith(f".{config.kafka.generation}")]


@OTHERS
@pytest.mark.parametrize("older", [False, True], ids=["", "older"])
def test_a_root_that_another_namespace_or_generation_recorded_is_refused(
    other: RollstreamConfig, older: bool
) -> None:
    machines, store = Machines(), MemoryBlobs()
    made = machines.create(store, RIGHT)
    if older:
        forget_owner(store)
        assert machines.create(store, RIGHT).root_id == made.root_id
    before = {blob.path: store.read(blob.path) for blob in store.list("")}
    with pytest.raises(RootMismatch) as raised:
        machines.create(store, other)
    told = str(raised.value)
    assert "file:///data/run-17 belongs to namespace rollstream, generation 1" in told
    kafka = other.kafka
    assert f"not to namespace {kafka.namespace}, generation {kafka.generation}" in told
    assert "a root of its own" in told
    assert topics_of(machines, other) == []
    assert {blob.path: store.read(blob.path) for blob in store.list("")} == before
    machines.start("sealer", store, RIGHT)


def forget_owner(store: Blobs) -> None:
    """As a version left the root that recorded its id alone."""
    found = json.loads(store.read(ROOT_ID))
    store.replace(ROOT_ID, json.dumps({"root_id": found["root_id"]}).encode())


def test_the_id_of_an_older_version_that_no_log_of_this_deployment_names_is_refused() -> None:
    machines, store = Machines(), MemoryBlobs()
    machines.create(store, RIGHT)
    forget_owner(store)
    second = config_of(ROOT, namespace="second")
    with pytest.raises(RootMismatch, match="No seal log of namespace second, generation 1 names"):
        machines.create(store, second)
    assert topics_of(machines, second) == []
    machines.start("sealer", store, RIGHT)


def test_two_namespaces_that_begin_on_one_root_at_a_time_do_not_share_it() -> None:
    machines, store = Machines(), MemoryBlobs()
    second = config_of(ROOT, namespace="second")
    faster: list[str] = []

    def be_slower(append: Append) -> Fate:
        if not faster:
            faster.append(machines.create(store, second).root_id)
        return Fate.PASS

    broker = FaultyBroker(MemoryBroker(machines.logs), be_slower, clock=machines.clock)
    with pytest.raises(RootMismatch, match="belongs to namespace second, generation 1"):
        create_deployment(RIGHT, **{**machines.shared(store), "broker": broker})
    machines.start("sealer", store, second)
    with pytest.raises(RootMismatch):
        machines.start("sealer", store, RIGHT)


@PROCESSES
def test_who_shares_a_root_since_before_it_named_its_deployment_does_not_start(what: str) -> None:
    machines, store = Machines(), MemoryBlobs()
    root_id = machines.create(store, RIGHT).root_id
    second = config_of(ROOT, namespace="second")
    other = MemoryBlobs()
    other.create(ROOT_ID, json.dumps({"root_id": root_id}).encode())
    with pytest.raises(RootMismatch, match="No seal log"):
        machines.create(other, second)
    hand_root_over(other, RootId(root_id, "second", 1))
    machines.create(other, second)
    with pytest.raises(RootMismatch, match="belongs to namespace rollstream, generation 1, not to"):
        machines.start(what, store, second)
    machines.start(what, store, RIGHT)


def test_a_generation_whose_logs_are_lost_leaves_its_root_to_the_next_one() -> None:
    machines, store = Machines(), MemoryBlobs()
    root_id = machines.create(store, RIGHT).root_id
    next_one = config_of(ROOT, generation=2)
    for partition in range(2):
        machines.logs.cut_back(TopicPartition(Layout().groups("math"), partition), 0)
    made = machines.create(store, next_one)
    assert (made.root_id, made.recorded) == (root_id, ("math",))
    machines.start("sealer", store, next_one)
    with pytest.raises(RootMismatch, match="belongs to namespace rollstream, generation 2, not to"):
        machines.create(store, RIGHT)
    assert machines.create(store, next_one).topics == ()


def test_a_file_with_other_bytes_is_left_to_whoever_owns_it() -> None:
    store = MemoryBlobs()
    store.create("a/b", b"of another run")
    with pytest.raises(CorruptFile) as raised:
        create_or_compare(store, "a/b", b"of this run")
    told = str(raised.value)
    assert "a/b exists and holds other bytes than are to be written" in told
    assert "move" not in told
    assert "remove" not in told
    assert "Leave the file where it is" in told
