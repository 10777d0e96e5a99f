"""Whether a trajectory's segments form one unbroken chain.

Segment k > 0 may say what it continues: ``continuation_of`` is then the trajectory's own
``rollout_uid``, and ``prefix_hash`` names all tokens of segments 0 to k - 1
(``rollstream.schemas.ids.prefix_hash``). Empty means that the producer does not say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from itertools import pairwise

from rollstream.schemas.codec import Segment
from rollstream.schemas.ids import prefix_hash


class ChainState(Enum):
    """What some segments of one trajectory amount to."""

    OPEN = auto()
    """Segments are missing."""
    COMPLETE = auto()
    """The last segment and every one before it are there, each continuing those before it."""
    BROKEN = auto()
    """No later segment can complete it."""


def chain_state(segments: Mapping[int, Segment]) -> ChainState:
    """The state of these segments, by their indexes."""
    last = min((i for i, s in segments.items() if s.header.is_last_segment), default=None)
    if last is None:
        return ChainState.OPEN
    if max(segments) > last:
        return ChainState.BROKEN
    if len(segments) <= last:
        return ChainState.OPEN
    ordered = [segments[idx] for idx in range(last + 1)]
    return ChainState.COMPLETE if _is_chain(ordered) else ChainState.BROKEN


def _is_chain(segments: Sequence[Segment]) -> bool:
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
