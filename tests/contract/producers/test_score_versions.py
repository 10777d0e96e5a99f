"""Scores that expect a version: of several who score anew, one succeeds, for every reader alike."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from harness.brokers import TIMEOUT_S, World
from harness.halting import halted
from harness.kafka import KafkaFactory
from harness.newer_records import NEWER_PREFIX
from harness.producers import PARTITIONS, new_layout
from rollstream.producers import (
    InvalidRollout,
    ProducerError,
    Score,
    ScoreProducer,
    VersionConflict,
)
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Scored
from rollstream.schemas.ids import step_rollout_uid
from rollstream.schemas.scoring import NewestVersions
from rollstream.streams.broker import TopicPartition
from rollstream.streams.errors import BrokerUnavailable, NewerEvent
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.owned.follow import Follower
from rollstream.streams.partitioning import partition_of
from rollstream.streams.topics.layout import Layout

GROUP, OTHER = "0f" * 16, "1f" * 16
SHORT_S = 5.0  # A broker that is there answers by then.
pytestmark = pytest.mark.proves("A18")
Make = Callable[[], ScoreProducer]


@pytest.fixture
def layout(world: World) -> Layout:
    return new_layout(world.broker())


@pytest.fixture
def make(world: World, layout: Layout) -> Iterator[Make]:
    made: list[ScoreProducer] = []

    def new() -> ScoreProducer:
        made.append(
            ScoreProducer(
                environment="math",
                scorer="tests",
                namespace=layout.namespace,
                broker=world.broker(),
            )
        )
        return made[-1]

    yield new
    for one in made:
        one.close()


def newest(world: World, layout: Layout, group: str, uid: str) -> tuple[float, int]:
    """Reward and version of a rollout, as who reads the log from its beginning counts them."""
    topic = layout.scores("math")
    logs = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    versions, last = NewestVersions(), None
    follower = Follower(world.broker(), dict.fromkeys(logs, 0), logs)
    for one in follower.read_to_end(Deadline(TIMEOUT_S)):
        assert isinstance(one.event, Scored)
        for score in one.event.scores:
            versions.add(one.event, score)
        if one.event.group_id == group:
            last = versions.of(group, one.event.scorer, uid)
    follower.close()
    assert last is not None
    return last.reward, last.version


@pytest.mark.proves("F24")
def test_only_where_a_newer_version_wrote_it_is_not_known_what_counts(
    world: World, layout: Layout, make: Make
) -> None:
    one, (mine, theirs) = make(), two_groups_apart()
    topic, writer = layout.scores("math"), world.broker().writer()
    at = partition_of(theirs.encode(), PARTITIONS)
    writer.append(topic, NEWER_PREFIX, partition=at)
    writer.flush(TIMEOUT_S)
    one.upsert_scores(mine, {"u": 1.0}, expect_version=0)
    with pytest.raises(NewerEvent, match="upgrade this process"):
        one.upsert_scores(theirs, {"u": 1.0}, expect_version=0)
    one.upsert_scores(mine, {"u": 2.0}, expect_version=1)


def two_groups_apart() -> tuple[str, str]:
    """Ids of groups whose scores are in different partitions."""
    ids = [f"{number:032x}" for number in range(64)]
    other = partition_of(ids[0].encode(), PARTITIONS)
    return ids[0], next(one for one in ids if partition_of(one.encode(), PARTITIONS) != other)


def test_a_score_counts_where_the_version_is_the_expected_one(
    world: World, layout: Layout, make: Make
) -> None:
    scores = make()
    scores.upsert_scores(GROUP, {"a": 1.0, "b": 2.0}, expect_version=0)
    scores.upsert_scores(GROUP, {"a": 3.0}, expect_version=1)
    with pytest.raises(VersionConflict, match=r"group \w+ by 'tests': .* to be 1, but is 2 of a;"):
        scores.upsert_scores(GROUP, {"a": 9.0, "b": 4.0}, expect_version=1)
    assert newest(world, layout, GROUP, "a") == (3.0, 2)
    assert newest(world, layout, GROUP, "b") == (4.0, 2)


def test_the_error_names_what_was_expected_and_found(make: Make) -> None:
    make().upsert_scores(GROUP, {"a": 1.0, "b": 2.0}, expect_version=0)
    with pytest.raises(VersionConflict) as lost:
        make().upsert_scores(GROUP, {"a": 9.0, "b": Score(2.0, flags=["x"])}, expect_version=3)
    assert isinstance(lost.value, ProducerError)
    assert (lost.value.group_id, lost.value.scorer, lost.value.expected) == (GROUP, "tests", 3)
    assert lost.value.found == {"a": 1, "b": 1}


def test_the_error_tells_what_counts_of_a_call_and_what_does_not(make: Make) -> None:
    scores = make()
    scores.upsert_scores(GROUP, {"a": 1.0}, expect_version=0)
    with pytest.raises(
        VersionConflict, match=r"do not count: .* of a; do count: those of b, c"
    ) as lost:
        scores.upsert_scores(GROUP, {"a": 9.0, "b": 4.0, "c": 5.0}, expect_version=0)
    assert (lost.value.found, lost.value.counted) == ({"a": 1}, ("b", "c"))
    scores.upsert_scores(GROUP, {"b": 6.0, "c": 7.0}, expect_version=1)


def test_an_attempt_that_counted_is_named_where_it_says_something_else(make: Make) -> None:
    scores = make()
    scores.upsert_scores(GROUP, {"a": 1.0, "b": 1.0}, attempt="1", expect_version=0)
    # What it says is what the newest version says.
    scores.upsert_scores(GROUP, {"a": 1.0}, attempt="1", expect_version=1)
    with pytest.raises(VersionConflict, match="version 1 of a is of attempt '1' already") as lost:
        scores.upsert_scores(GROUP, {"a": 2.0, "b": 1.0}, attempt="1", expect_version=1)
    assert (lost.value.attempt, lost.value.found) == ("1", {"a": 1})
    scores.upsert_scores(GROUP, {"a": 2.0}, attempt="2", expect_version=1)
    scores.upsert_scores(GROUP, {"a": 3.0}, expect_version=2)


def test_of_many_who_expect_the_same_version_one_succeeds_each_time(
    world: World, layout: Layout, make: Make
) -> None:
    rounds, writers = 3, 4
    won: list[tuple[int, int]] = []
    lost: list[tuple[int, int]] = []

    def write(scores: ScoreProducer, number: int) -> None:
        for version in range(rounds):
            barrier.wait(TIMEOUT_S)
            try:
                reward = 10.0 * version + number
                scores.upsert_scores(GROUP, {"a": reward}, expect_version=version)
                won.append((version, number))
            except VersionConflict as conflict:
                lost.append((version, conflict.found["a"]))

    barrier = threading.Barrier(writers)
    made = [make() for _ in range(writers)]
    threads = [
        threading.Thread(target=write, args=(scores, number)) for number, scores in enumerate(made)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [version for version, _ in sorted(won)] == list(range(rounds))
    each = [(version, version + 1) for version in range(rounds)]
    assert sorted(lost) == sorted(each * (writers - 1))
    last = max(won)
    assert newest(world, layout, GROUP, "a") == (10.0 * last[0] + last[1], rounds)


def test_a_call_whose_answer_was_lost_is_repeated(world: World, layout: Layout, make: Make) -> None:
    for reward in (2.0, 7.0):  # A verifier that was killed has another result.
        make().upsert_scores(GROUP, {"a": 1.0}, expect_version=0)
        make().upsert_scores(OTHER, {"a": reward}, attempt="x", expect_version=0)
    assert newest(world, layout, GROUP, "a") == (1.0, 1)
    assert newest(world, layout, OTHER, "a") == (2.0, 1)


def test_scores_by_trajectory_are_those_of_its_rollout_and_conflicts_name_what_was_given(
    make: Make, world: World, layout: Layout
) -> None:
    scores = make()
    scores.upsert_scores(GROUP, {"t": 1.0, "u": 2.0}, prompt_uid="p", expect_version=0)
    uid = step_rollout_uid("p", "t")
    assert newest(world, layout, GROUP, uid) == (1.0, 1)
    scores.upsert_scores(GROUP, {uid: 3.0}, expect_version=1)
    with pytest.raises(VersionConflict, match="the scores of t; do count: those of u"):
        scores.upsert_scores(GROUP, {"t": 9.0, "u": 4.0}, prompt_uid="p", expect_version=1)
    assert newest(world, layout, GROUP, uid) == (3.0, 2)


def test_groups_and_scorers_count_apart(make: Make) -> None:
    scores = make()
    scores.publish(rollout_uid="a", reward=1.0)
    scores.publish(group_id=GROUP, reward=1.0, scorer="judge")
    scores.upsert_scores(GROUP, {"a": 2.0}, expect_version=0)
    # Of the whole group is of each rollout.
    scores.upsert_scores(GROUP, {"a": 2.0}, scorer="judge", expect_version=1)
    scores.publish(group_id=GROUP, reward=5.0)
    scores.upsert_scores(GROUP, {"a": 6.0}, expect_version=2)
    scores.upsert_scores(GROUP, {"b": 6.0}, expect_version=1)


@pytest.mark.parametrize("version", [-1, 1.5, "1", True, 2**31])
def test_what_is_no_version_is_refused(make: Make, version: object) -> None:
    with pytest.raises(InvalidRollout, match=r"expect_version is .*; give a"):
        make().upsert_scores(GROUP, {"a": 1.0}, expect_version=version)  # type: ignore[arg-type]


@pytest.mark.broker
def test_a_broker_that_is_away_is_named_within_the_time_and_the_call_repeated(
    own_kafka: KafkaFactory,
) -> None:
    kafka = own_kafka()
    with KafkaBroker(kafka.bootstrap) as broker:
        layout = new_layout(broker)

    def producer(timeout_s: float) -> ScoreProducer:
        return ScoreProducer(
            kafka.bootstrap,
            environment="math",
            scorer="tests",
            namespace=layout.namespace,
            timeout_s=timeout_s,
        )

    with producer(SHORT_S) as hasty, producer(TIMEOUT_S) as other:
        other.upsert_scores(GROUP, {"a": 1.0}, expect_version=0)
        hasty.publish(rollout_uid="u", reward=0.0)
        hasty.flush(TIMEOUT_S)
        with (
            halted(kafka.pid),
            pytest.raises(BrokerUnavailable, match=rf"{kafka.bootstrap} .* repeat the call"),
        ):
            hasty.upsert_scores(GROUP, {"a": 2.0}, expect_version=1)
        hasty.flush(TIMEOUT_S)
        other.upsert_scores(GROUP, {"a": 2.0}, expect_version=1)
        with pytest.raises(VersionConflict, match="to be 1, but is 2 of a"):
            other.upsert_scores(GROUP, {"a": 3.0}, expect_version=1)
