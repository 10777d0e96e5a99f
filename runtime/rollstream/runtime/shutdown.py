"""SIGTERM and Ctrl-C as a flag that loops look at."""

from __future__ import annotations

import signal
import threading
from types import FrameType


def stop_on_signals() -> threading.Event:
    """An event that the first SIGTERM or SIGINT sets; the second one acts as it would without us.

    Only the main thread may call it.
    """
    stopping = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        stopping.set()
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else _interrupt)

    signal.signal(signal.SIGTERM, note)
    signal.signal(signal.SIGINT, note)
    return stopping


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
