"""A real env worker on a real broker, killed between two records of one flush, and between the
produce call and the delivery report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.history import problems_of
from harness.producer_process import uids_of
from harness.sealer_process import SealerProcess
from harness.sealing import SealWorld
from rollstream.consumers import audit

pytestmark = pytest.mark.broker

GROUPS = 8
DIE_AT = 2  # Of the records of one flush, one for each partition that has a group.
TESTS = Path(__file__).resolve().parent.parent


def work(world: SealWorld, *, die_at: int = 0, written: bool = False) -> int:
    """An env worker from its start to its end; the exit code."""
    kafka = world.config.kafka
    (environment,) = world.config.environments
    arguments = ["--bootstrap", kafka.bootstrap, "--namespace", kafka.namespace]
    arguments += ["--environment", environment, "--groups", str(GROUPS), "--die-at", str(die_at)]
    arguments += ["--written"] * written
    return subprocess.run(
        [sys.executable, "-m", "harness.producer_process", *arguments],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        timeout=150,
        check=False,
    ).returncode


@pytest.mark.proves("F1", "A4", "I2")
@pytest.mark.parametrize("written", [False, True], ids=["between_records", "before_report"])
def test_a_worker_that_is_killed_and_sends_again_loses_and_doubles_nothing(
    kafka_bootstrap: str, tmp_path: Path, written: bool
) -> None:
    with SealWorld(kafka=kafka_bootstrap, root=tmp_path, target_group_size=2) as world:
        sealer = SealerProcess(world.config)
        try:
            assert work(world, die_at=DIE_AT, written=written) == -signal.SIGKILL
            assert work(world) == 0
            world.until()
            assert sealer.stop() == 0
        finally:
            sealer.close()
        row = audit(world.config, broker=world.broker, store=world.blobs).environment("math")
        world.published = row.published
        sent_again = len(uids_of(GROUPS))
        # The first record of the killed process is in the log; its second, and last, where written.
        assert sent_again < row.published <= 2 * sent_again
        assert (row.published == 2 * sent_again) == written
        assert problems_of(world, uids_of(GROUPS)) == []
        assert len(world.groups()) == GROUPS
