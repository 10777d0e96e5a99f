"""``rollstream monitor`` shows what ``status`` says to Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from harness.command_line import CONFIG, CommandLine
from harness.failing_blobs import PassingBlobs
from harness.scraping import addresses, get, scraped
from rollstream.runtime.clock import ManualClock
from rollstream.store import StoreRefused

WAIT_S = 30.0
SHOWN = f"{CONFIG}[metrics]\nport = 0\n"


class PausingClock(ManualClock):
    """Whoever waits pauses until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.paused, self.on = threading.Event(), threading.Event()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.paused.set()
        assert self.on.wait(WAIT_S)
        self.on.clear()
        return super().wait(event, timeout_s)

    def let_look(self) -> None:
        """Returns after the next look."""
        self.paused.clear()
        self.on.set()
        assert self.paused.wait(WAIT_S)


@contextmanager
def monitored(line: CommandLine) -> Iterator[PausingClock]:
    """The command runs, and has looked once."""
    clock = line.clock = PausingClock()
    command = threading.Thread(target=line.run, args=("monitor",))
    command.start()
    try:
        assert clock.paused.wait(WAIT_S)
        yield clock
    finally:
        line.stopping.set()
        clock.on.set()
        command.join(WAIT_S)
    assert not command.is_alive()
    assert addresses() == []


def test_a_stage_that_is_stuck_is_a_series_until_it_is_mended(tmp_path: Path) -> None:
    line = CommandLine(tmp_path, SHOWN)
    stuck = "rollstream_stuck"
    with monitored(line) as clock:
        assert get("/readyz") == (200, "ok\n")
        values = scraped()
        # Labels in the order of their names: alarm, level, stage.
        assert values[stuck, "missing_topics", "error", "topics"] == 1
        line.create_topics()
        clock.let_look()
        values = scraped()
        assert (stuck, "missing_topics", "error", "topics") not in values
        assert values[stuck, "never_published", "error", "env workers"] == 1
        assert values["rollstream_sealers", "math"] == 0
        assert values["rollstream_backlog_records", "math"] == 0
        assert values["rollstream_look_age_seconds",] == 0
        assert values["rollstream_look_seconds_count",] == 2


def test_a_store_that_is_away_is_an_alarm_as_status_has_it(tmp_path: Path) -> None:
    line = CommandLine(tmp_path, SHOWN)
    line.create_topics()
    with monitored(line) as clock:
        assert ("rollstream_stuck", "other_root", "error", "store") not in scraped()
        line.opened = away = PassingBlobs(line.blobs)
        away.read = refuse  # type: ignore[method-assign]
        clock.let_look()
        assert get("/readyz") == (200, "ok\n")
        values = scraped()
        assert values["rollstream_stuck", "other_root", "error", "store"] == 1
        assert values["rollstream_backlog_records", "math"] == 0
        assert values["rollstream_look_age_seconds",] == 0


def refuse(path: str) -> NoReturn:
    raise StoreRefused(f"{path}: the test refuses it")


def test_a_look_that_does_not_end_is_told(tmp_path: Path) -> None:
    with monitored(CommandLine(tmp_path, SHOWN)) as clock:
        clock.advance(110.0)  # A look may take its whole timeout, 60 s.
        assert get("/healthz")[0] == 200
        clock.advance(20.0)
        assert get("/healthz")[0] == 503
        assert get("/readyz")[0] == 503
        assert scraped()["rollstream_look_age_seconds",] == 130


def test_without_a_port_it_says_where_to_set_one(tmp_path: Path) -> None:
    done = CommandLine(tmp_path).run("monitor")
    assert done.exit_code == 1
    assert "metrics.port is not set" in done.output
