"""One process a data folder: two brokers over the same files would destroy them."""

from __future__ import annotations

from pathlib import Path

from rollstream.console.broker.errors import BrokerDataInUse
from rollstream.console.broker.file_lock import holder_of, lock_file
from rollstream.runtime.deadline import Deadline

# A broker whose owner was killed needs a moment to be gone; whoever starts anew waits for that.
TAKE_OVER_TIMEOUT_S = 2.0


def hold(data: Path) -> int:
    """A file descriptor that holds the folder until it, and every copy of it, is closed.

    The Java process is given a copy. So the folder stays held while Java lives, even when
    the process that started it has been killed.

    Raises:
        BrokerDataInUse: another process holds it.
    """
    path = data / "lock"
    held = lock_file(path, Deadline(TAKE_OVER_TIMEOUT_S))
    if held is None:
        raise BrokerDataInUse(
            f"the data folder {data} is held by process {holder_of(path)}, which runs a Kafka "
            "over it: use that one, stop it, or give another folder"
        )
    return held
