"""Identities: segments, group keys, group ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from rollstream.schemas.reasons import SealReason

MIXED_POLICY = "mixed"


SegmentId = str | tuple[str, int]
"""What dedupe works on: ``segment_id(rollout_uid, segment_idx)``."""


READS_ITS_SHARE = "~2"
"""The end of a producer's id, if it reads its own share from the second generation of
``admission.<env>``. A sampler writes the first generation's shares for all others."""


def segment_id(rollout_uid: str, segment_idx: int) -> SegmentId:
    """Names a segment within its environment. A first segment's id is its uid alone, which saves
    a tuple for most."""
    return (rollout_uid, segment_idx) if segment_idx else rollout_uid


def prompt_id(group_uid: str, seal_reason: str) -> SegmentId:
    """Names a prompt that was sealed, as no segment is named: with all of its trajectories, or for
    another reason."""
    return (group_uid, -1 if seal_reason == SealReason.FULL else -2)


class PartitionAddress(NamedTuple):
    """One partition of an environment: the same number in its ingest log and in its seal log.

    Addresses sort by environment, generation, partition.
    """

    environment: str
    generation: int
    partition: int

    def __str__(self) -> str:
        """As messages name it, for example ``math[0]``."""
        return f"{self.environment}[{self.partition}]"


class RootId(NamedTuple):
    """What sets a store's root apart from every other folder, and the deployment that it is of.

    Attributes:
        root_id: of the root; empty: it has none.
        namespace, generation: of the deployment's topics; empty and 0 where a version recorded
            the id that knew no more.
    """

    root_id: str = ""
    namespace: str = ""
    generation: int = 0


class GroupKey(NamedTuple):
    """What the members of a group share.

    With ``group_uid`` the producer said so. Strict grouping names the policy version too; mixed
    grouping leaves it empty.
    """

    environment: str
    example_id: str
    segment_idx: int
    policy_version: str
    group_uid: str


def group_id(key: GroupKey, uids: Iterable[str]) -> str:
    """Deterministic: a function of the key and the sorted member uids; 32 hexadecimal digits."""
    framed = b"".join(_framed(part.encode()) for part in (*map(str, key), *sorted(uids)))
    return hashlib.blake2b(framed, digest_size=16).hexdigest()


def _framed(part: bytes) -> bytes:
    return len(part).to_bytes(4, "little") + part


def step_rollout_uid(prompt_uid: str, trajectory_uid: str) -> str:
    """The ``rollout_uid`` of a trajectory that is submitted in steps: 48 hexadecimal digits.

    The first 32 are BLAKE2b, with a digest of 16 bytes, over the length of the prompt's uid (bytes
    of its UTF-8, as four bytes, the lowest first), that UTF-8, and the trajectory's. So ``("a",
    "bc")`` and ``("ab", "c")`` are two rollouts. The last 16 are ``trajectory_digest``.
    """
    framed = _framed(prompt_uid.encode()) + trajectory_uid.encode()
    digest = hashlib.blake2b(framed, digest_size=16).hexdigest()
    return digest + trajectory_digest(trajectory_uid)


def trajectory_digest(trajectory_uid: str) -> str:
    """How every ``step_rollout_uid`` of the trajectory's uid ends, whatever its prompt is: 16
    hexadecimal digits, BLAKE2b with a digest of 8 bytes over its UTF-8."""
    return hashlib.blake2b(trajectory_uid.encode(), digest_size=8).hexdigest()


def prefix_hash(
    before: str, prompt_tokens: bytes | memoryview, output_tokens: bytes | memoryview
) -> str:
    """Names all tokens before a segment: 32 hexadecimal digits, empty for the first segment.

    Args:
        before: the ``prefix_hash`` of the segment before.
        prompt_tokens: that segment's, packed as int32 little-endian.
        output_tokens: the same.
    """
    digest = hashlib.blake2b(bytes.fromhex(before), digest_size=16)
    digest.update(len(prompt_tokens).to_bytes(4, "little"))
    digest.update(prompt_tokens)
    digest.update(output_tokens)
    return digest.hexdigest()
