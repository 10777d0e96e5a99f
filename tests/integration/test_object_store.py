"""A deployment whose root is in an S3 bucket: every process, command and reader works on it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import duckdb
import polars as pl
import pytest
import ray

from harness.importing import group
from harness.s3_server import S3Server
from harness.whole_way import (
    GROUP_SIZE,
    GROUPS,
    TIMEOUT_S,
    Deployment,
    contents,
    goes_the_whole_way,
    publish,
    train,
)
from rollstream.consumers import write_rollout_groups
from rollstream.producers import ScoreProducer
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.config.load import load_config
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Batch, Sampler, SamplerView
from rollstream.store import Blobs, open_dataset, open_store
from rollstream.store.layout import scores_of
from rollstream.store.scores import open_scores

ROWS = GROUPS * GROUP_SIZE - 1


@pytest.fixture
def deployment(kafka_bootstrap: str, s3: S3Server, tmp_path: Path) -> Iterator[Deployment]:
    """Its Ray has the credentials: it is started once they are in the environment."""
    with (
        tempfile.TemporaryDirectory(prefix="s3-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        ray.shutdown()
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", None)
        made = Deployment(kafka_bootstrap, tmp_path, s3.store(uuid4().hex), "zstd")
        yield made
        made.close()
        ray.shutdown()


def opened(deployment: Deployment) -> Blobs:
    return open_store(load_config(deployment.config).store)


@pytest.mark.broker
@pytest.mark.proves("A23")
def test_rollouts_go_the_whole_way_and_every_reader_reads_them(deployment: Deployment) -> None:
    batches = goes_the_whole_way(deployment)
    assert json.loads(deployment.run("status", "--json"))["partitions"]
    _served_by_everybody(deployment, batches)
    _read_by_other_programs(deployment)


def _served_by_everybody(deployment: Deployment, batches: list[Batch]) -> None:
    """The same bytes from the actor, from a rank that reads for itself, from a view and from a
    sampler in this process, which takes over."""
    step = batches[1].step
    with deployment.attach() as sampler:
        for rank in range(2):
            by_rank = (
                sampler.next_batch(step, GROUPS // 2, dp_rank=rank, dp_size=2, payloads=payloads)
                for payloads in ("sampler", "rank")
            )
            assert contents(next(by_rank)) == contents(next(by_rank))
    with SamplerView(deployment.sampler, config=deployment.config) as view:
        assert contents(view.batch(step)) == contents(batches[1])
    deployment.close()
    with Sampler(deployment.sampler, config=deployment.config) as sampler:
        assert contents(sampler.next_batch(step, GROUPS // 2)) == contents(batches[1])


def _read_by_other_programs(deployment: Deployment) -> None:
    store = load_config(deployment.config).store
    dataset = open_dataset(store)
    assert dataset.count_rows() == ROWS
    rows = dataset.to_table()
    counted = "SELECT count(*), count(DISTINCT rollout_uid) FROM rows"
    assert duckdb.sql(counted).fetchall() == [(ROWS, ROWS)]
    assert rows.num_rows == ROWS
    files = deployment.run("files").splitlines()
    assert all(file.startswith(f"{store.root}/groups/") for file in files)
    options = {
        "aws_endpoint_url": store.endpoint,
        "aws_region": store.region,
        "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "aws_allow_http": "true",
    }
    with_polars = pl.scan_parquet(files, storage_options=options).select("rollout_uid").collect()
    assert sorted(with_polars["rollout_uid"]) == sorted(rows["rollout_uid"].to_pylist())


@pytest.mark.broker
@pytest.mark.proves("A18", "A23", "I7")
def test_late_scores_are_filed_and_files_are_deleted_once_all_is_trained(
    deployment: Deployment,
) -> None:
    deployment.run("topics", "create")
    with deployment.sealer():
        published = publish(deployment)
        batches = train(deployment, published)
        with ScoreProducer(
            deployment.bootstrap,
            environment="math",
            scorer="tests",
            namespace=deployment.namespace,
        ) as scores:
            for uid in published:
                scores.publish(rollout_uid=uid, reward=0.5)
        with deployment.attach() as trainer:
            trainer.checkpointed(batches[1].step)
        assert deployment.run("files") != ""
        deployment.run("retain", "--older-than", "0s")
        assert deployment.run("files") == ""
        _wait_until_gone(opened(deployment))
        deployment.run("audit", "--digests")
    blobs = opened(deployment)
    assert next(blobs.list(scores_of("math", 1), limit=1), None) is not None
    assert open_scores(blobs, "math").num_rows == ROWS
    assert open_dataset(load_config(deployment.config).store).count_rows() == 0


def _wait_until_gone(blobs: Blobs) -> None:
    deadline = Deadline(TIMEOUT_S, SystemClock())
    while next(blobs.list("groups/", limit=1), None) is not None:
        assert not deadline.passed(), "retired files are still there"
        deadline.wait(0.2)


@pytest.mark.broker
@pytest.mark.proves("A23", "F1")
def test_without_its_logs_the_files_say_what_was_decided(deployment: Deployment) -> None:
    deployment.run("topics", "create")
    with deployment.sealer():
        batches = train(deployment, publish(deployment))
    deployment.close()
    found = json.loads(deployment.run("without-logs", "--sampler", deployment.sampler, "--json"))
    assert [(one["first"], one["last"], one["known"]) for one in found["steps"]] == [
        (batches[0].step, batches[1].step, "in_file")
    ]


@pytest.mark.broker
@pytest.mark.proves("A9", "A23")
def test_groups_that_a_program_has_in_hand_are_served_once(deployment: Deployment) -> None:
    deployment.run("topics", "create")
    config = load_config(deployment.config)
    groups = [group(str(number)) for number in range(3)]
    with deployment.sealer():
        for imported in (3, 0):
            report = write_rollout_groups(config.store.root, groups, config=config)
            assert (report.imported, report.skipped) == (imported, 3 - imported)
        with deployment.attach() as sampler:
            sampler.resume(None)
            batch = sampler.next_batch(0, 3)
            assert sorted(batch.uids) == sorted(
                one.rollout_uid for group in groups for one in group.rollouts
            )
        deployment.run("audit", "--digests")
    assert next(opened(deployment).list("staging/", limit=1), None) is None
