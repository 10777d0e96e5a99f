"""What late scores are matched by: 64-bit hashes of rollouts and groups. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from rollstream.schemas.events import Scored

_HASH_BYTES = 8


def rollout_target(environment: str, rollout_uid: str) -> int:
    """Of scores that name the rollout alone."""
    return xxhash.xxh3_64_intdigest(f"{environment}\x1frollout\x1f{rollout_uid}".encode())


def group_target(environment: str, group_id: str) -> int:
    """Of scores that name the group."""
    return xxhash.xxh3_64_intdigest(f"{environment}\x1fgroup\x1f{group_id}".encode())


def target_of(environment: str, event: Scored) -> int:
    """Of a record: of several uids without a group the first one tells, each has a record."""
    if event.group_id:
        return group_target(environment, event.group_id)
    return rollout_target(environment, event.scores[0].rollout_uid)


def pack_targets(environment: str, uids: Sequence[str], awaited: NDArray[np.bool_]) -> bytes:
    """The rollouts of a group, in its order: 9 bytes each.

    Args:
        awaited: bool [rollouts], whose last segment was published without a reward.
    """
    hashes = np.array([rollout_target(environment, uid) for uid in uids], np.uint64)
    return hashes.tobytes() + awaited.tobytes()


def unpack_targets(targets: bytes) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """The targets of the rollouts, and which were published without a reward."""
    count = len(targets) // (_HASH_BYTES + 1)
    hashes = np.frombuffer(targets, np.uint64, count)
    return hashes, np.frombuffer(targets, np.bool_, count, count * _HASH_BYTES)
