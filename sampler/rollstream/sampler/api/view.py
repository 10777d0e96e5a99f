"""``SamplerView``: looks at a sampler and disturbs nobody."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import SupportsIndex

from rollstream.runtime.clock import Clock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.sampler.api.in_process import AsksInProcess
from rollstream.sampler.api.looking import LooksAtGroups
from rollstream.sampler.arguments import whole_number
from rollstream.sampler.batch.batch import Batch
from rollstream.sampler.batch.requested import column_names
from rollstream.sampler.decide.command import Command, R, Reply
from rollstream.sampler.decide.queries.looks import (
    AskBatches,
    AskPolicy,
    BatchSummary,
    ReadBatch,
)
from rollstream.sampler.errors import InvalidRequest
from rollstream.schemas.order import Policy
from rollstream.store.blobs import Blobs
from rollstream.streams.broker import Broker


class SamplerView(AsksInProcess, LooksAtGroups):
    """Reads a sampler that runs, rests or crashed, from its logs. Claims and writes nothing.

    Use it in a notebook or on another machine: it needs read access alone, and no Ray. Each call
    returns what was decided and sealed up to now. The first call reads the logs whole, later ones
    read what is new. Threads may share it.

    Args:
        name: which ``[samplers.<name>]``.
        config: the configuration, or the path of its file.
        broker: instead of the configured one; the caller closes it.
        store: likewise.
        clock: instead of the system's.

    Raises:
        ConfigError: the configuration is wrong.
        UnknownSampler: it has no sampler of this name.
        TopicMismatch: topics are missing or not as configured.
        BrokerUnavailable: the broker did not answer in time, here or at any call.
        LogLost: at the first call: the decision log ends before what the store's root holds of it.

    Examples:
        >>> with SamplerView("trainer-a", config="rollstream.toml") as view:    # doctest: +SKIP
        ...     print(view.stats().next_step, view.batches(last=3))
    """

    def __init__(
        self,
        name: str,
        *,
        config: RollstreamConfig | Path | str,
        broker: Broker | None = None,
        store: Blobs | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(name, config=config, broker=broker, store=store, clock=clock)

    def policy(self) -> Policy | None:
        """Returns the newest policy of the trainer's present branch; None: none was published."""
        return self._ask(AskPolicy())

    def batches(self, last: SupportsIndex = 10) -> tuple[BatchSummary, ...]:
        """Returns the newest batches that are held, by rising step: all that are not final, and up
        to 512 final ones.

        Raises:
            InvalidRequest: ``last`` is no number from 1 on.
        """
        count = whole_number("last", last)
        if count < 1:
            raise InvalidRequest(f"last is {count}; give 1 or more")
        return self._ask(AskBatches(last=count))

    def batch(self, step: SupportsIndex, *, columns: Sequence[str] = ()) -> Batch:
        """Returns the whole batch of a step, read from the store; ``columns`` as in ``next_batch``.

        If the batch is no longer held, the decision log is read whole.

        Raises:
            UnknownStep: the step was not served, or its batch cannot be read any more.
            InvalidRequest: its groups' files have no such column.
            GroupsUnreadable: files of its groups are missing or damaged.
        """
        command = ReadBatch(step=whole_number("step", step), columns=column_names(columns))
        batch = self._run(self._asked_if_recorded(command))
        assert batch is not None, command
        return batch

    def _execute(self, command: Command[R], wait_s: float) -> Reply[R]:
        assert not command.claims, command
        return super()._execute(command, wait_s)
