"""How far each stage is, from the logs; and the first stage that is stuck."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.seal_events import flushed
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.codec import encode
from rollstream.schemas.events import (
    Acked,
    Adopted,
    BatchServed,
    Checkpointed,
    ChosenGroup,
    Claimed,
    Dropped,
    Event,
    GroupRef,
    PolicyPublished,
    Resumed,
)
from rollstream.streams.memory import MemoryBroker
from rollstream.streams.status import (
    Figures,
    Limits,
    PartitionFigures,
    SamplerFigures,
    first_stuck,
    measure,
)
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.specs import specs_for

LAYOUT = Layout("test")
LIMITS = Limits(expire_after_s={"math": 100.0}, max_open_batches={"t": 3})
CLAIM: dict[str, Any] = {"epoch": 0, "nonce": "n"}
DECISION: dict[str, Any] = {**CLAIM, "now_ts": 0, "trainer_epoch": 0}


class Logs:
    """The topics of one environment and one sampler, and what tests append to them."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.broker = MemoryBroker(clock=self.clock)
        self.broker.admin().create(specs_for(LAYOUT, {"math": 1}, ["t"]), 10)

    def append(self, topic: str, *values: bytes) -> None:
        writer = self.broker.writer()
        for value in values:
            writer.append(topic, value, partition=0)
        assert writer.flush(10) == 0

    def say(self, topic: str, *events: Event) -> None:
        self.append(topic, *map(encode, events))

    def measure(self) -> Figures:
        return measure(
            self.broker,
            LAYOUT,
            {"math": 1},
            {"t": ["math"]},
            clock=self.clock,
            deadline=Deadline(10, self.clock),
        )


@pytest.fixture
def logs() -> Logs:
    return Logs()


def chosen(count: int) -> tuple[ChosenGroup, ...]:
    group = ChosenGroup(
        environment="math",
        generation=1,
        partition=0,
        offset=1,
        index=0,
        group_id="g",
        digest=b"",
    )
    return (group,) * count


def served(step: int, groups: int) -> BatchServed:
    return BatchServed(
        **DECISION,
        step=step,
        batch_id=f"b{step}",
        seed=0,
        request="{}",
        policy_step=-1,
        cursor=(),
        groups=chosen(groups),
        digest=b"",
    )


def sampler(logs: Logs, *events: Event) -> SamplerFigures:
    logs.say(LAYOUT.sampler("t"), Claimed(owner="actor", nonce="n"), *events)
    (figures,) = logs.measure().samplers
    return figures


def test_missing_topics_are_named_and_nothing_else_is_asked() -> None:
    logs = Logs()
    figures = measure(
        logs.broker,
        LAYOUT,
        {"math": 1, "code": 1},
        {},
        clock=logs.clock,
        deadline=Deadline(10, logs.clock),
    )
    assert figures.missing_topics == (LAYOUT.rollouts("code"), LAYOUT.groups("code"))
    assert figures.partitions == ()


def test_sealing_is_measured_from_both_logs(logs: Logs) -> None:
    logs.append(LAYOUT.rollouts("math"), *[b"rollout"] * 5)
    logs.clock.advance(30)
    logs.say(
        LAYOUT.groups("math"),
        Claimed(owner="sealer-1", nonce="n"),
        flushed(0, "n", [0, 1, 3], 2, settled={"failed": [4]}),
    )
    logs.clock.advance(10)
    (figures,) = logs.measure().partitions
    assert figures == PartitionFigures(
        environment="math",
        partition=0,
        kept_from=0,
        ingest_end=5,
        published_age_s=40.0,
        owner="sealer-1",
        watermark=2,
        groups=0,
        rollouts=3,
        flush_age_s=10.0,
    )
    assert figures.backlog == 3


def test_zombie_is_not_counted(logs: Logs) -> None:
    logs.say(
        LAYOUT.groups("math"),
        Claimed(owner="old", nonce="o"),
        Claimed(owner="new", nonce="n"),
        flushed(0, "o", [0], 1),
    )
    (figures,) = logs.measure().partitions
    assert (figures.owner, figures.watermark, figures.flush_age_s) == ("new", 0, None)


