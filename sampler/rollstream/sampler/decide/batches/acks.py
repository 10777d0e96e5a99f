"""What a trainer says became of a batch, compared with what the record has of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollstream.folds.batches.row_outcomes import RowOutcome, unpack_outcomes
from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.state import SamplerState
from rollstream.sampler.decide.batches.held_batches import by_row, group_of, served_rows
from rollstream.sampler.errors import InvalidRequest, RequestDiffers
from rollstream.streams.folds.refs import GroupRef, ref_of


def outcomes_by_row(
    batch: ServedBatch, given: Sequence[bytes], state: SamplerState
) -> dict[int, NDArray[np.int8]]:
    """By slot the outcome of each row of the groups that were not trained on whole.

    Args:
        given: by slot a ``RowOutcome`` of each trajectory that the batch has.

    Raises:
        InvalidRequest: they are not of this batch, or it was not shaped.
    """
    if not batch.is_shaped:
        raise InvalidRequest(
            f"outcomes are those of a shaped batch, and step {batch.event.step} was served by "
            "next_batch; leave them out, or name groups in skipped"
        )
    chosen = batch.all_groups
    if len(given) != len(chosen):
        raise InvalidRequest(
            f"outcomes are of {len(given)} groups, and the batch has {len(chosen)}; ack the batch "
            "that next_shaped_batch returned"
        )
    found = {}
    for slot, of_group in enumerate(given):
        known = group_of(batch, slot, state)
        outcomes = by_row(chosen[slot], known, np.frombuffer(of_group, np.int8), "outcomes")
        offered: NDArray[Any] = served_rows(chosen[slot], known)
        if slot >= len(batch.groups):
            offered = batch.carried[slot - len(batch.groups)].wanted
            outcomes[~offered] = RowOutcome.NONE
        if (outcomes[offered] != RowOutcome.TRAINED).any():
            found[slot] = outcomes
    return found


def check_kept(batch: ServedBatch, step: int, rows: Mapping[GroupRef, NDArray[np.bool_]]) -> None:
    """What ``step`` is to carry was kept by the ack of the batch before it, if that said so.

    Raises:
        RequestDiffers: it was not.
    """
    if batch.outcomes is None:
        return
    kept = kept_rows(batch, unpack_outcomes(batch.outcomes))
    for ref, wanted in rows.items():
        if ref not in kept or (wanted & ~kept[ref]).any():
            raise RequestDiffers(
                f"step {step} cannot carry group {_id_of(batch, ref)}: the ack of step "
                f"{batch.event.step} says that rollouts of it were not kept; carry what the step "
                "kept, with the settings that it was shaped with"
            )


def kept_rows(
    batch: ServedBatch, by_row: Mapping[int, NDArray[np.int8]]
) -> dict[GroupRef, NDArray[np.bool_]]:
    """The rows that are kept, by group."""
    refs = batch.all_refs
    masks = {refs[slot]: rows == RowOutcome.KEPT for slot, rows in by_row.items()}
    return {ref: mask for ref, mask in masks.items() if mask.any()}


def check_carried(
    batch: ServedBatch, kept: Mapping[GroupRef, NDArray[np.bool_]], after: ServedBatch
) -> None:
    """What the ack says was kept is what the next step, which was decided, carries.

    Raises:
        RequestDiffers: it is not.
    """
    carried = {ref_of(one.group): one.wanted for one in after.carried}
    for ref in sorted(kept.keys() | carried.keys()):
        was, now = carried.get(ref), kept.get(ref)
        if _id_of(batch, ref) in after.lost or (
            was is not None and now is not None and (was == now).all()
        ):
            continue
        says, does = (0 if mask is None else int(mask.sum()) for mask in (now, was))
        raise RequestDiffers(
            f"the ack of step {batch.event.step} says that {says} rows of group "
            f"{_id_of(batch, ref)} are kept, and step {after.event.step}, which was decided, "
            f"carries {does} of them; ack what made the step that follows, or release that one "
            f"with resume(…, later='release')"
        )


def _id_of(batch: ServedBatch, ref: GroupRef) -> str:
    return next(one.group_id for one in batch.all_groups if ref_of(one) == ref)
