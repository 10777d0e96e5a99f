"""A look at a deployment whose store does not answer."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from harness.command_line import CommandLine
from harness.failing_blobs import PassingBlobs
from rollstream.console.services import Services, figures_of
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.store import Blobs, StoreError

LOOK_S = 60.0


def test_a_store_that_hangs_leaves_time_to_read_the_logs(tmp_path: Path) -> None:
    line = CommandLine(tmp_path)
    line.create_topics()

    def hanging(config: RollstreamConfig) -> Blobs:
        def hang(path: str) -> NoReturn:
            line.clock.advance(config.store.timeout_s)
            raise StoreError(f"{path}: the test hangs")

        blobs = PassingBlobs(line.blobs)
        blobs.read = hang  # type: ignore[method-assign]
        return blobs

    assert line.config.store.timeout_s >= LOOK_S
    services = Services(store=hanging, clock=line.clock)
    deadline = Deadline(LOOK_S, line.clock)
    figures = figures_of(services, line.config, line.broker(), deadline)
    assert "the test hangs" in figures.other_root[0]
    assert len(figures.partitions) == 2
    assert deadline.left_s() >= LOOK_S / 2
