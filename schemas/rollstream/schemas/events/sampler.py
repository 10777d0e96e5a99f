"""The sampler's decision log.

Field for field as in the ``.avsc`` of the same name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.events.owned import OwnedEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(OwnedEvent):
    """What a sampler decided.

    Attributes:
        now_ts: when, microseconds since 1970, UTC.
    """

    now_ts: int


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
    """A group that a batch has: which one of a seal log, and what its rows were.

    Attributes:
        offset: of the ``Flushed`` event in the seal log of (environment, generation, partition).
        index: which group of that event, from 0.
        digest: of the group's rows, as sealed.
        row_mask: bool, one a row: those that are served; None: all of them.
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
class BatchServed(Decision):
    """Which groups make the batch of a step. It is confirmed before the batch is returned.

    Attributes:
        request: the request as canonical JSON.
        policy_step: newest policy known when it was decided; -1: none.
        cursor: ordered by environment, generation, partition.
        digest: xxh3-128 over the groups' digests and masks, in order.
    """

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
class Acked(Decision):
    """What became of a served batch.

    Attributes:
        status: trained or failed.
    """

    trainer_epoch: int
    step: int
    batch_id: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed(Decision):
    """Acks up to this step are final."""

    trainer_epoch: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Decision):
    """A trainer resumes: a new trainer epoch begins.

    Attributes:
        trainer_epoch: the new one.
        later: replay or release: what becomes of later batches.
        first_step: the step to do next.
        policy_epoch: the epoch of policies from now on.
    """

    trainer_epoch: int
    checkpointed_step: int | None
    later: str
    first_step: int
    policy_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPublished(Decision):
    """Weights n are those after n optimizer steps."""

    trainer_epoch: int
    step: int
    policy_version: str
    lineage: str
    policy_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced(Decision):
    """Groups of a served batch gave way to others (dynamic sampling).

    Attributes:
        slots: which slots of the batch.
        digest: of the whole batch, as it is now.
    """

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
    """A group that will never be served.

    Attributes:
        offset: of the ``Flushed`` event in the seal log of (environment, generation, partition).
        index: which group of that event, from 0.
    """

    environment: str
    generation: int
    partition: int
    offset: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped(Decision):
    """Groups that will never be served, with the reason.

    Attributes:
        reason: stale, off_branch, capacity, or filtered.
    """

    reason: str
    groups: tuple[DroppedGroup, ...]
