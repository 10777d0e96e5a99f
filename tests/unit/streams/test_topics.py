"""Topics: names, configuration, what differs."""

from __future__ import annotations

import pytest

from rollstream.streams.broker import TopicSpec
from rollstream.streams.errors import TopicMismatch
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.topics.check import check_copies, check_topics, require_topics
from rollstream.streams.topics.create import create_topics
from rollstream.streams.topics.layout import (
    RECORD_BYTES_MAX,
    SHARES_PARTITIONS,
    BadName,
    Layout,
    off_without,
)
from rollstream.streams.topics.specs import specs_for


def specs(**environments: int) -> dict[str, TopicSpec]:
    made = specs_for(Layout(), environments or {"math": 4}, ["trainer-a"])
    return {spec.name: spec for spec in made}


def test_every_log_of_the_deployment_has_its_topic() -> None:
    assert list(specs(math=4, code=2)) == [
        "rollstream.rollouts.code.1",
        "rollstream.groups.code.1",
        "rollstream.reports.code.1",
        "rollstream.admission.code.1",
        "rollstream.admission.code.1-2",
        "rollstream.scores.code.1",
        "rollstream.positions.code.1",
        "rollstream.rollouts.math.1",
        "rollstream.groups.math.1",
        "rollstream.reports.math.1",
        "rollstream.admission.math.1",
        "rollstream.admission.math.1-2",
        "rollstream.scores.math.1",
        "rollstream.positions.math.1",
        "rollstream.sampler.trainer-a.1",
        "rollstream.deadletters.all.1",
    ]


def test_logs_that_belong_together_have_the_same_partitions() -> None:
    made = specs(math=6)
    for log in ("rollouts", "groups", "reports", "scores", "positions"):
        assert made[f"rollstream.{log}.math.1"].partitions == 6
    assert made["rollstream.sampler.trainer-a.1"].partitions == 1


def test_what_workers_are_told_is_compacted_and_spread_so_that_each_reads_a_part() -> None:
    made = specs()
    first, second = made["rollstream.admission.math.1"], made["rollstream.admission.math.1-2"]
    assert (first.partitions, second.partitions) == (1, SHARES_PARTITIONS)
    assert first.config == second.config
    assert first.config["cleanup.policy"] == "compact"


def test_all_topics_take_the_brokers_time_and_the_largest_record() -> None:
    for spec in specs().values():
        assert spec.config["message.timestamp.type"] == "LogAppendTime"
        assert spec.config["max.message.bytes"] == str(RECORD_BYTES_MAX)


def test_truth_is_kept_for_ever_the_ingest_log_for_days_and_what_holds_now_for_one() -> None:
    made = specs()
    for name in ("groups.math", "scores.math", "sampler.trainer-a"):
        assert made[f"rollstream.{name}.1"].config["retention.ms"] == "-1"
        assert made[f"rollstream.{name}.1"].config["cleanup.policy"] == "delete"
    assert made["rollstream.rollouts.math.1"].config["retention.ms"] == str(168 * 3_600_000)
    assert made["rollstream.reports.math.1"].config["retention.ms"] == str(24 * 3_600_000)
    weeks = int(made["rollstream.deadletters.all.1"].config["retention.ms"]) / (7 * 24 * 3_600_000)
    assert weeks == 4
    shorter = specs_for(Layout(), {"math": 1}, rollouts_retention_hours=0.5)
    assert shorter[0].config["retention.ms"] == "1800000"


@pytest.mark.parametrize("name", ["math.easy", "", "ma th", "größe"])
def test_a_name_that_could_reach_into_another_topic_is_refused(name: str) -> None:
    with pytest.raises(BadName, match=r"letters, digits"):
        specs_for(Layout(), {name: 1})


def test_what_is_missing_is_created_and_what_is_there_is_left_alone() -> None:
    admin = MemoryBroker().admin()
    wanted = specs_for(Layout(), {"math": 4}, ["a"])
    other = wanted[0]._replace(partitions=9)
    admin.create([other], 1.0)
    assert create_topics(admin, wanted, 1.0) == [spec.name for spec in wanted[1:]]
    assert admin.describe([other.name], 1.0)[other.name].partitions == 9
    assert create_topics(admin, wanted, 1.0) == []


def test_topics_as_they_must_be_have_no_differences() -> None:
    admin = MemoryBroker().admin()
    wanted = specs_for(Layout(), {"math": 4}, ["a"])
    create_topics(admin, wanted, 1.0)
    assert check_topics(admin, wanted, 1.0) == []
    require_topics(admin, wanted, 1.0)


