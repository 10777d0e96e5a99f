"""Processes that are forked off one that has a sampler."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable

from rollstream.sampler import ForkedSampler

ENDED_S = 60.0  # None takes a second; one that hangs is killed.


def told_in_a_fork(call: Callable[[], object]) -> str:
    """What ``ForkedSampler`` said to a forked child that called; it ended by itself."""
    here, there = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        try:
            call()
        except ForkedSampler as error:
            there.send(str(error))
        else:
            there.send("it was not refused")

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    try:
        assert here.poll(ENDED_S), "the call hangs"
        told: str = here.recv()
        process.join(ENDED_S)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()
    return told
