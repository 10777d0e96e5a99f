"""What env workers are told, in ``admission.<env>``: the newest record of a key holds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAnnounced:
    """The newest policy of a sampler's trainer. Of several of one sampler the one with the highest
    ``offset`` holds, and of several samplers of one lineage the one with the highest
    ``published_ts`` (log time), so a zombie that repeats an older one changes nothing."""

    sampler: str
    offset: int
    lineage: str
    policy_epoch: int
    step: int
    policy_version: str
    weights: str
    metadata: str
    max_policy_lag: int
    branch_epochs: NDArray[np.int32]
    branch_steps: NDArray[np.int64]
    published_ts: int = 0
    over: bool = False
    drops_off_branch: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shares:
    """What both generations of the log say of a sampler's shares."""

    sampler: str
    lineage: str
    epoch: int
    number: int
    valid_s: float
    idle_s: float
    idle_groups: int
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesGranted(_Shares):
    """How many groups each producer may have begun, for one sampler, as the log's first generation
    has it. Of several of one sampler the one with the highest ``epoch``, then ``number``, holds,
    for ``valid_s`` by its reader's clock. 0: the sampler has left; negative: it takes no part, as
    if it had never granted anything. ``needed`` is one a producer, or empty; ``limit`` the setting
    by which no more is granted; ``most`` how many groups may be open at one time, at most; 0: that
    is not known yet."""

    producer_ids: tuple[str, ...]
    totals: NDArray[np.int64]
    needed: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    limit: str = ""
    most: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesValid(_Shares):
    """For how long one sampler's shares are valid. The fields are those of ``SharesGranted``. It
    stands in each partition of the log's second generation and is repeated there."""

    limit: str
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerShare:
    """How many groups one producer may have begun, for one sampler: the record's key names both. Of
    several the one with the highest ``epoch``, then ``number``, holds. A producer that has none may
    begin nothing. ``needed`` is 0 where no request of the sampler needs the producer."""

    epoch: int
    number: int
    total: int
    needed: int


def share_key(sampler: str, producer_id: str) -> bytes:
    """The key of a ``ProducerShare``."""
    return f"share/{sampler}/{producer_id}".encode()


def share_of(key: bytes | None) -> tuple[str, str] | None:
    """The sampler and the producer of a ``ProducerShare`` with this key; None: it is none."""
    kind, *of = (key or b"").decode(errors="replace").split("/", 2)
    return (of[0], of[1]) if kind == "share" and len(of) == 2 else None
