"""One process a data folder: two brokers over the same files would destroy them."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

from rollstream.console.broker.errors import BrokerDataInUse
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.deadline import Deadline

# A broker whose owner was killed needs a moment to be gone; whoever starts anew waits for that.
TAKE_OVER_TIMEOUT_S = 2.0
TAKE_OVER_PAUSE_S = 0.05


def hold(data: Path) -> int:
    """A file descriptor that holds the folder until it, and every copy of it, is closed.

    The Java process is given a copy. So the folder stays held while Java lives, even when
    the process that started it has been killed.

    Raises:
        BrokerDataInUse: another process holds it.
    """
    path = data / "lock"
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = Deadline(TAKE_OVER_TIMEOUT_S)
    while not deadline.passed():
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            SystemClock().wait(threading.Event(), TAKE_OVER_PAUSE_S)
        else:
            os.ftruncate(held, 0)
            os.pwrite(held, f"{os.getpid()}\n".encode(), 0)
            return held
    holder = os.pread(held, 32, 0).decode(errors="replace").strip() or "unknown"
    os.close(held)
    raise BrokerDataInUse(
        f"the data folder {data} is held by process {holder}, which runs a Kafka over it: "
        "use that one, stop it, or give another folder"
    )