def test_long_log_is_read_from_its_newest_proof(logs: Logs) -> None:
    logs.say(
        LAYOUT.groups("math"),
        Claimed(owner="a", nonce="a"),
        Claimed(owner="b", nonce="b"),
        Adopted(epoch=1, nonce="b", fold_from=1, watermark=700, counts={"groups": 9, "sealed": 70}),
        flushed(1, "b", [700], 701),
    )
    (figures,) = logs.measure().partitions
    assert (figures.watermark, figures.groups, figures.rollouts) == (701, 9, 71)


def test_sampler_is_measured_from_its_decisions(logs: Logs) -> None:
    ack = Acked(**DECISION, step=0, batch_id="b0", status="trained")
    policy = PolicyPublished(
        **DECISION, step=1, policy_version="step-1", lineage="", policy_epoch=0
    )
    figures = sampler(
        logs,
        served(0, 4),
        served(1, 4),
        ack,
        policy,
        Checkpointed(**DECISION, step=0),
    )
    assert (figures.owner, figures.batches, figures.acked) == ("actor", 2, 1)
    assert (figures.open_batches, figures.next_step, figures.policy_step) == (1, 2, 1)


def resumed(checkpointed_step: int | None, later: str, *, trainer_epoch: int = 1) -> Resumed:
    return Resumed(
        **{**DECISION, "trainer_epoch": trainer_epoch},
        checkpointed_step=checkpointed_step,
        later=later,
        first_step=0 if checkpointed_step is None else checkpointed_step + 1,
        policy_epoch=trainer_epoch,
    )


def acked(step: int) -> Acked:
    return Acked(**DECISION, step=step, batch_id=f"b{step}", status="trained")


@pytest.mark.parametrize(("later", "ready"), [("release", 6), ("replay", 2)])
def test_groups_of_released_batches_are_ready_again(logs: Logs, later: str, ready: int) -> None:
    logs.say(
        LAYOUT.groups("math"),
        Claimed(owner="s", nonce="s"),
        Claimed(owner="s", nonce="s"),
        Adopted(epoch=1, nonce="s", fold_from=1, watermark=0, counts={"groups": 10}),
    )
    figures = sampler(logs, served(0, 4), served(1, 4), resumed(0, later))
    assert figures.ready == ready


def test_replayed_batches_stand_and_their_second_ack_is_not_counted_again(logs: Logs) -> None:
    events = [event for step in range(4) for event in (served(step, 4), acked(step))]
    figures = sampler(logs, *events, resumed(1, "replay"), acked(2), acked(3))
    assert (figures.batches, figures.acked) == (4, 4)
    assert (figures.open_batches, figures.next_step) == (2, 4)


def test_final_batches_behind_the_checkpoint_of_a_replay_stay_served(logs: Logs) -> None:
    saved = Checkpointed(**DECISION, step=2)
    figures = sampler(logs, *(served(step, 4) for step in range(4)), saved, resumed(0, "replay"))
    assert (figures.open_batches, figures.next_step) == (1, 4)


def test_step_after_a_release_is_the_one_behind_the_checkpoint(logs: Logs) -> None:
    figures = sampler(logs, *(served(step, 4) for step in range(4)), resumed(1, "release"))
    assert (figures.open_batches, figures.next_step) == (0, 2)


def test_released_final_batches_are_not_replayed_by_a_later_resume(logs: Logs) -> None:
    figures = sampler(
        logs,
        *(served(step, 4) for step in range(4)),
        Checkpointed(**DECISION, step=3),
        resumed(1, "release"),
        resumed(1, "replay", trainer_epoch=2),
    )
    assert (figures.open_batches, figures.next_step) == (0, 2)


def test_batch_that_was_released_and_its_successor_count_as_two(logs: Logs) -> None:
    again = replace(served(0, 4), batch_id="b0-again")
    figures = sampler(
        logs,
        served(0, 4),
        acked(0),
        resumed(None, "release"),
        again,
        replace(acked(0), batch_id="b0-again"),
    )
    assert (figures.batches, figures.acked, figures.next_step) == (2, 2, 1)


def dropped(count: int, reason: str) -> Dropped:
    ref = GroupRef(environment="math", generation=1, partition=0, offset=1, index=0)
    return Dropped(**CLAIM, now_ts=0, reason=reason, groups=(ref,) * count)


def test_drops_are_no_progress_and_are_counted_since_the_last_progress(logs: Logs) -> None:
    sampler(logs, served(0, 4), dropped(2, "stale"), served(1, 4))
    logs.clock.advance(90)
    logs.say(LAYOUT.sampler("t"), dropped(3, "off_branch"), dropped(1, "stale"))
    logs.clock.advance(1)
    (figures,) = logs.measure().samplers
    assert figures.decision_age_s == 91.0
    assert figures.dropped_since == {"off_branch": 3, "stale": 1}


