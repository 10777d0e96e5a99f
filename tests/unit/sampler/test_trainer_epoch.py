"""The trainer epoch that an object speaks for only grows, however many threads call it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rollstream.runtime.clock import SystemClock
from rollstream.sampler import SamplerApi
from rollstream.sampler.decide.command import Command, R, Reply
from rollstream.sampler.rows.rank_reader import RankReader
from rollstream.store.memory import MemoryBlobs

A_MOMENT_S = 0.2  # In which a thread that nobody holds up has ended.


class Epoch(int):
    """An epoch that has something happen when it is compared."""

    meanwhile: Callable[[], object]

    def __gt__(self, other: object) -> bool:
        assert isinstance(other, int)
        greater = int(self) > other
        self.meanwhile()
        return greater


class Answering(SamplerApi):
    """Each command is answered with the next of these trainer epochs."""

    def __init__(self, *epochs: int) -> None:
        super().__init__("trainer", SystemClock(), 1.0, RankReader(MemoryBlobs(), 0))
        self.epochs = list(epochs)

    def _execute(self, command: Command[R], wait_s: float) -> Reply[R]:
        return Reply(self.epochs.pop(0), None)  # type: ignore[arg-type]

    def close(self) -> None:
        pass


def test_a_reply_of_an_older_epoch_that_is_late_does_not_undo_a_newer_one() -> None:
    older = Epoch(1)
    sampler = Answering(older, 2)
    newer = threading.Thread(target=sampler.set_current_step, args=(0,))

    def meanwhile() -> None:
        newer.start()
        newer.join(A_MOMENT_S)

    older.meanwhile = meanwhile
    sampler.set_current_step(0)
    newer.join()
    assert "trainer_epoch=2" in repr(sampler)
