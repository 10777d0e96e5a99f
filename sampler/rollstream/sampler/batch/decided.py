"""What is recorded of a batch, and the same for each rank that reads a share of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.group.known import KnownGroup
from rollstream.schemas.order import Branch
from rollstream.schemas.records import SampledBatch


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
        return cls(
            step=served.event.step,
            batch_id=served.batch_id,
            digest=served.digest,
            sampled=served.sampled,
            carried_groups=len(served.carried),
            policy_step=served.event.policy_step,
            algorithm=served.event.algorithm,
            current_step=served.current_step,
            choosing=served.event.choosing,
            branches=branches or {},
            paths=tuple([group.file.path for group in groups]),
        )

    def fields(self) -> dict[str, Any]:
        """Those of ``Batch``."""
        return {
            "step": self.step,
            "batch_id": self.batch_id,
            "digest": self.digest,
            "sampled": self.sampled,
            "carried_groups": self.carried_groups,
            "policy_step": self.policy_step,
            "algorithm": self.algorithm,
            "current_step": self.current_step,
        }
