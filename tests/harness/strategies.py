"""Hypothesis strategies over rollouts."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from harness.rollouts import encode_segment, make_fields, make_segment, token_array
from rollstream.schemas.codec import Segment

TOKENS_MAX = 12
names = st.text("abcdefghij-_0123456789", min_size=1, max_size=8)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
tokens = st.integers(0, 2**31 - 1)


@st.composite
def rollout_fields(draw: st.DrawFn, /, **fixed: Any) -> dict[str, Any]:
    """Consistent fields as they travel (``make_fields``); ``fixed`` ones are not drawn."""
    count = draw(st.integers(0, TOKENS_MAX))

    def per_token(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any] | None]:
        return st.none() | st.lists(values, min_size=count, max_size=count)

    drawn: dict[str, Any] = {
        "environment": draw(names),
        "example_id": draw(words),
        "group_uid": draw(words),
        "group_size": draw(st.integers(0, 64)),
        "rollout_uid": draw(words),
        "segment_idx": draw(st.integers(0, 5)),
        "is_last_segment": draw(st.booleans()),
        "lineage": draw(words),
        "policy_version": draw(words),
        "policy_epoch": draw(st.integers(0, 9)),
        "weight_step": draw(st.integers(-1, 2**40)),
        "replica_id": draw(words),
        "created_ts": draw(st.integers(0, 2**52)),
        "prompt_tokens": draw(st.lists(tokens, max_size=TOKENS_MAX)),
        "output_tokens": draw(st.lists(tokens, min_size=count, max_size=count)),
        "logprobs": draw(per_token(finite)),
        "loss_mask": draw(per_token(st.booleans())),
        "reward": draw(st.none() | finite),
        "rewards": draw(st.dictionaries(words, finite, max_size=3)),
        "split": draw(st.sampled_from(["train", "eval"])),
        "stop_reason": draw(words),
    }
    if draw(st.booleans()):
        drawn |= _rare(draw, count)
    return make_fields(**{**drawn, **fixed})


def _rare(draw: st.DrawFn, count: int) -> dict[str, Any]:
    def floats() -> list[float] | None:
        return draw(st.none() | st.lists(finite, min_size=count, max_size=count))

    return {
        "actor_logprobs": floats(),
        "actor_logprob_sum": draw(st.none() | finite),
        "actor_policy_version": draw(words),
        "ref_logprobs": floats(),
        "token_rewards": floats(),
        "weight_steps": draw(
            st.none() | st.lists(st.integers(0, 2**40), min_size=count, max_size=count)
        ),
        "token_arrays": [
            token_array(name, np.zeros((count, 2, 3), np.uint8) + draw(st.integers(0, 255)))
            for name in draw(st.lists(names, max_size=2, unique=True))
        ],
        "attachments": [
            {"name": name, "data": draw(st.binary(max_size=16))}
            for name in draw(st.lists(names, max_size=2, unique=True))
        ],
        "messages": draw(words),
    }


def segments(**fixed: Any) -> st.SearchStrategy[Segment]:
    """Segments as a reader sees them."""
    return rollout_fields(**fixed).map(_segment)


def encoded_segments(**fixed: Any) -> st.SearchStrategy[bytes]:
    """The bytes of segments."""
    return rollout_fields(**fixed).map(lambda fields: encode_segment(**_flat(fields)))


def _segment(fields: dict[str, Any]) -> Segment:
    return make_segment(**_flat(fields))


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    return {**{k: v for k, v in fields.items() if k != "extras"}, **(fields["extras"] or {})}
