"""What it takes to read a rank's share of a recorded batch, wherever that is done. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.group.known import KnownGroup
from rollstream.sampler.batch.assembled import AssembledBatch, assemble
from rollstream.sampler.batch.joining import GroupRows
from rollstream.sampler.batch.requested import agreed_signatures, token_array_names
from rollstream.sampler.errors import SamplerError
from rollstream.schemas.columns import ArraySignature
from rollstream.schemas.order import Branch


class Share(NamedTuple):
    """A rank's share: which rows of which files, with their digests, and no payload.

    Attributes:
        served: the recorded batch.
        groups: of the share, each with its slot.
        paths: of the files of all groups of the batch, by slot.
        columns: that the batch is to have besides.
        branches: of the weights, by lineage, when the batch was decided.
        groups_ready: when it was asked for.
    """

    served: ServedBatch
    groups: Sequence[tuple[int, KnownGroup]]
    paths: Sequence[str]
    columns: tuple[str, ...]
    dp_rank: int
    dp_size: int
    branches: Mapping[str, Sequence[Branch]]
    groups_ready: int

    def has_same_rows(self, other: Share) -> bool:
        """Whether these are the same rows of the same step, read in the same way, so that only what
        is recorded of the decision may differ."""
        return self._rows() == other._rows()

    def _rows(self) -> tuple[object, ...]:
        refs = [(slot, group.ref) for slot, group in self.groups]
        read = self.columns, self.dp_rank, self.dp_size, self.branches
        return self.served.event.step, self.served.digest, refs, *read

    def assembled(
        self,
        parts: Sequence[GroupRows],
        signatures_of: Callable[[str], Mapping[str, ArraySignature]],
    ) -> AssembledBatch:
        """The share with its rows.

        Args:
            parts: the rows of ``groups``, also those that the decision leaves out.
            signatures_of: dtype and trailing shape of the named arrays of a file.
        """
        token_arrays: Mapping[str, ArraySignature] = {}
        refused: Mapping[str, SamplerError] = {}
        if names := token_array_names(self.columns):
            found = {path: signatures_of(path) for path in set(self.paths)}
            token_arrays, refused = agreed_signatures(names, [found[path] for path in self.paths])
        masks = self.served.all_groups
        return assemble(
            self.served,
            [part.only(masks[part.slot].row_mask) for part in parts],
            columns=self.columns,
            token_arrays=token_arrays,
            refused=refused,
            dp_rank=self.dp_rank,
            dp_size=self.dp_size,
            branches=self.branches,
            groups_ready=self.groups_ready,
        )