@pytest.mark.parametrize(
    ("brokers", "copies", "in_sync", "told"),
    [
        (1, 1, 1, ""),
        (2, 1, 1, ""),
        (3, 1, 1, "has replication 1, not 3: the loss of one broker loses records; assign 3 "),
        (3, 1, 2, "has replication 1, not 3"),
        (2, 2, 1, ""),
        (2, 2, 2, "has min.insync.replicas 2, not 1: writes stop once one broker stops; run "),
        (3, 3, 1, "has min.insync.replicas 1, not 2: an acknowledged record may be on one "),
        (3, 3, 2, ""),
        (3, 3, 3, "has min.insync.replicas 3, not 2: writes stop once one broker stops; run "),
    ],
)
def test_topics_that_do_not_survive_a_broker_are_named_in_one_warning(
    brokers: int, copies: int, in_sync: int, told: str
) -> None:
    admin = MemoryBroker(MemoryLogs(brokers=brokers)).admin()
    wanted = specs_for(Layout(), {"math": 4}, ["a"])
    settings = {"min.insync.replicas": str(in_sync)}
    made = [one._replace(replication=copies, config={**one.config, **settings}) for one in wanted]
    create_topics(admin, made[1:], 1.0)
    found = check_copies(admin, wanted, 1.0)
    topics = ", ".join(spec.name for spec in made[1:])
    assert [str(one).startswith(f"{topics} {told}") for one in found] == [True] * bool(told)
    assert all(one.warning for one in found)


def test_a_later_topic_that_is_missing_is_a_difference_and_stops_nobody() -> None:
    admin = MemoryBroker().admin()
    layout = Layout()
    wanted = specs_for(layout, {"math": 4}, ["a"])
    create_topics(admin, [spec for spec in wanted if not off_without(spec.name)], 1.0)
    found = check_topics(admin, wanted, 1.0)
    assert layout.admission("math") in [difference.topic for difference in found]
    assert all(difference.what == "missing" and difference.off for difference in found)
    require_topics(admin, wanted, 1.0)


def test_a_topic_of_readers_alone_is_checked_and_stops_no_sealer_or_sampler() -> None:
    admin, layout = MemoryBroker().admin(), Layout()
    wanted = specs_for(layout, {"math": 4}, ["a"])
    positions = layout.positions("math")
    kept = [spec._replace(partitions=3) if spec.name == positions else spec for spec in wanted]
    create_topics(admin, kept, 1.0)
    assert [difference.topic for difference in check_topics(admin, wanted, 1.0)] == [positions]
    require_topics(admin, wanted, 1.0)


def test_positions_of_readers_are_compacted_and_kept_for_ever() -> None:
    config = specs()["rollstream.positions.math.1"].config
    assert (config["cleanup.policy"], config["retention.ms"]) == ("compact", "-1")


def test_a_later_topic_that_differs_stops_whoever_starts() -> None:
    admin = MemoryBroker().admin()
    wanted = specs_for(Layout(), {"math": 4}, ["a"])
    create_topics(
        admin,
        [spec._replace(partitions=3) if off_without(spec.name) else spec for spec in wanted],
        1.0,
    )
    with pytest.raises(TopicMismatch, match="has partitions 3"):
        require_topics(admin, wanted, 1.0)


def test_each_difference_says_what_to_do() -> None:
    admin = MemoryBroker().admin()
    wanted = specs_for(Layout(), {"math": 4}, ["a"])
    rollouts, groups, reports, admission, shares, scores, positions, _, dead_letters = wanted
    wrong_time = {**groups.config, "message.timestamp.type": "CreateTime"}
    present = [
        rollouts._replace(partitions=3),
        groups._replace(config=wrong_time),
        reports,
        admission,
        shares,
        scores,
        positions,
        dead_letters,
    ]
    admin.create(present, 1.0)
    found = check_topics(admin, wanted, 1.0)
    assert [(d.topic, d.what, d.wanted, d.found) for d in found] == [
        ("rollstream.rollouts.math.1", "partitions", "4", "3"),
        ("rollstream.groups.math.1", "message.timestamp.type", "LogAppendTime", "CreateTime"),
        ("rollstream.sampler.a.1", "missing", "1", ""),
    ]
    assert "configure 3 partitions, or set a new kafka.generation" in found[0].remedy
    assert "`rollstream topics create`" in found[0].remedy
    assert "message.timestamp.type=LogAppendTime" in found[1].remedy
    assert "rollstream topics create" in found[2].remedy
    with pytest.raises(TopicMismatch, match="has partitions 3, not 4") as caught:
        require_topics(admin, wanted, 1.0)
    assert all(difference.topic in str(caught.value) for difference in found)
