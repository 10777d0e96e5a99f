"""librdkafka's log without its repetitions."""

from __future__ import annotations

import logging

from rollstream.streams.kafka.properties import LINES_MAX, QUIET_S, RepeatFilter

AWAY = "FAIL [thrd:kafka:9092/bootstrap]: Connection refused (after {}ms in state CONNECT)"


def line(text: str, at_s: float) -> logging.LogRecord:
    record = logging.LogRecord("rollstream.kafka", logging.ERROR, "", 0, text, None, None)
    record.created = at_s
    return record


def test_a_line_that_differs_in_its_timing_only_is_said_once_in_a_while() -> None:
    repeats = RepeatFilter()
    said = [repeats.filter(line(AWAY.format(n % 7), n * 0.05)) for n in range(400)]
    assert [n for n, passed in enumerate(said) if passed] == [0, round(QUIET_S / 0.05)]


def test_another_line_is_said_at_once() -> None:
    repeats = RepeatFilter()
    assert repeats.filter(line(AWAY.format(1), 0.0))
    assert repeats.filter(line("FAIL [thrd:kafka:9092/1]: Disconnected", 0.0))


def test_what_is_remembered_is_bounded() -> None:
    repeats = RepeatFilter()
    assert all(repeats.filter(line(f"line {n}", 0.0)) for n in range(LINES_MAX + 1))
    assert repeats.filter(line("line 0", 0.0)), "the first was to be forgotten"
    assert not repeats.filter(line(f"line {LINES_MAX}", 0.0))
