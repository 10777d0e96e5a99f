"""SIGTERM and Ctrl-C as an event that loops check."""

from __future__ import annotations

import signal
import threading
from types import FrameType


def stop_on_signals() -> threading.Event:
    """Returns an event that the first SIGTERM or SIGINT sets; a second one ends the process.

    Only the main thread may call this.
    """
    stopping = threading.Event()

    def set_stopping(number: int, frame: FrameType | None) -> None:
        stopping.set()
        again = signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler
        signal.signal(number, again)

    signal.signal(signal.SIGTERM, set_stopping)
    signal.signal(signal.SIGINT, set_stopping)
    return stopping
