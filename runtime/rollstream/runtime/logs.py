"""Log lines on stderr: as text for people, as JSON for programs that collect them."""

from __future__ import annotations

import json
import logging
import sys
import threading
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal

LogFormat = Literal["text", "json"]
TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"
# What every record has; its other attributes were given as ``extra``.
_OF_EVERY_RECORD = {*vars(logging.makeLogRecord({})), "message", "asctime"}


class JsonFormatter(logging.Formatter):
    """Makes one JSON object of a record, without a line break.

    It has ``time`` (UTC, ISO 8601, microseconds), ``level``, ``logger``, ``message`` and
    ``process`` (its id). An exception is ``exception``, as text. What was passed as ``extra``, and
    what named tuples among the arguments hold, such as a log's ``topic`` and ``partition``, are
    fields of their own. Their values are JSON where they can be, else text.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Returns the object as a line without its end."""
        found: dict[str, Any] = {}
        for argument in record.args if isinstance(record.args, tuple) else ():
            if isinstance(argument, tuple) and hasattr(argument, "_asdict"):
                found |= argument._asdict()
        given = vars(record).keys() - _OF_EVERY_RECORD
        # Ray has a record factory that adds `_ray_timestamp_ns`.
        found |= {name: vars(record)[name] for name in given if not name.startswith("_")}
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return json.dumps(line | found | line, default=str, allow_nan=False)
        except (TypeError, ValueError):  # NaN, a cycle, keys that are no text.
            texts = {name: str(value) for name, value in found.items()}
            return json.dumps(line | texts | line)


class _Stderr(logging.Handler):
    """Writes to what is ``sys.stderr`` then; a line is one write, so no two lines mix.

    Args:
        format: also of the lines of what ends a thread or the process.
    """

    def __init__(self, format: LogFormat) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter() if format == "json" else logging.Formatter(TEXT))
        self.end: Callable[[], None] = _log_what_ends() if format == "json" else lambda: None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:  # noqa: BLE001 - as every handler of the standard library does
            self.handleError(record)


def configure(format: LogFormat = "json", *, level: int = logging.INFO) -> None:
    """Sends what this process logs to stderr, one line a record; a later call replaces an earlier.

    With ``json`` warnings of Python, and exceptions that end a thread or the process, are lines
    too; ``text`` leaves those as they were before. A sampler's actor that this process starts logs
    likewise, to its file in Ray's folder. Handlers of others stay. No line holds a password or a
    token of the configuration.

    Example:
        ```python
        from rollstream.runtime import logs

        logs.configure("json")
        ```

    Args:
        format: ``text`` or ``json``.
        level: the least level that is logged.
    """
    root = logging.getLogger()
    for earlier in [one for one in root.handlers if isinstance(one, _Stderr)]:
        root.removeHandler(earlier)
        earlier.end()
    root.addHandler(_Stderr(format))
    root.setLevel(level)


def configured() -> LogFormat | None:
    """Returns the format that ``configure`` set in this process; None: it was not called."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Stderr):
            return "json" if isinstance(handler.formatter, JsonFormatter) else "text"
    return None


def _log_what_ends() -> Callable[[], None]:
    """Logs warnings and uncaught exceptions from now on; returns what puts back what was before."""
    of_process, of_thread = sys.excepthook, threading.excepthook
    sys.excepthook, threading.excepthook = _log_uncaught, _log_end_of_thread
    before = warnings.showwarning
    logging.captureWarnings(True)
    captured = warnings.showwarning is not before  # Else the program had done it.

    def end() -> None:
        if captured:
            logging.captureWarnings(False)
        if sys.excepthook is _log_uncaught:  # Else somebody set another one since.
            sys.excepthook = of_process
        if threading.excepthook is _log_end_of_thread:
            threading.excepthook = of_thread

    return end


def _log_uncaught(
    kind: type[BaseException], error: BaseException, at: TracebackType | None
) -> None:
    if issubclass(kind, Exception):
        logging.getLogger("rollstream").critical("the process ends", exc_info=(kind, error, at))
    else:  # Ctrl-C.
        sys.__excepthook__(kind, error, at)


def _log_end_of_thread(ended: threading.ExceptHookArgs) -> None:
    if issubclass(ended.exc_type, SystemExit):
        return  # It was meant to end.
    name = "?" if ended.thread is None else ended.thread.name
    error = ended.exc_value or ended.exc_type()
    logging.getLogger("rollstream").critical("thread %s ends", name, exc_info=error)