def test_sampler_that_only_drops_has_been_waiting_since_it_was_started(logs: Logs) -> None:
    sampler(logs)
    logs.clock.advance(90)
    logs.say(LAYOUT.sampler("t"), dropped(3, "stale"), Claimed(owner="actor", nonce="m"))
    (figures,) = logs.measure().samplers
    assert figures.decision_age_s == 90.0


HEALTHY_PARTITION = PartitionFigures(
    environment="math",
    partition=0,
    kept_from=0,
    ingest_end=100,
    published_age_s=1.0,
    owner="sealer-1",
    watermark=90,
    groups=9,
    rollouts=90,
    flush_age_s=1.0,
)
HEALTHY_SAMPLER = SamplerFigures(
    name="t",
    environments=("math",),
    owner="actor",
    ready=5,
    batches=2,
    acked=1,
    open_batches=1,
    next_step=2,
    policy_step=1,
    decision_age_s=1.0,
    dropped_since={},
)


@pytest.mark.proves("F17")
@pytest.mark.parametrize(
    ("partition", "of_sampler", "stage", "reason"),
    [
        ({}, {}, "", "nothing is stuck"),
        ({"ingest_end": 0, "watermark": 0}, {}, "env replicas", "nothing was ever published"),
        ({"kept_from": 95}, {}, "sealers", "retention deleted 5 records of math[0]"),
        ({"owner": ""}, {}, "sealers", "no sealer ever claimed"),
        (
            {"published_age_s": 500.0, "flush_age_s": 400.0},
            {},
            "sealers",
            "10 records of math[0] wait for 400 s",
        ),
        ({}, {"owner": ""}, "sampler", "t was never started"),
        ({}, {"open_batches": 3}, "trainer", "call checkpointed(step)"),
        ({}, {"decision_age_s": 90.0}, "trainer", "5 groups are ready for t"),
        (
            {"watermark": 100, "published_age_s": 80.0},
            {"decision_age_s": 90.0, "ready": 0},
            "env replicas",
            "nothing was published to math since 80 s",
        ),
        (
            {},
            {"decision_age_s": 90.0, "ready": 0, "dropped_since": {"off_branch": 7, "stale": 1}},
            "env replicas",
            "8 groups of t were dropped and none was served since 90 s, 7 of them as off_branch: "
            "a resume went back to before the weights that they name; workers must publish "
            "policy_epoch as publish_policy returned it",
        ),
        (
            {},
            {"decision_age_s": 90.0, "ready": 2, "dropped_since": {"stale": 7}},
            "env replicas",
            "raise max_policy_lag",
        ),
        (
            {},
            {"decision_age_s": 90.0, "ready": 0, "dropped_since": {"filtered": 7}},
            "env replicas",
            "without accept",
        ),
        (
            {},
            {"decision_age_s": 90.0, "ready": 0, "dropped_since": {"capacity": 7}},
            "sampler",
            "raise capacity_groups",
        ),
        # The sampler drops what exceeds its capacity whether or not a trainer asks.
        (
            {},
            {"decision_age_s": 90.0, "dropped_since": {"capacity": 7}},
            "trainer",
            "5 groups are ready for t",
        ),
        ({}, {"ready": 0, "dropped_since": {"stale": 7}}, "", "nothing is stuck"),
        # Groups that wait for members, within their time, are no stall.
        ({"published_age_s": 90.0, "flush_age_s": 90.0}, {}, "", "nothing is stuck"),
    ],
)
def test_first_stuck_stage_is_named_with_its_reason(
    partition: dict[str, Any], of_sampler: dict[str, Any], stage: str, reason: str
) -> None:
    figures = Figures(
        partitions=(replace(HEALTHY_PARTITION, **partition),),
        samplers=(replace(HEALTHY_SAMPLER, **of_sampler),),
    )
    verdict = first_stuck(figures, LIMITS)
    assert verdict.stage == stage
    assert reason in verdict.reason


def test_stage_before_others_is_named_first() -> None:
    figures = Figures(
        partitions=(replace(HEALTHY_PARTITION, owner=""),),
        samplers=(replace(HEALTHY_SAMPLER, open_batches=3),),
    )
    assert first_stuck(figures, LIMITS).stage == "sealers"
