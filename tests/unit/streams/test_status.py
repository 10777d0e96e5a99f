"""How far each stage is, from the logs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.groups import GroupSpec
from harness.newer_records import NEWER_PREFIX, newer
from harness.seal_events import flushed
from harness.status_logs import CLAIM, DECISION, LAYOUT, Logs
from rollstream.schemas.codec import encode
from rollstream.schemas.events import (
    Acked,
    Adopted,
    BatchServed,
    Checkpointed,
    ChosenGroup,
    Claimed,
    CursorRecorded,
    DeadLetter,
    Dropped,
    DroppedGroup,
    Event,
    Finished,
    LogPosition,
    PolicyPublished,
    Replaced,
    Resumed,
    Retried,
)
from rollstream.status import (
    DeadLetterFigures,
    PartitionFigures,
    SamplerFigures,
)


@pytest.fixture
def logs() -> Logs:
    return Logs()


def chosen(count: int, first: int = 0) -> tuple[ChosenGroup, ...]:
    """Groups of the flush at offset 1 of the seal log."""
    return tuple(
        ChosenGroup(
            environment="math",
            generation=1,
            partition=0,
            offset=1,
            index=index,
            group_id="g",
            digest=b"",
        )
        for index in range(first, first + count)
    )


def served(step: int, groups: int, first: int | None = None) -> BatchServed:
    """A batch of ``groups`` groups that no other step has, unless it says which."""
    return BatchServed(
        **DECISION,
        step=step,
        batch_id=f"b{step}",
        seed=0,
        request="{}",
        policy_step=-1,
        cursor=(),
        groups=chosen(groups, groups * step if first is None else first),
        digest=b"",
    )


def sampler(logs: Logs, *events: Event) -> SamplerFigures:
    logs.say(LAYOUT.sampler("t"), Claimed(owner="actor", nonce="n"), *events)
    (figures,) = logs.measure().samplers
    return figures


def test_missing_topics_are_named_and_nothing_else_is_asked() -> None:
    figures = Logs().measure("code")
    assert figures.missing_topics == (LAYOUT.rollouts("code"), LAYOUT.groups("code"))
    assert figures.partitions == ()


def test_a_missing_topic_without_which_the_rest_works_is_no_reason_to_measure_nothing() -> None:
    logs = Logs(topics=lambda name: name != LAYOUT.admission("math"))
    figures = logs.measure()
    assert figures.missing_topics == ()
    assert [p.environment for p in figures.partitions] == ["math"]
    (line,) = figures.topics_off
    assert line.startswith(f"{LAYOUT.admission('math')} is missing: run `rollstream topics create`")
    assert Logs().measure().topics_off == ()


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
        oldest_age_s=40.0,
        records_per_s=5 / 60,
        held=False,
        owner="sealer-1",
        watermark=2,
        settled=4,
        touched=4,
        touched_entries=4,
        groups=0,
        segments=3,
        groups_per_s=0.0,
        flush_age_s=10.0,
        recent_settled=4,
    )
    assert (figures.backlog, figures.waiting) == (3, 1)


def test_unreadable_entries_are_counted_for_a_minute(logs: Logs) -> None:
    logs.say(
        LAYOUT.groups("math"),
        Claimed(owner="sealer-1", nonce="n"),
        flushed(0, "n", [0], 4, settled={"unreadable": [1, 2], "failed": [3]}),
    )
    (figures,) = logs.measure().partitions
    assert (figures.recent_settled, figures.recent_unreadable) == (4, 2)
    logs.clock.advance(61)
    (figures,) = logs.measure().partitions
    assert (figures.recent_settled, figures.recent_unreadable) == (0, 0)


def test_entries_of_the_backlog_are_those_known_and_the_mean_for_what_was_not_read(
    logs: Logs,
) -> None:
    logs.append(LAYOUT.rollouts("math"), *[b"record"] * 6)
    assert logs.measure().partitions[0].waiting is None
    counts = {0: 4, 1: 5, 3: 6}
    logs.say(
        LAYOUT.groups("math"),
        Claimed(owner="sealer-1", nonce="n"),
        flushed(0, "n", [(0, entry) for entry in range(4)], 1, counts=counts),
        flushed(0, "n", [(1, 0), (1, 2)], 1, settled={"failed": [(3, 5)]}, counts=counts),
    )
    (figures,) = logs.measure().partitions
    assert (figures.backlog, figures.unread) == (5, 3)
    assert (figures.settled, figures.touched, figures.touched_entries) == (7, 3, 15)
    assert figures.waiting == 3 + 5 + 3 * 5


@pytest.mark.proves("F24")
def test_scores_at_which_a_sampler_stopped_long_ago_are_named(logs: Logs) -> None:
    logs.append(LAYOUT.scores("math"), NEWER_PREFIX)
    stopped = LogPosition(environment="math", generation=1, partition=0, groups_next_offset=0)
    cursor = CursorRecorded(**CLAIM, now_ts=0, cursor=(stopped,))
    logs.say(LAYOUT.sampler("t"), Claimed(owner="t", nonce="n"), cursor)
    logs.clock.advance(86_400.0)
    logs.say(LAYOUT.groups("math"), Claimed(owner="a", nonce="n"))
    logs.append(LAYOUT.scores("math"), b"what is no score is passed over")
    assert [*logs.measure().scores_aside] == [f"{LAYOUT.scores('math')}[0]"]


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
        Adopted(
            epoch=1, nonce="b", fold_from=1, watermark=700, counts={"groups": 9, "segments": 70}
        ),
        flushed(1, "b", [700], 701),
    )
    (figures,) = logs.measure().partitions
    assert (figures.watermark, figures.groups, figures.segments) == (701, 9, 71)


def test_sampler_is_measured_from_its_decisions(logs: Logs) -> None:
    ack = Acked(**DECISION, step=0, batch_id="b0", status="trained")
    policy = PolicyPublished(**DECISION, step=1, policy_version="a", lineage="", policy_epoch=0)
    figures = sampler(
        logs,
        served(0, 4),
        served(1, 4),
        ack,
        policy,
        Checkpointed(**DECISION, step=0),
    )
    assert (figures.owner, figures.batches) == ("actor", 2)
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


def test_replayed_batches_stand_whatever_is_acked_again(logs: Logs) -> None:
    events = [event for step in range(4) for event in (served(step, 4), acked(step))]
    figures = sampler(logs, *events, resumed(1, "replay"), acked(2), acked(3))
    assert figures.batches == 4
    assert (figures.open_batches, figures.next_step, figures.trainer_step) == (2, 4, 4)


def test_final_batches_behind_the_checkpoint_of_a_replay_stay_served(logs: Logs) -> None:
    saved = Checkpointed(**DECISION, step=3)
    figures = sampler(logs, *(served(step, 4) for step in range(4)), saved, resumed(0, "replay"))
    assert (figures.open_batches, figures.next_step, figures.trainer_step) == (0, 4, 1)
    policy = PolicyPublished(**DECISION, step=3, policy_version="a", lineage="", policy_epoch=1)
    logs.say(LAYOUT.sampler("t"), policy)
    assert logs.measure().samplers[0].trainer_step == 3


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
    assert (figures.batches, figures.next_step) == (2, 1)


def dropped(count: int, reason: str) -> Dropped:
    ref = DroppedGroup(environment="math", generation=1, partition=0, offset=1, index=0)
    return Dropped(**CLAIM, now_ts=0, reason=reason, groups=(ref,) * count)


def test_after_a_resume_the_newest_policy_is_the_one_of_the_new_policy_epoch(logs: Logs) -> None:
    before = PolicyPublished(**DECISION, step=2, policy_version="a", lineage="", policy_epoch=0)
    figures = sampler(logs, served(0, 4), before, resumed(0, "release"))
    assert (figures.policy_epoch, figures.policy_step) == (1, -1)
    after = replace(before, step=1, policy_version="b", policy_epoch=1)
    logs.say(LAYOUT.sampler("t"), after)
    (figures,) = logs.measure().samplers
    assert (figures.policy_epoch, figures.policy_step) == (1, 1)


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


def sealing(logs: Logs) -> None:
    logs.say(LAYOUT.groups("math"), Claimed(owner="s", nonce="n"))


@pytest.mark.parametrize(("later", "ready"), [("release", 6), ("replay", 2)])
def test_groups_of_released_batches_are_ready_again(logs: Logs, later: str, ready: int) -> None:
    sealing(logs)
    logs.seal(*[GroupSpec()] * 10)
    figures = sampler(logs, served(0, 4), served(1, 4), resumed(0, later))
    assert figures.ready == ready


def test_group_that_was_replaced_is_not_ready_again_after_a_release(logs: Logs) -> None:
    sealing(logs)
    logs.seal(*[GroupSpec()] * 3)
    replaced = Replaced(
        **DECISION,
        step=0,
        batch_id="b0",
        reason="easy",
        slots=np.array([1], np.int32),
        groups=chosen(1, 2),
        cursor=(),
        digest=b"",
    )
    assert sampler(logs, served(0, 2), replaced).ready == 0
    logs.say(LAYOUT.sampler("t"), resumed(None, "release"))
    (figures,) = logs.measure().samplers
    assert figures.ready == 2
    again = replace(served(0, 0), groups=(*chosen(1, 0), *chosen(1, 2)))
    logs.say(LAYOUT.sampler("t"), again)
    (figures,) = logs.measure().samplers
    assert figures.ready == 0


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (GroupSpec(rewards=(1.0, None)), "reward"),
        (GroupSpec(lineage="other"), "lineage"),
    ],
)
def test_groups_that_wait_are_not_ready(spec: GroupSpec, why: str) -> None:
    logs = Logs(max_policy_lag=3)
    sealing(logs)
    evaluated = GroupSpec(split="eval")  # It waits for nothing.
    logs.seal(GroupSpec(), spec, GroupSpec(), spec, spec, evaluated)
    figures = sampler(logs, served(0, 2))
    assert (figures.ready, figures.waiting, figures.waiting_since) == (1, {why: 2}, {})
    logs.clock.advance(1)
    logs.seal(spec, offset=12)
    (figures,) = logs.measure().samplers
    assert (figures.ready, figures.waiting, figures.waiting_since) == (1, {why: 3}, {why: 1})


def test_groups_from_before_what_is_read_are_told_apart(logs: Logs) -> None:
    sealing(logs)
    logs.seal(*[GroupSpec()] * 3)
    logs.say(
        LAYOUT.groups("math"),
        Claimed(owner="s", nonce="n"),
        Adopted(epoch=2, nonce="n", fold_from=2, watermark=6, counts={"groups": 3, "segments": 6}),
    )
    logs.seal(GroupSpec(), offset=6, epoch=2)
    figures = sampler(logs, served(0, 2))
    assert (figures.ready, figures.older) == (1, 1)


def test_rates_are_over_the_last_minute(logs: Logs) -> None:
    sealing(logs)
    for offset in range(0, 12, 4):
        logs.append(LAYOUT.rollouts("math"), *[b"rollout"] * 4)
        logs.seal(GroupSpec(), GroupSpec(), offset=offset)
        logs.clock.advance(40)
    sampler(logs, served(0, 2))
    logs.clock.advance(10)
    figures = logs.measure()
    (partition,) = figures.partitions
    assert (partition.records_per_s, partition.groups_per_s) == (4 / 60, 2 / 60)
    assert figures.samplers[0].batches_per_minute == 1
    logs.clock.advance(60)
    assert logs.measure().samplers[0].batches_per_minute == 0


@pytest.mark.proves("F17")
def test_partition_is_held_while_a_sealer_is_in_the_group(logs: Logs) -> None:
    topic = LAYOUT.rollouts("math")
    member = logs.broker.group_reader(
        LAYOUT.sealer_group("math"), [topic], on_revoked=lambda _: None
    )
    assert logs.measure().partitions[0].held is False
    member.poll(1, 0)
    figures = logs.measure()
    assert (figures.partitions[0].held, figures.sealers) == (True, {"math": 1})
    member.evict()
    figures = logs.measure()
    assert (figures.partitions[0].held, figures.sealers) == (False, {"math": 0})


def test_newest_dead_letter_is_shown_with_the_number_kept(logs: Logs) -> None:
    assert logs.measure().dead_letters == DeadLetterFigures(kept=0)
    about: dict[str, Any] = {"topic": "r", "partition": 1, "entry": 0, "timestamp_ts": 0}
    letters = [
        DeadLetter(**about, offset=offset, reason="torn", detail=f"at {offset}", value=None)
        for offset in (7, 9)
    ]
    logs.say(LAYOUT.dead_letters(), *letters)
    logs.clock.advance(3)
    assert logs.measure().dead_letters == DeadLetterFigures(
        kept=2, newest_age_s=3.0, newest_reason="torn: at 9", newest_from="r[1] at 9"
    )
    logs.append(LAYOUT.dead_letters(), b"of somebody else")
    assert logs.measure().dead_letters.kept == 2, "it is no letter"
    logs.append(LAYOUT.dead_letters(), newer(encode(letters[0])))
    found = logs.measure().dead_letters
    assert found.kept == 3
    assert found.newest_reason.startswith("the letter cannot be read")


def test_letters_that_were_published_again_do_not_count(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    about: dict[str, Any] = {"topic": "r", "partition": 0, "entry": 0}
    letters = [
        DeadLetter(**about, offset=i, timestamp_ts=0, reason="torn", detail=f"{i}", value=None)
        for i in (1, 2, 3, 3)
    ]
    logs.say(LAYOUT.dead_letters(), *letters, Retried(**about, offset=3))
    found = logs.measure().dead_letters
    assert (found.kept, found.newest_reason, found.newest_from) == (2, "torn: 2", "r[0] at 2")
    logs.say(LAYOUT.dead_letters(), *(Retried(**about, offset=i) for i in (2, 1)))
    assert logs.measure().dead_letters == DeadLetterFigures(kept=0)
    monkeypatch.setattr("rollstream.status.letters.LETTERS_READ_MAX", 2)
    # Of the four letters and the mark before, all count but the two that the newest marks name.
    assert logs.measure().dead_letters == DeadLetterFigures(kept=3)


def test_run_is_over_until_something_is_decided_again(logs: Logs) -> None:
    figures = sampler(logs, served(0, 4), Finished(**DECISION), dropped(1, "capacity"))
    assert figures.over
    logs.say(LAYOUT.sampler("t"), acked(0))
    assert not logs.measure().samplers[0].over
