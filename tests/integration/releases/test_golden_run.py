"""A run of version 1 of ``ingest_record`` goes on under the newest one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from harness.events import GOLDEN
from harness.release_process import World, publish, seal
from rollstream.sampler import Sampler
from rollstream.sampler.history import check_from_files
from rollstream.schemas.records import RolloutRecord
from rollstream.store import open_dataset, read_rows
from rollstream.store.layout import GROUPS

AGAIN = [-0.25, -0.5, -0.75]


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three sealed groups (``plain``, ``whole``, ``summed``) that step 0 was served with, and two
    that are pending: ``late``, and the first member of ``mixed``."""
    shutil.copytree(GOLDEN / "run.v1", tmp_path, dirs_exist_ok=True)
    return World(tmp_path)


def files(world: World) -> list[Path]:
    return sorted((Path(world.blobs.root) / GROUPS).rglob("*.parquet"))


def holds(world: World) -> None:
    done = world.run("audit", "--digests")
    assert (done.exit_code, "the audit holds" in done.stdout) == (0, True), done.output


def rebuilt(world: World, step: int) -> bool:
    """Whether the files give the batch with the digest that was recorded."""
    return check_from_files("trainer-a", step, config=world.config, store=world.blobs).same


def served(world: World, step: int, groups: int) -> dict[str, RolloutRecord]:
    """The rollouts of the next step, by uid."""
    with Sampler(
        "trainer-a", config=world.config, broker=world.broker(), store=world.blobs
    ) as sampler:
        sampler.resume(step - 1)
        batch = sampler.next_batch(step, groups, timeout_s=30, columns=("logprob_sums",))
        assert batch.logprob_sums is not None
        assert batch.logprob_sums.tolist() == [-1.5] * len(batch)
        found = {r.rollout_uid: r for group in range(groups) for r in batch.records(group)}
        sampler.ack(batch)
    return found


@pytest.mark.proves("F19")
def test_what_was_sealed_and_served_holds_and_is_rebuilt(world: World) -> None:
    holds(world)
    assert rebuilt(world, 0)


@pytest.mark.proves("F19")
def test_files_of_version_1_are_read_under_the_new_names(world: World) -> None:
    stored: dict[str, dict[str, Any]] = {}
    for file in files(world):
        rows = read_rows(world.blobs, str(file.relative_to(world.blobs.root)))
        for row, uid in enumerate(rows.scalars["rollout_uid"]):
            old = rows.arrays.get("old_logprobs")
            values = None if old is None else old.row(row)
            stored[uid] = {
                "old_logprobs": None if values is None else values.tolist(),
                "old_policy_version": rows.scalars["old_policy_version"][row],
                "old_logprob_sum": float(rows.scalars["old_logprob_sum"][row]),
                "logprob_sum": float(rows.scalars["logprob_sum"][row]),
            }
    whole = stored["whole-0"]
    assert (whole["old_logprobs"], whole["old_policy_version"]) == (AGAIN, "step-1")
    assert np.isnan([whole["old_logprob_sum"], whole["logprob_sum"]]).all()
    assert stored["summed-1"]["old_logprob_sum"] == -1.5
    table = open_dataset(world.blobs.root).to_table()
    assert {"actor_logprobs", "old_logprobs"} <= set(table.schema.names)


@pytest.mark.proves("F19")
def test_what_was_pending_is_sealed_and_trained_on_with_what_newer_producers_publish(
    world: World,
) -> None:
    before = set(files(world))
    member = {"rollout_uid": "mixed-1", "group_uid": "mixed", "group_size": 2}
    publish(world, [{**member, "old_logprobs": AGAIN, "old_policy_version": "step-1"}])
    assert seal(world)["groups"] == 2
    holds(world)
    assert rebuilt(world, 0)
    records = served(world, 1, 2)
    assert {*records} == {"late-0", "late-1", "mixed-0", "mixed-1"}
    for uid in ("late-0", "mixed-1"):
        of_trainer = records[uid].old_logprobs
        assert isinstance(of_trainer, np.ndarray)
        assert of_trainer.tolist() == AGAIN
    assert records["mixed-0"].old_logprobs == -1.5
    assert {record.old_policy_version for record in records.values()} == {"step-1"}
    assert records["late-0"].actor_logprobs is records["late-0"].logprobs
    assert records["late-0"].actor_policy_version == "step-0"
    for file in set(files(world)) - before:
        assert not [n for n in pq.read_schema(file).names if n.startswith("actor_")]
