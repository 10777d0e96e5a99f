"""Which stages are stuck, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rollstream.runtime.config.sections import (
    EnvironmentConfig,
    KafkaConfig,
    RollstreamConfig,
    SamplerConfig,
)
from rollstream.runtime.config.store import StoreConfig
from rollstream.status import (
    AdmissionFigures,
    Alarm,
    Figures,
    PartitionFigures,
    SamplerFigures,
    Verdict,
    stuck_stages,
)

CONFIG = RollstreamConfig(
    kafka=KafkaConfig(bootstrap="nobody:9092"),
    store=StoreConfig(root="file:///nowhere"),
    environments={"math": EnvironmentConfig(seal_timeout_s=50.0, expire_after_s=100.0)},
    samplers={"t": SamplerConfig(environments=("math",), max_open_batches=3)},
)
HEALTHY_PARTITION = PartitionFigures(
    environment="math",
    partition=0,
    kept_from=0,
    ingest_end=100,
    published_age_s=1.0,
    oldest_age_s=1.0,
    records_per_s=1.0,
    held=True,
    owner="sealer-1",
    watermark=90,
    settled=90,
    touched=90,
    touched_entries=90,
    groups=9,
    segments=90,
    groups_per_s=1.0,
    flush_age_s=1.0,
)
HEALTHY_SAMPLER = SamplerFigures(
    name="t",
    environments=("math",),
    owner="actor",
    ready=5,
    waiting={},
    older=0,
    over=False,
    batches=2,
    batches_per_minute=1,
    open_batches=1,
    unacked=0,
    unacked_step=None,
    unacked_age_s=None,
    next_step=2,
    trainer_step=2,
    policy_epoch=2,
    policy_step=1,
    decision_age_s=1.0,
    dropped_since={},
    waiting_since={},
)


def test_a_sampler_that_was_never_started_is_not_stuck() -> None:
    figures = Figures(
        partitions=(HEALTHY_PARTITION,),
        samplers=(replace(HEALTHY_SAMPLER, owner="", decision_age_s=None),),
    )
    assert stuck_stages(figures, CONFIG) == ()


@pytest.mark.proves("F17")
@pytest.mark.parametrize(
    ("partition", "of_sampler", "stage", "reason"),
    [
        ({"ingest_end": 0, "watermark": 0}, {}, "env workers", "nothing was ever published"),
        ({"kept_from": 95}, {}, "sealers", "retention deleted 5 records of math[0]"),
        (
            {"oldest_age_s": 400.0},
            {},
            "sealers",
            "10 records of math[0] wait, the oldest for 400 s, longer than any group may; their "
            "sealer (sealer-1) runs and settles nothing",
        ),
        (
            {"held": False, "oldest_age_s": 12.0},
            {},
            "sealers",
            "10 records of math[0] wait, the oldest for 12 s, and none of the 1 sealers of math "
            "has them",
        ),
        (
            {"watermark": 100, "published_age_s": 80.0},
            {"decision_age_s": 90.0, "ready": 0, "unacked": 1},
            "trainer",
            "a batch of t was served and is not acked, nothing was decided for 90 s and nothing "
            "published for 80 s",
        ),
        ({}, {"open_batches": 3}, "trainer", "call checkpointed(step)"),
        (
            {},
            {"unacked": 1, "unacked_step": 7, "unacked_age_s": 1801.0},
            "trainer",
            "the batch of step 7 of t was served 1801 s ago and is neither acked nor released",
        ),
        ({}, {"decision_age_s": 90.0}, "trainer", "5 groups are ready for t"),
        (
            {"watermark": 100, "published_age_s": 80.0},
            {"decision_age_s": 90.0, "ready": 0},
            "env workers",
            "nothing was published to math for 80 s",
        ),
        (
            {},
            {"decision_age_s": 90.0, "ready": 0, "dropped_since": {"off_branch": 7, "stale": 1}},
            "env workers",
            "t served nothing for 90 s; of 8 groups 7 were dropped as off_branch: "
            "a resume went back to before the weights that they name; workers must "
            "publish(policy=producer.policy()), or its policy_epoch, which is 2 now",
        ),
        (
            {},
            {"decision_age_s": 90.0, "ready": 2, "dropped_since": {"stale": 7}},
            "env workers",
            "raise samplers.t.max_policy_lag",
        ),
        (
            {},
            {"decision_age_s": 90.0, "ready": 0, "dropped_since": {"no_weight_step": 7}},
            "env workers",
            "of 7 groups 7 were dropped as no_weight_step: a member names no weight_step, so that "
            "its age is not known, and max_policy_lag is 8; workers must publish(policy=…)",
        ),
        (
            {},
            {"decision_age_s": 90.0, "ready": 0, "dropped_since": {"filtered": 7}},
            "env workers",
            "without accept",
        ),
        (
            {},
            {"decision_age_s": 90.0, "ready": 0, "dropped_since": {"capacity": 7}},
            "sampler",
            "raise samplers.t.capacity_groups",
        ),
        # The sampler drops what exceeds its capacity whether or not a trainer asks.
        (
            {},
            {"decision_age_s": 90.0, "dropped_since": {"capacity": 7}},
            "trainer",
            "5 groups are ready for t",
        ),
        (
            {},
            {"decision_age_s": 90.0, "ready": 0, "waiting_since": {"reward": 10}},
            "verifiers",
            "t served nothing for 90 s; of 10 groups 10 wait: a member has no reward and no score; "
            "see that its scorer runs (ScoreProducer), or name the reward when publishing: "
            "publish(reward=R)",
        ),
        (
            {},
            {"decision_age_s": 90.0, "waiting_since": {"reward": 10}},
            "trainer",
            "5 groups are ready for t",
        ),
        (
            {"watermark": 100, "published_age_s": 80.0},
            {"decision_age_s": 90.0, "ready": 0, "waiting": {"reward": 10}},
            "env workers",
            "no group ready (10 wait: a member has no reward and no score",
        ),
    ],
)
def test_stuck_stage_is_named_with_its_reason(
    partition: dict[str, Any], of_sampler: dict[str, Any], stage: str, reason: str
) -> None:
    (verdict,) = stuck(partition, of_sampler)
    assert verdict.stage == stage
    assert reason in verdict.reason


@pytest.mark.parametrize(
    ("partition", "of_sampler"),
    [
        ({}, {}),
        # A stage that waits for the one before it.
        ({}, {"ready": 0, "owner": ""}),
        ({}, {"ready": 0, "dropped_since": {"stale": 7}}),
        # The trainer dropped them itself, and waits for others.
        ({}, {"decision_age_s": 90.0, "ready": 0, "dropped_since": {"by_trainer": 7}}),
        # What waited before says nothing of a trainer that waits for groups in the making.
        ({}, {"decision_age_s": 90.0, "ready": 0, "waiting": {"eval": 10}}),
        # A trainer that waits for as many groups as its last batch had.
        ({}, {"decision_age_s": 90.0, "wanted": 6}),
        # Groups that wait for members, within their time.
        ({"published_age_s": 90.0, "flush_age_s": 90.0, "oldest_age_s": 100.0}, {}),
        # Partitions change hands; and without work nobody needs to have one.
        ({"held": None}, {}),
        ({"held": False, "watermark": 100, "oldest_age_s": None}, {}),
        # A run that is over.
        ({"published_age_s": 900.0}, {"over": True, "decision_age_s": 900.0}),
        ({"held": False}, {"over": True, "decision_age_s": 900.0, "open_batches": 3}),
    ],
)
def test_deployment_that_makes_progress_or_is_over_is_not_stuck(
    partition: dict[str, Any], of_sampler: dict[str, Any]
) -> None:
    assert stuck(partition, of_sampler) == ()


@pytest.mark.proves("F17", "F24")
@pytest.mark.parametrize("unacked", [0, 1])
@pytest.mark.parametrize(
    ("hindered", "told"),
    [
        ({"trouble": "disk full"}, "disk full"),
        ({"aside": "disk full"}, "disk full"),
        ({"held": False}, "ended or died"),
    ],
)
def test_nobody_behind_a_hindered_sealer_is_blamed(
    hindered: dict[str, Any], told: str, unacked: int
) -> None:
    behind = {"decision_age_s": 90.0, "ready": 0, "unacked": unacked, "wanted": 2}
    sealers = {"math": int("held" not in hindered)}
    (verdict,) = stuck({**hindered, "published_age_s": 80.0}, behind, sealers=sealers)
    assert verdict.stage == "sealers"
    assert told in verdict.reason


@pytest.mark.parametrize(("waiting", "stages"), [(2, []), (1, ["env workers"])])
def test_workers_that_all_wait_for_admission_are_not_blamed(
    waiting: int, stages: list[str]
) -> None:
    figures = Figures(
        partitions=(replace(HEALTHY_PARTITION, watermark=100, published_age_s=80.0),),
        samplers=(replace(HEALTHY_SAMPLER, decision_age_s=90.0, ready=0),),
        sealers={"math": 1},
        admission=(
            AdmissionFigures(environment="math", producers=2, waiting=waiting, told_by={"t": ""}),
        ),
    )
    assert [verdict.stage for verdict in stuck_stages(figures, CONFIG)] == stages


@pytest.mark.proves("F19", "F24")
@pytest.mark.parametrize("hindered", [{"trouble": "put aside: newer"}, {"aside": "newer"}])
@pytest.mark.parametrize(
    ("waited_h", "level", "told"),
    [
        (1.0, "warning", "10 records wait, and retention deletes the oldest in 167 hours"),
        (120.0, "warning", "in 48 hours (kafka.retention_hours 168). "),
        (127.0, "error", "in 41 hours (kafka.retention_hours 168). Act now"),
        (167.5, "error", "in 30 minutes (kafka.retention_hours 168). Act now"),
        (170.0, "error", "in 0 minutes"),
    ],
)
def test_partition_that_is_put_aside_is_an_error_before_retention_reaches_it(
    hindered: dict[str, Any], waited_h: float, level: str, told: str
) -> None:
    (verdict,) = stuck({**hindered, "oldest_age_s": waited_h * 3600}, {})
    assert (verdict.stage, verdict.level) == ("sealers", level)
    assert "math[0] is put aside, and all other partitions go on" in verdict.reason
    assert told in verdict.reason
    assert "newer. Then run" in verdict.reason


def test_run_that_is_over_still_names_what_was_lost() -> None:
    (verdict,) = stuck({"kept_from": 95}, {"over": True})
    assert "retention deleted 5 records" in verdict.reason


@pytest.mark.proves("F17")
@pytest.mark.parametrize(
    ("sealers", "owner", "reason"),
    [
        ({"math": 0}, "", "no sealer ever claimed them; run `rollstream seal`"),
        ({"math": 0}, "s2", "no sealer runs: s2 ended or died; run `rollstream seal`"),
        ({"math": 0, "code": 2}, "s2", "the sealers that run seal code only; restart one with a"),
        ({"math": 3}, "s2", "none of the 3 sealers of math has them"),
    ],
)
def test_partitions_without_a_sealer_say_why(
    sealers: dict[str, int], owner: str, reason: str
) -> None:
    (verdict,) = stuck({"held": False, "owner": owner}, {}, sealers=sealers)
    assert reason in verdict.reason


def test_every_stuck_stage_is_named_in_the_order_of_the_data() -> None:
    verdicts = stuck({"held": False}, {"open_batches": 3})
    assert [verdict.stage for verdict in verdicts] == ["sealers", "trainer"]


def test_partitions_of_one_environment_share_a_sentence_that_stays_short() -> None:
    rows = [replace(HEALTHY_PARTITION, partition=n, held=False) for n in range(64)]
    (verdict,) = stuck_stages(Figures(partitions=tuple(rows), sealers={"math": 0}), CONFIG)
    assert "640 records of math[0], math[1]" in verdict.reason
    assert "math[7] and 56 more wait" in verdict.reason


def test_missing_topics_are_named_alone() -> None:
    (verdict,) = stuck_stages(Figures(missing_topics=("a", "b")), CONFIG)
    assert verdict == Verdict(
        "topics", "a, b missing; run `rollstream topics create`", Alarm.MISSING_TOPICS
    )


def stuck(
    partition: dict[str, Any], of_sampler: dict[str, Any], **figures: Any
) -> tuple[Verdict, ...]:
    found = {
        "partitions": (replace(HEALTHY_PARTITION, **partition),),
        "samplers": (replace(HEALTHY_SAMPLER, **of_sampler),),
        "sealers": {"math": 1},
        **figures,
    }
    return stuck_stages(Figures(**found), CONFIG)


@pytest.mark.proves("F17")
@pytest.mark.parametrize(("unreadable", "stuck"), [(10, False), (11, True)])
def test_more_unreadable_entries_than_are_allowed_are_a_stuck_stage(
    unreadable: int, stuck: bool
) -> None:
    halves = [
        replace(HEALTHY_PARTITION, recent_settled=100, recent_unreadable=0),
        replace(HEALTHY_PARTITION, partition=1, recent_settled=0, recent_unreadable=0),
    ]
    halves[1] = replace(halves[1], recent_settled=unreadable, recent_unreadable=unreadable)
    section = EnvironmentConfig(max_unreadable_share=10 / 110)
    config = CONFIG.model_copy(update={"environments": {"math": section}})
    verdicts = stuck_stages(Figures(partitions=tuple(halves)), config)
    assert ["could not be read" in verdict.reason for verdict in verdicts] == [True] * stuck


def test_producers_that_wait_while_no_sampler_tells_them_are_named() -> None:
    waiting = AdmissionFigures(environment="math", producers=9, waiting=4, told_by={})
    figures = Figures(
        partitions=(HEALTHY_PARTITION,), samplers=(HEALTHY_SAMPLER,), admission=(waiting,)
    )
    ((stage, reason, *_),) = stuck_stages(figures, CONFIG)
    assert stage == "sampler"
    assert reason.startswith("4 of 9 producers of math wait to begin groups")
    assert "(t)" in reason
    assert "publish_policy" in reason
    for fine in (
        replace(waiting, told_by={"t": ""}),  # Then they wait for the trainer, as they should.
        replace(waiting, waiting=0),
    ):
        assert stuck_stages(replace(figures, admission=(fine,)), CONFIG) == ()
    over = replace(HEALTHY_SAMPLER, over=True)
    assert stuck_stages(replace(figures, samplers=(over,)), CONFIG) == ()
    other = replace(HEALTHY_SAMPLER, environments=("other",))
    assert stuck_stages(replace(figures, samplers=(over, other)), CONFIG) == ()
    again = replace(over, over=False)
    assert stuck_stages(replace(figures, samplers=(over, again)), CONFIG) != ()
