"""Files from their flush to their end, with processes as users run them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.whole_way import GROUPS, TIMEOUT_S, Deployment, publish, train
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import NotEnoughGroups
from rollstream.store import open_dataset

SECOND = """
[samplers.{name}]
environments = ["math"]
"""


@pytest.mark.broker
@pytest.mark.proves("I7", "I10")
def test_files_are_deleted_once_all_is_trained_and_a_new_sampler_goes_on_without_them(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    deployment = Deployment(kafka_bootstrap, tmp_path)
    deployment.run("topics", "create")
    try:
        with deployment.sealer():
            batches = train(deployment, publish(deployment))
            files = deployment.run("files").splitlines()
            asked = deployment.run("retain", "--older-than", "0s")
            assert "math: " in asked
            with deployment.attach() as trainer:
                again = trainer.next_batch(batches[1].step, GROUPS // 2)
                assert again.digest == batches[1].digest, "its files are there"
                trainer.checkpointed(batches[1].step)
            planned = deployment.run("retain", "--older-than", "0s", "--dry-run")
            assert "held back" not in planned
            deployment.run("retain", "--older-than", "0s")
            assert deployment.run("files") == ""
            # Its actor records by itself that it knows.
            wait_until_gone([Path(file) for file in files])
            deployment.run("audit", "--digests")
            assert open_dataset(tmp_path / "store").count_rows() == 0
            begin_anew(deployment)
    finally:
        deployment.close()


def wait_until_gone(files: list[Path]) -> None:
    deadline = Deadline(TIMEOUT_S, SystemClock())
    while any(file.exists() for file in files):
        assert not deadline.passed(), "retired files are still there"
        deadline.wait(0.2)


def begin_anew(deployment: Deployment) -> None:
    """A new sampler reads the logs from their beginning, and serves what comes."""
    name = f"{deployment.sampler}-anew"
    with deployment.config.open("a", encoding="utf-8") as config:
        config.write(SECOND.format(name=name))
    deployment.run("topics", "create")
    assert "math: 0 files" in deployment.run("retain", "--older-than", "0s", "--dry-run")
    first, deployment.sampler = deployment.sampler, name
    try:
        with deployment.attach() as trainer:
            step = trainer.resume(None)
            with pytest.raises(NotEnoughGroups):
                trainer.next_batch(step, 1, timeout_s=1.0)
            publish(deployment)
            assert trainer.next_batch(step, GROUPS, timeout_s=TIMEOUT_S).num_groups == GROUPS
    finally:
        deployment.close()
        deployment.sampler = first
