"""What may be asked of a sampler. Each command may be repeated without harm. Pure.

``trainer_epoch`` is the epoch that the caller belongs to; None: it has not learnt it yet, and joins
the one in effect.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rollstream.sampler.errors import InvalidRequest
from rollstream.streams.folds.sampler.eligible import Accept

AckStatus = Literal["trained", "failed"]
Later = Literal["replay", "release"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextBatch:
    """The batch that turns weights ``step`` into weights ``step + 1``.

    Attributes:
        dp_rank: which share of the recorded batch is read; it is no part of the request.
    """

    trainer_epoch: int | None = None
    step: int
    num_groups: int
    accept: Accept | None = None
    mix: Mapping[str, float] | None = None
    dp_rank: int = 0
    dp_size: int = 1

    def __post_init__(self) -> None:
        if self.step < 0:
            raise InvalidRequest(f"step {self.step} is negative; the first step is 0")
        if self.num_groups < 1:
            raise InvalidRequest(f"num_groups {self.num_groups} makes no batch; ask for 1 or more")
        if self.accept not in (None, "nonzero_std"):
            raise InvalidRequest(f"accept {self.accept!r} is unknown; use 'nonzero_std' or None")
        if not 0 <= self.dp_rank < self.dp_size:
            raise InvalidRequest(
                f"dp_rank {self.dp_rank} is not below dp_size {self.dp_size}; ranks begin at 0"
            )
        shares = list((self.mix or {"": 1.0}).values())
        if any(share < 0 or not math.isfinite(share) for share in shares) or not sum(shares) > 0:
            raise InvalidRequest(
                f"mix {dict(self.mix or {})} gives no shares; use numbers of 0 or more, not all 0"
            )

    def request(self) -> str:
        """What was asked, as canonical JSON: equal requests are equal texts."""
        asked = {
            "accept": self.accept,
            "mix": None if self.mix is None else {k: float(v) for k, v in self.mix.items()},
            "num_groups": self.num_groups,
        }
        return json.dumps(asked, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """Other groups in these slots of a served batch.

    Attributes:
        digest: of the batch as the caller has it; so a repetition is told from a second wish.
    """

    trainer_epoch: int | None = None
    step: int
    digest: bytes
    slots: tuple[int, ...]
    reason: str
    dp_rank: int = 0
    dp_size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Delivered and trained on (or failed)."""

    trainer_epoch: int | None = None
    step: int
    batch_id: str
    status: AckStatus = "trained"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkCheckpointed:
    """Batches up to this step are final."""

    trainer_epoch: int | None = None
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """A trainer begins a new epoch after this checkpoint; None: from nothing."""

    trainer_epoch: int | None = None
    checkpointed_step: int | None
    later: Later = "replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishPolicy:
    """Weights ``step`` are there under this version."""

    trainer_epoch: int | None = None
    step: int
    policy_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskProgress:
    """What became of examples."""

    trainer_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskStats:
    """How the sampler does."""

    trainer_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRows:
    """All fields of the rows of one group of a served batch.

    Attributes:
        digest: of the batch as the caller has it.
    """

    trainer_epoch: int | None = None
    step: int
    digest: bytes
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictOverCapacity:
    """The sampler's own wish: drop what is beyond the capacity."""

    trainer_epoch: int | None = None


Command = (
    NextBatch
    | Replace
    | Ack
    | MarkCheckpointed
    | Resume
    | PublishPolicy
    | AskProgress
    | AskStats
    | ReadRows
    | EvictOverCapacity
)


@dataclass(frozen=True, slots=True)
class Progress:
    """What became of examples: what a data loader needs to resume.

    Each is environment to example id to the number of groups.

    Attributes:
        trained: in final batches.
        failed: in batches that were acked as failed, and final.
        filtered: replaced, or not accepted.
        dropped: stale, off the branch, or beyond the capacity.
        handed_out: in batches that are not final yet.
        ready: groups that may be served, by environment.
        next_step: the step that was not served yet.
        final_step: the newest step that is final; None: none is.
    """

    trained: Mapping[str, Mapping[str, int]]
    failed: Mapping[str, Mapping[str, int]]
    filtered: Mapping[str, Mapping[str, int]]
    dropped: Mapping[str, Mapping[str, int]]
    handed_out: Mapping[str, Mapping[str, int]]
    ready: Mapping[str, int]
    next_step: int
    final_step: int | None
