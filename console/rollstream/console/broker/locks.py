"""File locks that the kernel releases when the processes that hold them have ended."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from rollstream.console.broker.errors import BrokerDataInUse
from rollstream.runtime.deadline import Deadline

TRY_EVERY_S = 0.05
# A broker whose parent was killed takes a moment to end; the next one waits for that.
TAKE_OVER_TIMEOUT_S = 5.0


def lock_data(data: Path) -> int:
    """Locks a data folder for one broker: two over the same files would destroy them.

    Returns:
        A file descriptor that holds the lock until it, and every copy of it, is closed. The Java
        process inherits a copy, so the folder stays locked while Java runs, even when the process
        that started it was killed.

    Raises:
        BrokerDataInUse: another process holds the lock.
    """
    path = data / "lock"
    held = lock_file(path, Deadline(TAKE_OVER_TIMEOUT_S))
    if held is None:
        raise BrokerDataInUse(
            f"the data folder {data} is held by process {holder_of(path)}, which runs a Kafka "
            "over it: use that one, stop it, or give another folder"
        )
    return held


def lock_file(path: Path, deadline: Deadline) -> int | None:
    """Locks a file, which is made when absent and holds this process id for people.

    Returns:
        A file descriptor that holds the lock until it, and every copy of it, is closed; None where
        another process still holds the lock at the deadline.
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
            deadline.wait(TRY_EVERY_S)
        else:
            os.ftruncate(held, 0)
            os.pwrite(held, f"{os.getpid()}\n".encode(), 0)
            return held


def holder_of(path: Path) -> str:
    """The process id that locked the file last."""
    return path.read_text(errors="replace").strip() or "unknown"
