"""Keeps repeated lines out of librdkafka's log."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict

QUIET_S = 10.0  # The same line is let through once in this time.
LINES_MAX = 256  # Remembered; beyond it the one that was let through first is forgotten.
_TIMING = re.compile(r"\(after \d+ms .*?\)$")


class RepeatFilter(logging.Filter):
    """Lets a line through once in ``QUIET_S``.

    A client dials a broker that is down twenty times a second and logs each failure; its own
    suppression does not recognise lines that differ only in their milliseconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said_at_s: OrderedDict[str, float] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        line = _TIMING.sub("", record.getMessage())
        said_at_s = self._said_at_s.get(line)
        if said_at_s is not None and record.created - said_at_s < QUIET_S:
            return False
        self._said_at_s.pop(line, None)
        self._said_at_s[line] = record.created
        if len(self._said_at_s) > LINES_MAX:
            self._said_at_s.popitem(last=False)
        return True
