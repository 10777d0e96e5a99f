"""The sampler's decision log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.events.owned import OwnedEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(OwnedEvent):
    """What a sampler decided, and when: ``now_ts``, log time in microseconds since 1970, UTC."""

    now_ts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDecision(Decision):
    """A decision about one step of a trainer's epoch."""

    trainer_epoch: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """How far one partition of a seal log, and of the log of scores, had been applied when a
    decision was made."""

    environment: str
    generation: int
    partition: int
    groups_next_offset: int
    scores_next_offset: int = 0


class ServedScore(NamedTuple):
    """A late score of a rollout: ``reward`` is what its last row, of that index in the group,
    earned, whatever it was published with. ``version`` counts from 1 within its scorer."""

    row: int
    reward: float
    rewards: Mapping[str, float]
    scorer: str
    version: int
    attempt: str
    logged_ts: int
    by_group: bool
    flags: tuple[str, ...]


class ChosenGroup(NamedTuple):
    """A group that a batch has: which one of a seal log, and what its rows were.

    ``offset`` is of the ``Flushed`` event in the seal log of (environment, generation, partition);
    ``digest`` is of the group's rows, as sealed. ``row_mask``, one a row, names those that are
    served; None: all of them. Left out were ``over_step_delay`` rollouts since their weights were
    too old, and ``over_timestamp_delay`` others since they were made too long ago. ``scores`` are
    the late ones that its rewards are made of; the digest of a batch covers them.
    """

    environment: str
    generation: int
    partition: int
    offset: int
    index: int  # type: ignore[assignment]  # Of the group, not the tuple's method.
    group_id: str
    digest: bytes
    row_mask: NDArray[np.bool_] | None = None
    over_step_delay: int = 0
    over_timestamp_delay: int = 0
    scores: tuple[ServedScore, ...] = ()


class CarriedRows(NamedTuple):
    """A group that the step before was served with, or carried, as it was served. ``wanted``, one a
    row, names those that are yet to be trained on; the others say what they earned."""

    group: ChosenGroup
    wanted: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchServed(StepDecision):
    """Which groups make the batch of a step. It is confirmed before the batch is returned.

    ``carried`` come after ``groups``, and are held against deletion as these are.

    ``choosing`` (``Choosing.recorded()``) and ``algorithm`` are what chose: with the request, the
    seed, the cursor and the decisions before it the choice can be made again."""

    batch_id: str
    seed: int
    request: str
    policy_step: int
    cursor: tuple[LogPosition, ...]
    groups: tuple[ChosenGroup, ...]
    digest: bytes
    choosing: str = ""
    algorithm: int = 0
    policy_epoch: int = 0
    current_step: int = -1
    carried: tuple[CarriedRows, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked(StepDecision):
    """What became of a served batch. Groups in the slots ``skipped`` were not trained on.

    ``outcomes`` says what became of each row of a shaped batch, as
    ``folds.batches.row_outcomes`` packs it; None: the ack does not say. ``filtered`` are
    slots of groups that were left out whole, by acks of version 1.
    """

    batch_id: str
    status: str
    skipped: tuple[int, ...] = ()
    filtered: tuple[int, ...] = ()
    outcomes: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Made(StepDecision):
    """What a batch maker made of a served batch, by its digest; it decides nothing."""

    batch_id: str
    maker: str
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed(StepDecision):
    """Acks up to this step are final."""

    batch_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Decision):
    """A trainer resumes: a new trainer epoch begins. Where it ``reads_pool``, steps are fetches,
    and ``weight_step`` is that of the weights it goes on with, -1 where it did not say."""

    trainer_epoch: int
    checkpointed_step: int | None
    later: str
    first_step: int
    policy_epoch: int
    reads_pool: bool = False
    weight_step: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPublished(StepDecision):
    """Weights n are those after n optimizer steps; ``metadata`` is JSON."""

    policy_version: str
    lineage: str
    policy_epoch: int
    weights: str = ""
    metadata: str = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced(StepDecision):
    """Groups of a served batch gave way to others (dynamic sampling, or files that cannot be
    read)."""

    batch_id: str
    reason: str
    slots: NDArray[np.int32]
    groups: tuple[ChosenGroup, ...]
    cursor: tuple[LogPosition, ...]
    digest: bytes
    outcome: str = "filtered"
    choosing: str = ""
    algorithm: int = 0
    policy_epoch: int = 0


class DroppedGroup(NamedTuple):
    """A group that will never be served, named as in ``ChosenGroup``, with as many rollouts as
    there were too old."""

    environment: str
    generation: int
    partition: int
    offset: int
    index: int  # type: ignore[assignment]  # Of the group, not the tuple's method.
    over_step_delay: int = 0
    over_timestamp_delay: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped(Decision):
    """Groups that will never be served, with the reason."""

    reason: str
    groups: tuple[DroppedGroup, ...]
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentStepSet(StepDecision):
    """The step that the trainer is at, where it asks for batches by other numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Decision):
    """The run is over: nothing more is asked for. Any later decision begins it again."""

    trainer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorRecorded(Decision):
    """How far the seal logs were applied; it decides nothing. ``now_ts`` is the time by the
    machine's clock, so that its own LogAppendTime shows whether that clock is wrong."""

    cursor: tuple[LogPosition, ...]
