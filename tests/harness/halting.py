"""Processes that do nothing for a while: their connections stay open, and nothing is answered."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollstream.runtime.deadline import Deadline

HALTED_S = 10.0


def halt(pid: int) -> None:
    """Returns when each of its threads does nothing.

    ``kill`` returns sooner: a thread that computes goes on until the kernel's next tick, 4 ms later
    on some machines, and can answer a request meanwhile.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = Deadline(HALTED_S)
    while running := [thread for thread in _threads(pid) if _state(thread) not in "TtZX"]:
        assert not deadline.passed(), f"{running} go on"


def go_on(pid: int) -> None:
    """Ends what ``halt`` began."""
    os.kill(pid, signal.SIGCONT)


@contextmanager
def halted(pid: int) -> Iterator[None]:
    """The process does nothing until the end of the block."""
    halt(pid)
    try:
        yield
    finally:
        go_on(pid)


def _threads(pid: int) -> list[Path]:
    return [*Path(f"/proc/{pid}/task").iterdir()]


def _state(thread: Path) -> str:
    """As ``proc(5)`` writes it; ``X`` where it has ended."""
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
