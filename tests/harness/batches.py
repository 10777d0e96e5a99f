"""Batches for tests, as if their groups had been read from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.groups import GroupSpec, flush_of, group_columns
from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.group.known import known_groups
from rollstream.sampler.batch.assembled import AssembledBatch, assemble
from rollstream.sampler.batch.batch import Batch
from rollstream.sampler.batch.decided import Decided
from rollstream.sampler.batch.joining import GroupRows
from rollstream.sampler.batch.share import Share
from rollstream.sampler.decide.choosing.choose import ALGORITHM
from rollstream.schemas.events import BatchServed
from rollstream.schemas.ids import PartitionAddress


def batch_event(step: int) -> BatchServed:
    """Of a batch without groups: what is tested with it has its own."""
    return BatchServed(
        epoch=0,
        nonce="n",
        now_ts=7,
        trainer_epoch=1,
        step=step,
        batch_id="b",
        seed=0,
        request="{}",
        policy_step=-1,
        cursor=(),
        groups=(),
        digest=b"d",
        algorithm=ALGORITHM,
    )


def assembled(
    *files: Sequence[GroupSpec],
    step: int = 3,
    columns: Sequence[str] = (),
    scalars: Mapping[str, Any] | None = None,
) -> AssembledBatch:
    """A batch of all groups of these files, not yet a ``Batch``."""
    log = PartitionAddress("math", 1, 0)
    parts: list[GroupRows] = []
    signatures = {}
    for index, specs in enumerate(files):
        of_file = group_columns(specs, "math", f"f{index}")
        of_file = replace(of_file, scalars={**of_file.scalars, **(scalars or {})})
        for group in known_groups(log, index, flush_of(specs, name=f"f{index}")):
            parts.append(GroupRows(len(parts), group, of_file, group.group.row_start))
            arrays = of_file.token_arrays.items()
            signatures[group.file.path] = {name: array.signature for name, array in arrays}
    groups = [part.group for part in parts]
    decided = Decided.of(ServedBatch.of(batch_event(step), 0), groups)
    share = Share(decided, list(enumerate(groups)), {}, {}, tuple(columns), 0, 1, 5)
    return assemble(share, parts, signatures.__getitem__)


def batch_of(*files: Sequence[GroupSpec], **request: Any) -> Batch:
    """A batch of all groups of these files; ``request`` as ``assembled``."""
    return assembled(*files, **request).batch(waited_s=0.5, read_group=None)
