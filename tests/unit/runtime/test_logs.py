"""Log lines as JSON: what stands in a line, and that nothing but such lines is written."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from harness.kept_logging import kept_logging
from rollstream.runtime import logs
from rollstream.schemas.ids import PartitionAddress

NAME = "rollstream.test_logs"


@pytest.fixture(autouse=True)
def _logging_stays() -> Iterator[None]:
    with kept_logging():
        yield


def logged(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The only line of our logger: threads of other tests may log meanwhile."""
    lines = map(json.loads, capsys.readouterr().err.splitlines())
    (found,) = [line for line in lines if line["logger"] == NAME]
    assert isinstance(found, dict)
    return found


def test_a_line_has_time_level_logger_message_and_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("json")
    logging.getLogger(NAME).info("sealed %d\ngroups", 7, extra={"_added_by_ray": 1})
    found = logged(capsys)
    time = datetime.fromisoformat(found.pop("time"))
    assert time.utcoffset() == timedelta(0)
    assert datetime.now(UTC) - time < timedelta(minutes=5)
    assert isinstance(found.pop("process"), int)
    assert found == {"level": "INFO", "logger": NAME, "message": "sealed 7\ngroups"}


def test_microseconds_are_there_if_they_are_0() -> None:
    record = logging.makeLogRecord({"created": 1_700_000_000.0, "msg": "x"})
    found = json.loads(logs.JsonFormatter().format(record))
    assert found["time"] == "2023-11-14T22:13:20.000000+00:00"


def test_extra_and_named_tuples_are_fields_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("json")
    address = PartitionAddress("math", 1, 3)
    logging.getLogger(NAME).warning(
        "%s: put aside", address, extra={"offset": 12, "of": {"a": [1]}}
    )
    found = logged(capsys)
    named = {"environment": "math", "generation": 1, "partition": 3, "offset": 12, "of": {"a": [1]}}
    assert {name: found[name] for name in named} == named
    assert found["message"] == f"{address}: put aside"


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, b"\xff", {(1, 2): 3}])
def test_a_field_that_is_no_json_is_text(value: object, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    logging.getLogger(NAME).warning("m", extra={"field": value, "level": "mine"})
    found = logged(capsys)
    assert found["field"] == str(value)
    assert found["level"] == "WARNING"


def test_an_exception_is_text_in_the_same_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    try:
        raise ValueError("no such group")
    except ValueError:
        logging.getLogger(NAME).exception("failed")
    found = logged(capsys)
    assert found["exception"].startswith("Traceback")
    assert found["exception"].endswith("ValueError: no such group")


def test_a_later_call_replaces_an_earlier_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert logs.configured() is None
    logs.configure("text", level=logging.WARNING)
    assert logs.configured() == "text"
    logs.configure("json", level=logging.DEBUG)
    assert logs.configured() == "json"
    logging.getLogger(NAME).debug("once")
    assert logged(capsys)["message"] == "once"


@pytest.mark.parametrize("formats", [("text",), ("json", "text"), ("json", "json", "text")])
def test_text_leaves_the_hooks_of_the_program_as_they_were(
    formats: Sequence[logs.LogFormat], monkeypatch: pytest.MonkeyPatch
) -> None:
    def mine(*_: object) -> None:
        """Of the program."""

    monkeypatch.setattr(sys, "excepthook", mine)
    monkeypatch.setattr(threading, "excepthook", mine)
    for format in formats:
        logs.configure(format)
    assert sys.excepthook is mine
    assert threading.excepthook is mine


def test_text_leaves_warnings_to_the_logs_of_a_program_that_captures_them() -> None:
    logging.captureWarnings(True)
    try:
        captured = warnings.showwarning
        logs.configure("json")
        logs.configure("text")
        assert warnings.showwarning is captured
    finally:
        logging.captureWarnings(False)


def test_a_hook_that_the_program_sets_later_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(*_: object) -> None:
        """Of the program."""

    logs.configure("json")
    monkeypatch.setattr(sys, "excepthook", mine)
    logs.configure("text")
    assert sys.excepthook is mine


PROGRAM = """
import sys, threading, warnings
from rollstream.runtime import logs

logs.configure("json")
warnings.warn("soon gone")
thread = threading.Thread(target=lambda: 1 / 0, name="reader")
meant = threading.Thread(target=sys.exit, name="meant")
for each in (meant, thread):
    each.start()
    each.join()
raise KeyError("unknown")
"""


def test_warnings_and_what_ends_a_thread_or_the_process_are_lines_too() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    warned, thread, process = map(json.loads, done.stderr.splitlines())
    assert "soon gone" in warned["message"]
    assert thread["message"] == "thread reader ends"
    assert thread["exception"].endswith("ZeroDivisionError: division by zero")
    assert process["exception"].endswith("KeyError: 'unknown'")
    assert done.returncode == 1
