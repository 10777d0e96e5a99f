"""The batches that are held, and the groups in their slots. Pure."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.group.known import KnownGroup
from rollstream.folds.state import SamplerState
from rollstream.sampler.errors import InvalidRequest, RequestDiffers, UnknownStep
from rollstream.schemas.events import ChosenGroup

# As batches are named: sampler, trainer epoch, step, and how often groups were replaced.
_BATCH_ID = re.compile(r".*-\d+-(?P<step>\d{1,18})(-r\d+)?", re.DOTALL)


def step_of(batch_id: str) -> int:
    """The step of a batch by its id; ``InvalidRequest`` where it is none."""
    found = _BATCH_ID.fullmatch(batch_id)
    if found is None:
        raise InvalidRequest(
            f"batch is {batch_id!r:.200}; give the Batch that next_batch returned, or its batch_id"
        )
    return int(found["step"])


def batch_of(step: int, state: SamplerState) -> ServedBatch:
    """The batch of a step; ``UnknownStep`` where it was not served, or is no longer held."""
    batch = state.batches.get(step)
    if batch is None:
        # A release may have gone back behind steps that were final, and those may be open again.
        opened = (batch.event.step for batch in state.open_batches())
        final = min(state.final_step, min(opened, default=state.next_step) - 1)
        raise UnknownStep(
            f"step {step} has no batch that is held; the next one to be served is "
            f"{state.next_step} and {f'steps up to {final} are' if final >= 0 else 'none is'} final"
        )
    return batch


def is_recorded(step: int, state: SamplerState) -> bool:
    """Whether the batch of a step is final and no longer held, so that the record alone has it."""
    return step not in state.batches and 0 <= step <= min(state.final_step, state.next_step - 1)


def not_in_record(step: int, why: str) -> UnknownStep:
    """What is raised where the record does not have the batch of a final step any more."""
    return UnknownStep(
        f"the batch of step {step} is final and cannot be read again: {why}; resume from a newer "
        f"checkpoint, or resume({step - 1 if step else None}, later='release'), so that the step "
        "gets other groups"
    )


def check_unchanged(batch: ServedBatch, digest: bytes) -> ServedBatch:
    """The batch, where it has this digest; else ``RequestDiffers``."""
    if batch.digest != digest:
        raise RequestDiffers(
            f"the batch of step {batch.event.step} has changed since it was read; ask for it again"
        )
    return batch


def groups_of(served: ServedBatch, state: SamplerState) -> list[KnownGroup]:
    """All groups of a batch, by slot, those that it carries last; raises as ``group_of``."""
    return [group_of(served, slot, state) for slot in range(len(served.all_groups))]


def group_of(served: ServedBatch, slot: int, state: SamplerState) -> KnownGroup:
    """The sealed group in a slot of a batch, with the scores that it was served with, whatever
    it was given since; ``InvalidRequest`` where the sampler does not read its
    environment any more."""
    chosen = served.all_groups[slot]
    group = state.group(chosen)
    if group is None:
        assert chosen.environment not in state.choosing.names(), chosen
        raise InvalidRequest(
            f"the batch of step {served.event.step} holds groups of environment "
            f"{chosen.environment!r}, which samplers.{state.name}.environments does not name "
            "any more; add it again, or resume(…, later='release')"
        )
    return group._replace(scores=chosen.scores)


def served_rows(chosen: ChosenGroup, known: KnownGroup) -> NDArray[np.int64]:
    """Indexes of the rows that a batch has of the group."""
    if chosen.row_mask is None:
        return np.arange(known.group.rows)
    return np.flatnonzero(chosen.row_mask)


def by_row(chosen: ChosenGroup, known: KnownGroup, values: NDArray[Any], name: str) -> NDArray[Any]:
    """Of each row of the group the value of its trajectory; 0 where the batch has not the row.

    Args:
        values: one for each trajectory that the batch has; else ``InvalidRequest``.
        name: what they are called in the error.
    """
    rows = served_rows(chosen, known)
    there, of_rows = np.unique(trajectories_of(known)[rows], return_inverse=True)
    if len(values) != len(there):
        raise InvalidRequest(
            f"{name} of group {chosen.group_id} has {len(values)} values; it was served with "
            f"{len(there)} trajectories, and each needs one"
        )
    found = np.zeros(known.group.rows, values.dtype)
    found[rows] = values[of_rows]
    return found


def trajectories_of(known: KnownGroup) -> NDArray[np.int64]:
    """Of each row the trajectory, from 0."""
    return np.cumsum(known.rows.unpack().begins) - 1
