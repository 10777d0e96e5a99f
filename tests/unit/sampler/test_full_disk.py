"""A sampler whose disk is full, and a command that writes to one."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.brokers import until
from harness.command_line import CONFIG
from harness.failing_blobs import FullBlobs
from harness.groups import GroupSpec
from harness.published_run import Run
from harness.sampler_worlds import LocalWorld, config_of, new_name
from harness.scraping import ANY_PORT, get
from rollstream.sampler import Sampler
from rollstream.sampler.engine import snapshots
from rollstream.store import Bytes, Pieces
from rollstream.store.errors import StoreFull
from rollstream.store.layout import batch_path
from rollstream.store.local import LocalBlobs
from rollstream.streams.memory import MemoryBroker, MemoryLogs

pytestmark = pytest.mark.proves("F24")
STEPS = 3


class FullDisk(FullBlobs):
    """It takes no file that is written over, either."""

    def replace(self, path: str, data: Bytes | Pieces) -> None:
        if self.refusing:
            self.refused += 1
            raise StoreFull(f"{path}: the test's disk is full")
        self.inner.replace(path, data)


def test_a_full_disk_stops_no_step_metrics_name_it_and_the_next_start_writes_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "EVENTS_BETWEEN", 1)
    monkeypatch.setattr(snapshots, "SECONDS_BETWEEN", 0.0)
    disk = FullDisk(LocalBlobs(tmp_path))
    disk.refusing = False
    config = config_of("file:///unused", new_name(), admission=False)
    config = config.model_copy(update={"metrics": ANY_PORT})
    world = LocalWorld(MemoryBroker(MemoryLogs()), disk, config)
    world.writer().flush(*(GroupSpec(example_id=f"ex-{number}") for number in range(STEPS)))
    disk.refusing = True
    with Sampler(world.name, config=config, broker=world.broker(), store=disk) as sampler:
        sampler.resume(None)
        for step in range(STEPS):
            batch = sampler.next_batch(step, 1, timeout_s=0.0)
            sampler.ack(batch)
            sampler.checkpointed(step)
        until(lambda: 'rollstream_store_failures_total{call="replace"' in get("/metrics")[1])
        assert get("/healthz")[0] == 200
    assert disk.refused
    paths = [batch_path(world.name, 1, step) for step in range(STEPS)]
    assert not any(map(disk.info, paths))
    disk.refusing = False
    with Sampler(world.name, config=config, broker=world.broker(), store=disk) as sampler:
        sampler.publish_policy(0, policy_version="step-0")
        until(lambda: all(map(disk.info, paths)))
    world.close()


def test_a_command_that_writes_to_a_full_disk_ends_with_1_and_says_so(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, CONFIG)
    run.publish("ex-0")
    run.seal(1)
    done = run.line.run("report", "--sampler", "trainer-a", "--html", "/dev/full", columns="400")
    assert done.exit_code == 1
    assert "no space is left for what this command writes" in done.output
    assert run.line.run("audit").exit_code == 0
