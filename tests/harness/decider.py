"""A decider over lists: its decision log, and the seal logs that feed it."""

from __future__ import annotations

from typing import Any

from harness.groups import GroupSpec, flush_of
from harness.in_flight import report
from harness.retiring import retired
from harness.sampler_worlds import config_of
from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.choosing import choosing_of
from rollstream.folds.state import SamplerState
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.config.sections import EnvironmentConfig, SamplerConfig
from rollstream.sampler.batch.share import Share
from rollstream.sampler.decide.admission.granting import Granting
from rollstream.sampler.decide.batches.next_batch import BatchCommand, NextBatch, NextStep
from rollstream.sampler.decide.choosing.dropping import after_sealed
from rollstream.sampler.decide.command import Command, FromStore, Now, R, ResultContext, read
from rollstream.sampler.decide.queries.progress import AskProgress, Progress
from rollstream.sampler.errors import NotEnoughGroups
from rollstream.sampler.rows.ahead import MakesAhead
from rollstream.sampler.rows.deliver import Delivery, likely_shares
from rollstream.sampler.rows.payloads import Payloads
from rollstream.sampler.rows.recorded import RecordedBatches
from rollstream.schemas.events import (
    Flushed,
    ProducerInFlight,
    Retired,
    SamplerEvent,
    SealedGroup,
)
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.blobs import Blobs
from rollstream.store.memory import MemoryBlobs
from rollstream.streams.folds.refs import GroupRef, ref_of
from rollstream.streams.folds.reported import ReportedNow

LOGS = [
    PartitionAddress("code", 1, 0),
    PartitionAddress("math", 1, 0),
    PartitionAddress("math", 1, 1),
]


CONFIG = config_of("file:///unused", "trainer-a")


class NoRecord(RecordedBatches):
    """Has no broker to read a log from."""

    def __init__(self) -> None:
        pass

    def batch(self, step: int, trainer_epoch: int) -> Any:
        raise AssertionError(f"step {step} is read from the record")


class Decider:
    """A state, its decision log, and the seal logs that feed it."""

    def __init__(self, **config: Any) -> None:
        sampler = SamplerConfig(**{"environments": ("math", "code"), **config})
        environment = EnvironmentConfig()
        self.choosing = choosing_of(sampler, dict.fromkeys(sampler.environments, environment))
        self.state = self.fresh()
        self.events: list[SamplerEvent] = []
        self.now_us = 0  # For what is asked; decisions count their own time.
        self.log_us = 0  # The decision log's clock.
        self.sealed: list[tuple[PartitionAddress, int, Flushed | Retired]] = []
        self.reported = ReportedNow()
        self.reported.reads = frozenset(self.choosing.names())

    def fresh(self) -> SamplerState:
        return SamplerState("trainer-a", self.choosing, LOGS)

    def seal(
        self, *specs: GroupSpec, log: PartitionAddress = LOGS[1], blobs: Blobs | None = None
    ) -> None:
        offset = sum(1 for at, _, _ in self.sealed if at == log)
        flush = flush_of(
            specs,
            name=f"{log.partition}-{offset}",
            environment=log.environment,
            blobs=blobs,
            now_ts=offset,
        )
        self.sealed.append((log, offset, flush))
        self.state.apply_groups(log, offset, flush)
        self.reported.apply_sealed(log, offset, flush)

    def report(
        self, *producers: ProducerInFlight, log: PartitionAddress = LOGS[1], now_us: int = 0
    ) -> None:
        """A sealer reports what producers have in flight."""
        sealed = sum(1 for other, _, _ in self.sealed if other == log)
        self.reported.apply(log, report(*producers, seal_offset=sealed - 1, now_ts=now_us))

    def retire(self, log: PartitionAddress, *offsets: int) -> None:
        """The files of the flushes at these offsets are retired."""
        at = sum(1 for other, _, _ in self.sealed if other == log)
        files = tuple(
            (offset, file.path)
            for other, offset, event in self.sealed
            if other == log and offset in offsets and isinstance(event, Flushed)
            for file in event.files
        )
        event = retired(0, "n", files)
        self.sealed.append((log, at, event))
        self.state.apply_groups(log, at, event)

    def decide(self, command: Command[Any]) -> None:
        self._apply(command.decide(self.state, self._now()))

    def do(
        self,
        command: Command[R],
        payloads: Payloads | None = None,
        ahead: MakesAhead | None = None,
    ) -> R:
        """Decides and returns the result; for batches without rows see ``choose``."""
        self.decide(command)
        payloads = payloads or Payloads(MemoryBlobs(), 0)
        if ahead is None:
            ahead = MakesAhead(payloads, lambda _: (), lambda batch: batch, SystemClock())
            ahead.close()
        if isinstance(command, FromStore):
            store = payloads._blobs
            delivery = Delivery(store, payloads, ahead, NoRecord(), lambda: lambda: None)
            found: R = read(delivery.result(command, self.state))
            return found
        before = (0, CONFIG, 0, 0, 0, self.now_us, tuple)
        granting = Granting(self.state.name, CONFIG.samplers[self.state.name])
        context = ResultContext(
            *before,
            lambda: granting.capacity(self.state, lambda: self.reported, self.now_us),
        )
        return read(command.result(self.state, context))

    def choose(self, command: BatchCommand) -> ServedBatch | NotEnoughGroups:
        """Decides about a batch; where groups are missing, returns what a sampler would raise."""
        self.decide(command)
        shortage = command.shortage(self.state)
        if shortage is not None:
            return shortage.error(self.state)
        return self.state.batches[command.step]

    def serve(self, step: int, num_groups: int = 2, **request: Any) -> ServedBatch:
        batch = self.choose(NextBatch(step=step, num_groups=num_groups, **request))
        assert isinstance(batch, ServedBatch), batch
        return batch

    def evict(self) -> None:
        self._apply(after_sealed(self.state, self._now(), self.now_us))

    def progress(self) -> Progress:
        return self.do(AskProgress())

    def likely_next(self, command: NextStep) -> list[Share]:
        return likely_shares(command, self.state, self._now())

    def _now(self) -> Now:
        return Now(epoch=0, nonce="nonce", now_ts=len(self.events))

    def _apply(self, events: list[SamplerEvent]) -> None:
        for event in events:
            self.state.apply(len(self.events), self.log_us, event)
            self.events.append(event)

    def examples(self, batch: ServedBatch) -> list[str]:
        return [self.sealed_group(ref_of(chosen)).example_id for chosen in batch.groups]

    def sealed_group(self, ref: GroupRef) -> SealedGroup:
        flush = next(f for log, at, f in self.sealed if log == ref.log and at == ref.offset)
        assert isinstance(flush, Flushed), flush
        return flush.groups[ref.index_in_flush]
