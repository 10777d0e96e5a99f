"""A decider over lists: its decision log, and the seal logs that feed it."""

from __future__ import annotations

from typing import Any

from harness.groups import GroupSpec, flush_of
from rollstream.runtime.config.sections import SamplerConfig
from rollstream.sampler.deciding.answer import answer, not_enough
from rollstream.sampler.deciding.commands import Command, NextBatch
from rollstream.sampler.deciding.decide import Now, decide
from rollstream.schemas.events import Flushed, SamplerEvent, SealedGroup
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.folds.refs import GroupRef, ref_of
from rollstream.streams.folds.sampler.served import ServedBatch
from rollstream.streams.folds.sampler.state import SamplerState

LOGS = [
    PartitionAddress("code", 1, 0),
    PartitionAddress("math", 1, 0),
    PartitionAddress("math", 1, 1),
]


class Decider:
    """A state, its decision log, and the seal logs that feed it."""

    def __init__(self, **config: Any) -> None:
        self.config = SamplerConfig(**{"environments": ("math", "code"), **config})
        self.state = self.fresh()
        self.events: list[SamplerEvent] = []
        self.sealed: list[tuple[PartitionAddress, int, Flushed]] = []

    def fresh(self) -> SamplerState:
        return SamplerState("trainer-a", self.config, LOGS)

    def seal(self, *specs: GroupSpec, log: PartitionAddress = LOGS[1]) -> None:
        offset = sum(1 for at, _, _ in self.sealed if at == log)
        flush = flush_of(
            specs, name=f"{log.partition}-{offset}", environment=log.environment, now_ts=offset
        )
        self.sealed.append((log, offset, flush))
        self.state.apply_groups(log, offset, flush)

    def do(self, command: Command) -> Any:
        for event in decide(command, self.state, Now(0, "nonce", len(self.events))):
            self.state.apply(len(self.events), 0, event)
            self.events.append(event)
        return answer(command, self.state)

    def serve(self, step: int, num_groups: int = 2, **request: Any) -> ServedBatch:
        batch = self.do(NextBatch(step=step, num_groups=num_groups, **request))
        assert batch is not None, not_enough(
            NextBatch(step=step, num_groups=num_groups, **request), self.state
        )
        assert isinstance(batch, ServedBatch)
        return batch

    def examples(self, batch: ServedBatch) -> list[str]:
        return [self.sealed_group(ref_of(chosen)).example_id for chosen in batch.groups]

    def sealed_group(self, ref: GroupRef) -> SealedGroup:
        flush = next(f for log, at, f in self.sealed if log == ref.log and at == ref.offset)
        return flush.groups[ref.index_in_flush]
