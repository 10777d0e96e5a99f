"""Whether a trajectory's segments form one unbroken chain.

Segment k > 0 may say what it continues: ``continuation_of`` is then the trajectory's own
``rollout_uid``, and ``prefix_hash`` the hash of segment k - 1. Empty means that the producer does
not say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import xxhash

from rollstream.schemas.codec import Segment


def prefix_hash(segment: Segment) -> str:
    """What the next segment names as its prefix: xxh3-128 over prompt and output tokens as packed
    int32, hexadecimal."""
    state = xxhash.xxh3_128(segment.body["prompt_tokens"])
    state.update(segment.body["output_tokens"])
    return state.hexdigest()


def last_index(segments: Mapping[int, Segment]) -> int | None:
    """The index of the first segment that says it is the last; None where none does yet."""
    ends = [idx for idx, segment in segments.items() if segment.header.is_last_segment]
    return min(ends) if ends else None


def contradicts(segments: Mapping[int, Segment]) -> bool:
    """Whether no later segment can make a chain of these: something stands behind the last."""
    last = last_index(segments)
    return last is not None and max(segments) > last


def is_chain(segments: Sequence[Segment]) -> bool:
    """Whether each of these segments, 0 to the last, continues the one before it."""
    for before, segment in pairwise(segments):
        header = segment.header
        if header.continuation_of not in ("", header.rollout_uid):
            return False
        if header.prefix_hash and header.prefix_hash != prefix_hash(before):
            return False
    return True
