"""A lock that the kernel takes back when its holders are gone."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

from rollstream.runtime.clock import SystemClock
from rollstream.runtime.deadline import Deadline

TRY_EVERY_S = 0.05


def lock_file(path: Path, deadline: Deadline) -> int | None:
    """A file descriptor that holds the lock until it, and every copy of it, is closed.

    None when somebody else still holds the lock at the deadline. The file is made when absent;
    it says who holds the lock, for people.
    """
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if deadline.passed():
                os.close(held)
                return None
            deadline.log_waiting(lambda: f"the lock {path}, held by process {holder_of(path)}")
            SystemClock().wait(threading.Event(), deadline.slice_s(TRY_EVERY_S))
        else:
            os.ftruncate(held, 0)
            os.pwrite(held, f"{os.getpid()}\n".encode(), 0)
            return held


def holder_of(path: Path) -> str:
    """Who took the lock last, as a process id."""
    return path.read_text(errors="replace").strip() or "unknown"
