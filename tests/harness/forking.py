"""Processes that are forked off one that has a sampler."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable

from rollstream.sampler import ForkedSampler

ENDED_S = 60.0  # None takes a second; one that hangs is killed.


def told_in_a_fork(call: Callable[[], object]) -> str:
    """What ``ForkedSampler`` said to a forked child that called; it ended by itself."""
    here, there = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        gc.disable()
        try:
            call()
        except ForkedSampler as error:
            there.send(str(error))
        else:
            there.send("it was not refused")

    # What other tests left is not collected in the child: clients would wait for their threads.
    gc.collect()
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
