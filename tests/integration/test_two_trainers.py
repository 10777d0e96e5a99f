"""Two trainers live on one Kafka: each gets every group at its own pace, and acks for itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from harness.groups import GroupSpec, GroupWriter
from rollstream.consumers import create_deployment
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.sampler import Sampler
from rollstream.store.local import LocalBlobs
from rollstream.streams.broker import TopicPartition
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.topics.layout import Layout

WAIT_S = 60.0
GROUPS = 24
QUICK, SLOW = 2, 6  # Groups a step.


def config_of(root: Path, bootstrap: str) -> RollstreamConfig:
    settings = {"environments": ["math"], "max_policy_lag": -1}
    return RollstreamConfig.model_validate(
        {
            "kafka": {"bootstrap": bootstrap, "namespace": f"two-{root.name}"},
            "store": {"root": root.as_uri()},
            "environments": {"math": {"partitions": 1}},
            "samplers": {"quick": settings, "slow": settings},
        }
    )


def train(sampler: Sampler, groups: int, before_step: Callable[[int], None]) -> list[str]:
    """The groups that a whole run of this sampler trained on, so many a step."""
    found: list[str] = []
    step = sampler.resume(None)
    while len(found) < GROUPS:
        before_step(step)
        batch = sampler.next_batch(step, groups, timeout_s=WAIT_S)
        found += batch.sampled.group_ids
        sampler.ack(batch)
        sampler.checkpointed(step)
        step += 1
    return found


@pytest.mark.broker
@pytest.mark.proves("F6")
def test_two_live_trainers_each_get_every_group_at_their_own_pace_and_ack_apart(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    config = config_of(tmp_path, kafka_bootstrap)
    broker, store = KafkaBroker(kafka_bootstrap), LocalBlobs(tmp_path)
    create_deployment(config, broker=broker, store=store)
    log = TopicPartition(Layout(config.kafka.namespace).groups("math"), 0)
    slow_has_begun, quick_is_done = threading.Event(), threading.Event()

    def seal_next(step: int) -> None:
        """Groups come while both train: those of a step once it is asked for."""
        flushed = writer.flush(*(GroupSpec(example_id=f"ex-{step}-{n}") for n in range(QUICK)))
        sealed.extend(group.group_id for group in flushed.groups)
        if step == GROUPS // QUICK // 2:
            assert slow_has_begun.wait(WAIT_S)

    def hold_back(step: int) -> None:
        """The first step is done while the other trainer is at work, and the others after it."""
        if step == 1:
            slow_has_begun.set()
            assert quick_is_done.wait(WAIT_S)

    sealed: list[str] = []
    with (
        closing(broker),
        closing(GroupWriter(broker, log, store, environment="math")) as writer,
        Sampler("quick", config=config) as quick,
        Sampler("slow", config=config) as slow,
        ThreadPoolExecutor(2) as trainers,
    ):
        of_quick = trainers.submit(train, quick, QUICK, seal_next)
        of_slow = trainers.submit(train, slow, SLOW, hold_back)
        by_quick = of_quick.result(2 * WAIT_S)
        outcomes = [one.stats().outcomes for one in (quick, slow)]
        assert outcomes == [{"trained": GROUPS}, {"trained": SLOW}]
        quick_is_done.set()
        by_slow = of_slow.result(2 * WAIT_S)
        assert len(sealed) == GROUPS
        assert sorted(by_quick) == sorted(by_slow) == sorted(sealed)
        assert slow.stats().outcomes == {"trained": GROUPS}
