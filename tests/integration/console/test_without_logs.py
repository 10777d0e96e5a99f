"""Kafka's disk is gone and the store is there: what the files say, and how the trainer goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.kafka import KafkaFactory
from rollstream.console.app import build
from rollstream.consumers import InlineExecutor, Sealer
from rollstream.producers import RolloutProducer
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.config.load import load_config
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Sampler
from rollstream.store.layout import batch_path

GROUPS = 5
STEPS = 3
TIMEOUT_S = 60.0
CONFIG = """
[kafka]
bootstrap = "{bootstrap}"
generation = {generation}
[store]
root = "{root}"
[environments.math]
partitions = 1
target_group_size = 2
flush_interval_s = 0.15
[samplers.{sampler}]
environments = ["math"]
"""


def configure(folder: Path, sampler: str, bootstrap: str, generation: int) -> Path:
    file, root = folder / f"{sampler}.toml", (folder / "root").as_uri()
    file.write_text(
        CONFIG.format(bootstrap=bootstrap, generation=generation, root=root, sampler=sampler)
    )
    return file


def command(*arguments: str, config: Path) -> str:
    done = CliRunner().invoke(build(), [*arguments, "--config", str(config)])
    assert done.exit_code == 0, done.output
    return done.stdout


def seal_groups(config: Path) -> None:
    settings = load_config(config)
    kafka = settings.kafka
    with RolloutProducer(
        kafka.bootstrap, environment="math", generation=kafka.generation
    ) as producer:
        for group in range(GROUPS):
            for member in range(2):
                producer.publish(
                    example_id=f"ex-{group}",
                    rollout_uid=f"{group}-{member}",
                    group_uid=f"group {group}",
                    group_size=2,
                    policy_version="step-0",
                    weight_step=0,
                    prompt_tokens=[1, 2],
                    output_tokens=[3, member],
                    logprobs=[-0.5, -0.5],
                    reward=float(member),
                )
    with Sealer(settings, workers=InlineExecutor()) as sealer:
        deadline = Deadline(TIMEOUT_S, SystemClock())
        while sealer.stats().groups < GROUPS:
            assert not deadline.passed()
            sealer.step(Deadline(1.0, SystemClock()))


@pytest.mark.broker
@pytest.mark.proves("F1")
def test_after_kafkas_data_is_deleted_files_say_what_was_decided_and_the_trainer_goes_on(
    own_kafka: KafkaFactory, tmp_path: Path
) -> None:
    kafka = own_kafka()
    config = configure(tmp_path, "trainer-a", kafka.bootstrap, 1)
    command("topics", "create", config=config)
    seal_groups(config)
    used: list[str] = []
    with Sampler("trainer-a", config=config) as sampler:
        for step in range(STEPS):
            batch = sampler.next_batch(step, 1)
            used += batch.sampled.group_ids
            sampler.ack(batch)
    kafka.stop()
    shutil.rmtree(tmp_path / "kafka-1")
    lost = tmp_path / "root" / batch_path("trainer-a", 0, 1)
    lost.unlink()

    found: dict[str, Any] = json.loads(
        command("without-logs", "--sampler", "trainer-a", "--json", config=config)
    )
    assert [(one["first"], one["last"], one["known"]) for one in found["steps"]] == [
        (0, 0, "in_file"),
        (1, 1, "in_no_file"),
        (2, 2, "in_file"),
    ]
    assert len(found["ready"]["math"]) == GROUPS - 2
    assert {*found["ready"]["math"]} & {used[0], used[2]} == set()

    again = configure(tmp_path, "trainer-b", own_kafka().bootstrap, 2)
    command("topics", "create", config=again)
    seal_groups(again)
    with Sampler("trainer-b", config=again) as sampler:
        assert sampler.resume(STEPS - 1) == STEPS
        batch = sampler.next_batch(STEPS, GROUPS, timeout_s=TIMEOUT_S)
        assert sampler.stats().ready == {}
        sampler.ack(batch)
