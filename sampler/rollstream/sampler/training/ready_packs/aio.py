"""``AsyncReadyPacks``, over an ``AsyncSamplerClient``."""

from __future__ import annotations

from rollstream.sampler.api.aio import Awaiting, awaited, awaiting
from rollstream.sampler.training.ready_packs.steps import ReadyPacks


class AsyncReadyPacks(Awaiting[ReadyPacks]):
    """``ReadyPacks`` whose methods are awaited; ``await AsyncReadyPacks.of(…)`` makes it.

    As with ``AsyncTrainingBatches``, packs are built in a thread, and one ``next_step`` is awaited
    at a time.
    """

    of = staticmethod(awaiting(ReadyPacks, lambda made: AsyncReadyPacks(of=made)))
    next_step = awaited(ReadyPacks.next_step)
    ack = awaited(ReadyPacks.ack)
