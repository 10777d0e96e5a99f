"""The public methods of a sampler, whoever executes their commands."""

from __future__ import annotations

import logging

from rollstream.sampler.api.batch_calls import HandsBatchesOver
from rollstream.sampler.api.looking import LooksAtGroups
from rollstream.sampler.api.trainer_calls import RecordsForTrainer
from rollstream.sampler.decide.trainer.commands import Finish
from rollstream.schemas.errors import RollstreamError
from rollstream.store.blobs import Blobs

_log = logging.getLogger("rollstream.sampler")


class SamplerApi(HandsBatchesOver, RecordsForTrainer, LooksAtGroups):
    """The sampler as a trainer sees it.

    Weights *n* are the weights after *n* optimizer steps, and batch *n* turns weights *n* into *n +
    1*. You may repeat every call. A step that you ask for again gives the same batch, byte for
    byte: from another rank or process, and after a crash. Numbers may be NumPy's integers. Other
    values raise ``InvalidRequest``.

    One object serves one trainer. ``stats``, ``progress``, ``evaluations``, ``sample_groups``,
    ``get_groups``, ``flush`` and ``Batch.records`` claim nothing. The first call that decides takes
    the sampler's name over, and joins the trainer epoch in effect; ``resume`` begins a new one.
    After another process took over, or a successor resumed, every call raises ``Fenced``.

    If the broker does not answer, a call tries until its time is up: its ``timeout_s`` if it waits
    for groups, else ``kafka.timeout_s``. It then raises ``BrokerUnavailable`` or ``ClaimFailed``
    within ten seconds, and you may repeat it.

    Leaving the ``with`` block records that the run is over, if every batch is final and no error
    ends the block.

    Examples:
        >>> step = sampler.resume(None)                                     # doctest: +SKIP
        >>> batch = sampler.next_batch(step, num_groups=64, timeout_s=300)  # doctest: +SKIP
        >>> sampler.ack(batch)                                              # doctest: +SKIP
        >>> sampler.checkpointed(step)                                      # doctest: +SKIP
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r}, trainer_epoch={self._trainer_epoch})"

    def __exit__(self, *error: object) -> None:
        """Closes. A trainer that leaves without an error after its last checkpoint, with every
        batch final, has finished the run."""
        self._run(self._left(*error))

    async def _left(self, *error: object) -> None:
        try:
            if self._saved and not any(error):
                await self._asked(Finish(if_final=True))
        except RollstreamError as failure:  # What the trainer did is recorded all the same.
            _log.warning("it was not recorded that the run is over: %s", failure)
        finally:
            self.close()

    @property
    def store(self) -> Blobs:
        """The store, as this process reads it."""
        return self._rank_reader.store

    @property
    def trainer_epoch(self) -> int | None:
        """The epoch that this trainer belongs to; None before the first call that decides."""
        return self._trainer_epoch
