"""``AsyncTrainingBatches`` and ``AsyncTrajectoryPool``, over an ``AsyncSamplerClient``."""

from __future__ import annotations

from rollstream.sampler.api.aio import Awaiting, awaited, awaiting
from rollstream.sampler.training.training_batches import TrainingBatches
from rollstream.sampler.training.trajectory_pool import TrajectoryPool


class AsyncTrainingBatches(Awaiting[TrainingBatches]):
    """``TrainingBatches`` whose methods are awaited; ``await AsyncTrainingBatches.of(…)`` makes it.

    Arguments, results and errors are the same. The maker runs in a thread, one step at a time, so
    it holds up no other task. Await one ``next`` at a time; ``ack`` may be awaited meanwhile. You
    may repeat a call that was cancelled.

    Examples:
        >>> batches = await AsyncTrainingBatches.of(                     # doctest: +SKIP
        ...     sampler, GrpoBatchMaker(seed=1), num_groups=64, batch_size=256)
        >>> training = await batches.next(step)                          # doctest: +SKIP
    """

    of = staticmethod(awaiting(TrainingBatches, lambda made: AsyncTrainingBatches(of=made)))
    next = awaited(TrainingBatches.next)
    ack = awaited(TrainingBatches.ack)
    create_and_store_batch = awaited(TrainingBatches.create_and_store_batch)


class AsyncTrajectoryPool(Awaiting[TrajectoryPool]):
    """``TrajectoryPool`` whose fetches are awaited, one at a time; ``await
    AsyncTrajectoryPool.of(…)`` makes it.
    """

    of = staticmethod(awaiting(TrajectoryPool, lambda made: AsyncTrajectoryPool(of=made)))
    fetch_batch = awaited(TrajectoryPool.fetch_batch)
