"""How long a broker's start is waited for, by what it writes to its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollstream.console.broker.recovery import RecoveryDeadline
from rollstream.runtime.clock import ManualClock

TIMEOUT_S = 60.0


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "broker.log"


def test_a_broker_that_writes_is_waited_for_beyond_the_time_out(log: Path) -> None:
    clock = ManualClock()
    deadline = RecoveryDeadline(log, TIMEOUT_S, clock)
    for line in ("recovering 1", "recovering 2", "recovering 3"):
        clock.advance(TIMEOUT_S - 1)
        with log.open("a") as file:
            file.write(line)
        assert not deadline.passed()
    clock.advance(TIMEOUT_S)
    assert deadline.passed()


def test_a_log_that_was_rolled_over_is_written_to(log: Path) -> None:
    log.write_text("a long first file")
    clock = ManualClock()
    deadline = RecoveryDeadline(log, TIMEOUT_S, clock)
    clock.advance(TIMEOUT_S - 1)
    log.rename(log.with_suffix(".1"))
    log.write_text("short")
    assert not deadline.passed()
    clock.advance(TIMEOUT_S - 1)
    assert not deadline.passed()


def test_a_broker_that_only_writes_is_not_waited_for_without_an_end(log: Path) -> None:
    clock = ManualClock()
    deadline = RecoveryDeadline(log, TIMEOUT_S, clock)
    looks = 0
    while not deadline.passed():
        looks += 1
        assert looks < 1000
        clock.advance(TIMEOUT_S / 2)
        with log.open("a") as file:
            file.write("still recovering\n")
    assert looks > 2
