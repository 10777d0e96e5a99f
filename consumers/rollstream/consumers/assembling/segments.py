"""Whether a trajectory's segments form one unbroken chain.

Segment k > 0 may say what it continues: ``continuation_of`` is then the trajectory's own
``rollout_uid``, and ``prefix_hash`` names all tokens of segments 0 to k - 1
(``rollstream.schemas.ids.prefix_hash``). Empty means that the producer does not say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from rollstream.schemas.codec import Segment
from rollstream.schemas.ids import prefix_hash


def last_index(segments: Mapping[int, Segment]) -> int | None:
    """The index of the first segment that says it is the last; None where none does yet."""
    ends = [idx for idx, segment in segments.items() if segment.header.is_last_segment]
    return min(ends) if ends else None


def contradicts(segments: Mapping[int, Segment]) -> bool:
    """Whether no later segment can make a chain of these: something stands behind the last."""
    last = last_index(segments)
    return last is not None and max(segments) > last


def is_chain(segments: Sequence[Segment]) -> bool:
    """Whether each of these segments, 0 to the last, continues those before it."""
    prefix = ""
    for before, segment in pairwise(segments):
        body = before.body
        prefix = prefix_hash(prefix, body["prompt_tokens"], body["output_tokens"])
        header = segment.header
        if header.continuation_of not in ("", header.rollout_uid):
            return False
        if header.prefix_hash and header.prefix_hash != prefix:
            return False
    return True
