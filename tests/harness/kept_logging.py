"""Logging, and what handles uncaught exceptions, as they were before a test."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_logging() -> Iterator[None]:
    """Whatever the block configures is as before at its end."""
    root = logging.getLogger()
    handlers, level = [*root.handlers], root.level
    of_process, of_thread = sys.excepthook, threading.excepthook
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        sys.excepthook, threading.excepthook = of_process, of_thread
        logging.captureWarnings(False)
