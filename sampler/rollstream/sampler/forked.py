"""Refuses a sampler that was opened in the process which this one was forked off."""

from __future__ import annotations

import os

from rollstream.sampler.errors import ForkedSampler

IN_EACH_PROCESS = (
    "start processes with multiprocessing.get_context('spawn'), and open a sampler in each"
)


class OpenedIn:
    """The process that opened a sampler. One that is forked off it has its memory, and none of the
    threads of Ray and Kafka behind it: a call there could wait for ever."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid = os.getpid()

    @property
    def this_process(self) -> bool:
        """Whether it is the one that asks."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Returns in that process.

        Raises:
            ForkedSampler: in every other.
        """
        if not self.this_process:
            raise ForkedSampler(
                f"sampler {self._name!r} was opened in process {self._pid}, which this one, "
                f"{os.getpid()}, was forked off; {IN_EACH_PROCESS}"
            )
