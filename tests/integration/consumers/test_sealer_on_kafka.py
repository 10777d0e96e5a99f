"""Sealers on a real broker, with threads and real files."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer as KafkaProducer

from harness.brokers import until
from harness.history import problems_of
from harness.in_flight import in_flight_problems, standings
from harness.rollouts import encode_segment, make_dispatched
from harness.sealing import SealWorld
from rollstream.producers import ScoreProducer
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import SamplerView
from rollstream.schemas.ingest.entry import Producer
from rollstream.status import measure
from rollstream.store.scores import open_scores

pytestmark = pytest.mark.broker
TIMEOUT_S = 30.0


def publish_groups(world: SealWorld, first: int, count: int) -> list[str]:
    uids = []
    for number in range(first, first + count):
        for member in range(2):
            uids.append(f"g{number}-{member}")
            world.publish(uids[-1], example_id=f"ex-{number}", output_tokens=range(50))
    return uids


@pytest.mark.proves("F4", "A12")
def test_groups_are_sealed_and_a_successor_goes_on(kafka_bootstrap: str, tmp_path: Path) -> None:
    with SealWorld(kafka=kafka_bootstrap, root=tmp_path) as world:
        uids = publish_groups(world, 0, 20)
        world.publish("half", example_id="half")
        with world.sealer(workers=None) as sealer:
            until(lambda: sealer.stats().segments == 40, lambda: world.run(sealer, seconds=0.1))
        world.publish("other-half", example_id="half")
        world.publish(uids[0], example_id="ex-0")
        with world.sealer(workers=None) as successor:
            world.until(successor)
        assert ("half", "other-half") in world.groups()
        assert world.settled() == {"duplicate": 1}
        assert problems_of(world, [*uids, "half", "other-half"]) == []


def test_sealers_share_partitions_while_one_joins_and_one_leaves(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    with SealWorld(kafka=kafka_bootstrap, root=tmp_path, partitions=4) as world:
        uids = publish_groups(world, 0, 10)
        first = world.sealer(workers=None)
        world.until(first)
        second = world.sealer(workers=None)
        while not (second.stats().partitions and len(first.stats().partitions) == 2):
            uids += publish_groups(world, len(uids) // 2, 2)
            world.run(first, second, seconds=0.2)
        world.until(first, second)
        first.close()
        uids += publish_groups(world, len(uids) // 2, 10)
        world.until(second)
        second.close()
        assert problems_of(world, uids) == []


@pytest.mark.proves("A18")
def test_scores_are_in_files_once_a_sealer_adopted_and_once_it_closed(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    def rewards() -> list[float]:
        found: list[float] = open_scores(world.blobs, "math")["reward"].to_pylist()
        return sorted(found)

    def score(*rewards: float) -> None:
        with ScoreProducer(
            environment="math",
            scorer="tests",
            namespace=world.layout.namespace,
            broker=world.broker,
        ) as producer:
            for reward in rewards:
                producer.publish(rollout_uid=f"u{reward}", reward=reward)

    with SealWorld(kafka=kafka_bootstrap, root=tmp_path) as world:
        score(1.0, 2.0, 3.0)
        with world.sealer(workers=None) as sealer:
            until(lambda: rewards() == [1.0, 2.0, 3.0], lambda: world.run(sealer, seconds=0.1))
            score(4.0, 5.0)
        assert rewards() == [1.0, 2.0, 3.0, 4.0, 5.0]
        score(6.0)
        with world.sealer(workers=None) as successor:
            until(lambda: len(rewards()) == 6, lambda: world.run(successor, seconds=0.1))


def test_bytes_that_are_no_event_do_not_stop_the_rest(kafka_bootstrap: str, tmp_path: Path) -> None:
    with SealWorld(kafka=kafka_bootstrap, root=tmp_path, partitions=1) as world:
        world.put(b"no event", partition=0)
        uids = publish_groups(world, 0, 2)
        with world.sealer(workers=None) as sealer:
            world.until(sealer)
            assert sealer.stats().dead_letters == 1
        assert world.settled() == {"unreadable": 1}
        assert problems_of(world, uids) == []


@pytest.mark.proves("F4")
def test_markers_of_a_foreign_transactional_producer_stop_nobody(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    """Committed and aborted ones: what is aborted was written, and counts like the rest."""
    with SealWorld(
        kafka=kafka_bootstrap, root=tmp_path, partitions=1, target_group_size=3
    ) as world:
        topic = world.layout.rollouts("math")
        foreign = KafkaProducer({"bootstrap.servers": kafka_bootstrap, "transactional.id": topic})
        foreign.init_transactions(TIMEOUT_S)
        for number, end in enumerate((foreign.commit_transaction, foreign.abort_transaction)):
            foreign.begin_transaction()
            foreign.produce(topic, encode_segment(rollout_uid=f"u{number}"), partition=0)
            assert foreign.flush(TIMEOUT_S) == 0
            end(TIMEOUT_S)
        world.publish("ours")
        foreign.begin_transaction()
        foreign.produce(topic, encode_segment(rollout_uid="alone"), partition=0)
        assert foreign.flush(TIMEOUT_S) == 0
        foreign.commit_transaction(TIMEOUT_S)
        world.published += 3 + 3
        assert problems_of(world, drained=False) == [], "the log ends in a marker, and nobody read"
        with world.sealer(workers=None) as sealer:
            world.until(sealer, pending=1)
        assert world.groups() == [("ours", "u0", "u1")]
        assert world.settled() == {"no_record": 3}
        assert problems_of(world, ["ours", "u0", "u1"], drained=False) == []
        (figures,) = measure(
            world.broker, world.config, Deadline(TIMEOUT_S, world.clock)
        ).partitions
        assert (figures.backlog, figures.waiting, figures.lost) == (2, 1, 0)


@pytest.mark.proves("F14")
def test_progress_names_what_was_dispatched_and_is_not_back(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    with SealWorld(kafka=kafka_bootstrap, root=tmp_path, samplers=("trainer-a",)) as world:
        dispatched = [
            make_dispatched(group_uid=f"g-{example}", example_id=example, group_size=2)
            for example in ("back", "away")
        ]
        world.publish_entries(*dispatched)
        view = SamplerView("trainer-a", config=world.config, broker=world.broker, store=world.blobs)
        with view, world.sealer(workers=None) as sealer:
            until(
                lambda: {*view.progress().dispatched.get("math", ())} == {"back", "away"},
                lambda: world.run(sealer, seconds=0.1),
            )
            for uid in ("a", "b"):
                world.publish(uid, example_id="back", group_uid="g-back", group_size=2)
            until(
                lambda: view.progress().ready == {"math": 1},
                lambda: world.run(sealer, seconds=0.1),
            )
            assert {*view.progress().dispatched["math"]} == {"away"}


def test_what_a_producer_has_open_is_known_and_a_successor_goes_on(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    with SealWorld(kafka=kafka_bootstrap, root=tmp_path) as world:

        def opened() -> dict[str, int]:
            return {one.producer_id: one.open for one in standings(world)}

        for number, group in enumerate(("g", "h", "i")):
            entry = make_dispatched(group_uid=group, example_id=group, group_size=2)
            world.publish_entries(entry, producer=Producer("a", number + 1, 0))
        with world.sealer(workers=None) as sealer:
            until(lambda: opened() == {"a": 3}, lambda: world.run(sealer, seconds=0.1))
            for uid in ("g-0", "g-1"):
                world.publish(uid, example_id="g", group_uid="g", group_size=2)
            until(lambda: opened() == {"a": 2}, lambda: world.run(sealer, seconds=0.1))
        for uid in ("h-0", "h-1"):
            world.publish(uid, example_id="h", group_uid="h", group_size=2)
        with world.sealer(workers=None) as successor:
            until(lambda: opened() == {"a": 1}, lambda: world.run(successor, seconds=0.1))
        assert in_flight_problems(world) == []
