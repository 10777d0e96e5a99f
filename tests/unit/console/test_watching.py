"""The full screen of ``status --watch``, by its keys and by what it shows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from textual.pilot import Pilot

from harness.shown_figures import PARTITION, SAMPLER, SAMPLERS
from rollstream.console.status_view import Look
from rollstream.console.watching import WatchStatus
from rollstream.runtime.clock import Clock, ManualClock, SystemClock
from rollstream.status import Alarm, Figures, Verdict
from rollstream.streams.errors import BrokerUnavailable

STUCK = Verdict(
    "sealers",
    "no sealer holds math[1], and 78 records wait; run `rollstream seal`",
    Alarm.HELD_BY_NO_SEALER,
)
WAIT_S = 30.0


def look_of(groups: int = 7, *stuck: Verdict) -> Look:
    partition = replace(PARTITION, partition=1, held=False, groups=groups)
    return Look(Figures(partitions=(partition,), samplers=(SAMPLER,)), stuck, SAMPLERS)


class Broker:
    """What looks find: as many groups as looks before it, unless it is away, or does not answer.

    Attributes:
        away: why looks fail.
        answers: looks wait until it is set.
    """

    def __init__(self, *stuck: Verdict) -> None:
        self.looks = 0
        self.away: Exception | None = None
        self.answers = threading.Event()
        self.answers.set()
        self._stuck = stuck

    def look(self) -> Look:
        assert self.answers.wait(WAIT_S)
        if self.away is not None:
            raise self.away
        self.looks += 1
        return look_of(1_000 + self.looks, *self._stuck)

    def screen(
        self,
        clock: Clock | None = None,
        stopping: threading.Event | None = None,
        until_stuck: bool = False,
    ) -> WatchStatus:
        """Of the looks, one after another."""
        return WatchStatus(
            self.look,
            "kafka:9092",
            clock=clock or SystemClock(),
            stopping=stopping or threading.Event(),
            every_s=0.01,
            until_stuck=until_stuck,
        )


def text(screen: WatchStatus) -> str:
    """What stands on the screen, a line a row."""
    return "\n".join(strip.text for strip in screen.screen._compositor.render_strips())


async def until(pilot: Pilot[Any], found: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not found():
            await pilot.pause(0.01)


@pytest.mark.proves("F17")
@pytest.mark.parametrize("columns", [80, 120])
def test_every_stage_and_what_is_stuck_are_whole_on_the_screen(columns: int) -> None:
    async def run() -> str:
        screen = Broker(STUCK).screen()
        async with screen.run_test(size=(columns, 30)) as pilot:
            await until(pilot, lambda: "decided" in text(screen) and "q Quit" in text(screen))
            return text(screen)

    rows = [row.strip() for row in asyncio.run(run()).splitlines()]
    assert rows[0].startswith("kafka:9092 · seen ")
    assert "stuck: sealers – no sealer holds math[1], and 78 records wait;" in " ".join(rows)
    (sealing,) = [row for row in rows if row.startswith("math[1]")]
    assert "1,234.5" in sealing
    assert sealing.endswith("sealer-2, gone")
    (sampling,) = [row for row in rows if row.endswith("node-7:41234")]
    assert sampling.startswith("trainer-a")
    assert "q Quit" in rows[-1]
    assert "p Pause" in rows[-1]


def test_q_and_ctrl_c_quit_while_a_look_waits_for_the_broker() -> None:
    async def run(key: str) -> int | None:
        broker, clock = Broker(), ManualClock()
        broker.answers.clear()
        screen = broker.screen(clock=clock)
        try:
            async with screen.run_test() as pilot:
                clock.advance(12)
                await until(pilot, lambda: "no answer for 12.0 s" in text(screen))
                await pilot.press(key)
                return screen.return_code
        finally:
            broker.answers.set()

    assert asyncio.run(run("q")) == asyncio.run(run("ctrl+c")) == 0


@pytest.mark.proves("F24")
def test_a_broker_that_is_away_is_shown_above_the_last_look_and_recovers() -> None:
    async def run() -> None:
        broker = Broker()
        screen = broker.screen()
        async with screen.run_test(size=(100, 30)) as pilot:
            await until(pilot, lambda: "1,001" in text(screen) or broker.looks > 1)
            broker.away = BrokerUnavailable("Kafka at kafka:9092 does not answer")
            await until(pilot, lambda: "Kafka at kafka:9092 does not answer" in text(screen))
            assert "trainer-a" in text(screen)
            broker.away = None
            await until(pilot, lambda: "does not answer" not in text(screen))
            seen = broker.looks
            await until(pilot, lambda: broker.looks > seen)

    asyncio.run(run())


def test_p_keeps_what_is_shown_until_p_is_pressed_again() -> None:
    async def run() -> None:
        broker = Broker()
        screen = broker.screen()
        async with screen.run_test(size=(100, 30)) as pilot:
            await until(pilot, lambda: "math[1]" in text(screen))
            await pilot.press("p")
            await until(pilot, lambda: "paused, p goes on" in text(screen))

            def row() -> str:
                return next(row for row in text(screen).splitlines() if "math[1]" in row)

            shown = row()
            broker.answers.clear()
            await pilot.pause(0.1)
            assert row() == shown
            broker.answers.set()
            await pilot.press("p")
            await until(pilot, lambda: row() != shown)

    asyncio.run(run())


def test_a_signal_ends_it() -> None:
    async def run() -> WatchStatus:
        stopping = threading.Event()
        screen = Broker().screen(stopping=stopping)
        async with screen.run_test() as pilot:
            stopping.set()
            await until(pilot, lambda: not screen.is_running)
        return screen

    assert asyncio.run(run()).return_value is None


def test_it_ends_with_the_look_that_finds_a_stage_stuck_if_asked_for() -> None:
    async def run(*stuck: Verdict) -> Look | None:
        screen = Broker(*stuck).screen(until_stuck=True)
        async with screen.run_test() as pilot:
            await until(pilot, lambda: not screen.is_running)
        return screen.return_value

    found = asyncio.run(run(STUCK))
    assert found is not None
    assert found.stuck == (STUCK,)


def test_a_defect_ends_it_and_is_raised() -> None:
    async def run() -> WatchStatus:
        broker = Broker()
        broker.away = ZeroDivisionError("a defect")
        screen = broker.screen()
        async with screen.run_test() as pilot:
            await until(pilot, lambda: not screen.is_running)
        return screen

    screen = asyncio.run(run())
    with pytest.raises(ZeroDivisionError, match="a defect"):
        screen.raise_defect()
