"""The sampler's decision log.

Field for field as in the ``.avsc`` of the same name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """How far one partition of a seal log had been applied when a decision was made.

    Attributes:
        groups_next_offset: the first offset of the seal log that was not applied yet.
    """

    environment: str
    generation: int
    partition: int
    groups_next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenGroup:
    """A group of a Flushed event at (environment, generation, partition, offset).

    Attributes:
        index: which group of that event.
        row_mask: null: all rows.
    """

    environment: str
    generation: int
    partition: int
    offset: int
    index: int
    group_id: str
    digest: bytes
    row_mask: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchServed:
    """A decision: which groups make the batch of a step. Confirmed before the batch is returned.

    Attributes:
        epoch: offset of the claim under which this was written.
        nonce: the claim's nonce.
        request: the request as canonical JSON.
        policy_step: newest policy known when it was decided; -1: none.
        cursor: ordered by environment, generation, partition.
        digest: xxh3-128 over the groups' digests and masks, in order.
    """

    epoch: int
    nonce: str
    now_ts: int
    trainer_epoch: int
    step: int
    batch_id: str
    seed: int
    request: str
    policy_step: int
    cursor: tuple[LogPosition, ...]
    groups: tuple[ChosenGroup, ...]
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    """Delivered and trained on.

    Attributes:
        epoch: offset of the claim under which this was written.
        nonce: the claim's nonce.
        status: trained or failed.
    """

    epoch: int
    nonce: str
    now_ts: int
    trainer_epoch: int
    step: int
    batch_id: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed:
    """Acks up to this step are final.

    Attributes:
        epoch: offset of the claim under which this was written.
        nonce: the claim's nonce.
    """

    epoch: int
    nonce: str
    now_ts: int
    trainer_epoch: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A trainer resumes: a new trainer epoch begins.

    Attributes:
        epoch: offset of the claim under which this was written.
        nonce: the claim's nonce.
        trainer_epoch: the new one.
        later: replay or release: what becomes of later batches.
        first_step: the step to do next.
        policy_epoch: the epoch of policies from now on.
    """

    epoch: int
    nonce: str
    now_ts: int
    trainer_epoch: int
    checkpointed_step: int | None
    later: str
    first_step: int
    policy_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPublished:
    """Weights n are those after n optimizer steps.

    Attributes:
        epoch: offset of the claim under which this was written.
        nonce: the claim's nonce.
    """

    epoch: int
    nonce: str
    now_ts: int
    trainer_epoch: int
    step: int
    policy_version: str
    lineage: str
    policy_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """Groups of a served batch gave way to others (dynamic sampling).

    Attributes:
        epoch: offset of the claim under which this was written.
        nonce: the claim's nonce.
        slots: which slots of the batch.
        digest: of the whole batch, as it is now.
    """

    epoch: int
    nonce: str
    now_ts: int
    trainer_epoch: int
    step: int
    batch_id: str
    reason: str
    slots: NDArray[np.int32]
    groups: tuple[ChosenGroup, ...]
    cursor: tuple[LogPosition, ...]
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedGroup:
    """A group of the ``Flushed`` event at (environment, generation, partition, offset).

    Attributes:
        index: which group of that event, from 0.
    """

    environment: str
    generation: int
    partition: int
    offset: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Groups that will never be served, with the reason.

    Attributes:
        epoch: offset of the claim under which this was written.
        nonce: the claim's nonce.
        reason: stale, off_branch, capacity, or filtered.
    """

    epoch: int
    nonce: str
    now_ts: int
    reason: str
    groups: tuple[DroppedGroup, ...]
