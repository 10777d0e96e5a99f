"""What is recorded of a batch, and the same for each rank that reads a share of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.group.known import KnownGroup
from rollstream.schemas.order import Branch
from rollstream.schemas.records import SampledBatch

_OF_BATCH = (
    *("step", "batch_id", "digest", "sampled", "carried_groups"),
    *("policy_step", "algorithm", "current_step"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Decided:
    """A decision, without its groups' rows. It grows with the groups of the whole batch, so each
    process gets it once and not with each share.

    Attributes:
        choosing: the settings that chose, as recorded.
        branches: of the weights, by lineage, when the batch was decided.
        paths: of the files of all groups, by slot.
    """

    step: int
    batch_id: str
    digest: bytes
    sampled: SampledBatch
    carried_groups: int
    policy_step: int
    algorithm: int
    current_step: int
    choosing: str
    branches: Mapping[str, Sequence[Branch]]
    paths: Sequence[str]

    @classmethod
    def of(
        cls,
        served: ServedBatch,
        groups: Sequence[KnownGroup] = (),
        branches: Mapping[str, Sequence[Branch]] | None = None,
    ) -> Self:
        """Of a batch with these groups, by slot."""
        event = served.event
        return cls(
            event.step,
            served.batch_id,
            served.digest,
            served.sampled,
            len(served.carried),
            event.policy_step,
            event.algorithm,
            served.current_step,
            event.choosing,
            branches or {},
            tuple([group.file.path for group in groups]),
        )

    def fields(self) -> dict[str, Any]:
        """Those of ``Batch``."""
        return {name: getattr(self, name) for name in _OF_BATCH}
