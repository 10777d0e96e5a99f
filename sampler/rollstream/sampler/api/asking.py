"""What a sampler and a view of one share: they have commands executed, and are closed."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, ParamSpec, Self

from rollstream.runtime.at_once import at_once
from rollstream.runtime.clock import Clock
from rollstream.sampler.arguments import seconds
from rollstream.sampler.batch.assembled import AssembledBatch
from rollstream.sampler.batch.batch import Batch
from rollstream.sampler.batch.share import Share, with_rows
from rollstream.sampler.decide.batches.next_batch import BatchCommand
from rollstream.sampler.decide.command import Command, R, Reply
from rollstream.sampler.decide.queries.looks import ReadGroup
from rollstream.sampler.decide.trainer.commands import MarkCheckpointed, Resume
from rollstream.sampler.decide.trainer.pool import ResumePool
from rollstream.sampler.rows.rank_reader import RankReader
from rollstream.schemas.records import RolloutGroup

P = ParamSpec("P")


class Asks(ABC):
    """Has commands executed for one trainer, or for a view. ``_execute`` says where.

    Each call is a coroutine. ``AsyncSamplerClient`` awaits it; others run it to its end at once.
    """

    def __init__(self, name: str, clock: Clock, timeout_s: float, rank_reader: RankReader) -> None:
        self._name = name
        self._clock = clock
        self._timeout_s = timeout_s
        self._rank_reader = rank_reader
        self._noting = threading.Lock()  # Of one reply at a time, by whichever thread.
        self._trainer_epoch: int | None = None
        self._saved = False  # Whether it asked for no batch since its newest checkpoint.

    @abstractmethod
    def _execute(self, command: Command[R], wait_s: float) -> Reply[R]:
        """Has the command executed, which waits up to ``wait_s`` for groups; raises what the
        sampler raised."""

    @abstractmethod
    def close(self) -> None:
        """Releases what this object holds. Idempotent."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, call: Coroutine[Any, Any, R]) -> R:
        return at_once(call)

    async def _executed(self, command: Command[R], wait_s: float) -> Reply[R]:
        return self._execute(command, wait_s)

    async def _aside(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Does work that takes long, where it holds up no event loop."""
        return work(*args, **kwargs)

    def _ask(self, command: Command[R]) -> R:
        return self._run(self._asked(command))

    async def _asked(self, command: Command[R], timeout_s: float = 0.0) -> R:
        reply = await self._executed(self._stamped(command), timeout_s)
        return self._value_of(reply, command)

    async def _asked_for_batch(self, command: BatchCommand, timeout_s: float | None) -> Batch:
        begun_s = self._clock.monotonic_s()
        wait_s = self._wait_s(timeout_s)
        answer = await self._asked(command, wait_s)
        read: AssembledBatch | None
        if isinstance(answer, Share):
            read = await self._aside(self._rank_reader.read, answer)
        else:
            read = answer
        if read is None:
            read = with_rows(await self._asked(replace(command, payloads="sampler"), wait_s))
        waited_s = self._clock.monotonic_s() - begun_s
        return read.batch(waited_s=waited_s, read_group=self._read_group)

    async def _asked_if_recorded(
        self, command: Command[Any], timeout_s: float = 0.0
    ) -> Batch | None:
        """The batch that ``AskRecorded`` or ``ReadBatch`` names; None: there is none."""
        read: AssembledBatch | Share | None = await self._asked(command, timeout_s)
        if read is None:
            return None
        return with_rows(read).batch(waited_s=0.0, read_group=self._read_group)

    def _wait_s(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else seconds("timeout_s", timeout_s)

    def _read_group(self, step: int, digest: bytes, slot: int) -> RolloutGroup:
        command = ReadGroup(step=step, digest=digest, slot=slot)
        return self._value_of(self._execute(self._stamped(command), 0.0), command)

    def _stamped(self, command: Command[R]) -> Command[R]:
        """The command as this trainer's, unless it says whose it is."""
        if command.trainer_epoch is not None:
            return command
        return replace(command, trainer_epoch=self._trainer_epoch)

    def _value_of(self, reply: Reply[R], command: Command[R]) -> R:
        with self._noting:
            if command.claims:
                # Epochs only grow: another thread may have resumed since this reply was made.
                self._trainer_epoch = max(self._trainer_epoch or 0, reply.trainer_epoch)
            if isinstance(command, MarkCheckpointed | Resume | ResumePool | BatchCommand):
                self._saved = isinstance(command, MarkCheckpointed)
        return reply.value
