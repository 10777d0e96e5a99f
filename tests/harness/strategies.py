"""Hypothesis strategies over the entries of a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness.rollouts import make_dispatched, make_entry, make_failed
from rollstream.schemas.ingest.entry import Entry

TOKENS_MAX = 12
COMPONENTS = ("format", "length", "größe")
# Of one name all entries of a record have the same dtype and trailing shape.
TOKEN_ARRAYS: Mapping[str, NDArray[Any]] = {
    "routed_experts": np.zeros((TOKENS_MAX, 2, 3), np.uint8),
    "entropy": np.zeros(TOKENS_MAX, np.float32),
    "nothing": np.zeros((TOKENS_MAX, 0), np.int16),
}
names = st.text("abcdefghij-_0123456789", min_size=1, max_size=8)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
uids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
tokens = st.integers(0, 2**31 - 1)


@st.composite
def segments(draw: st.DrawFn, /, **fixed: Any) -> Entry:
    """A sound segment; ``fixed`` fields are not drawn."""
    count = draw(st.integers(0, TOKENS_MAX))

    def per_token(values: st.SearchStrategy[Any]) -> list[Any] | None:
        return draw(st.none() | st.lists(values, min_size=count, max_size=count))

    drawn: dict[str, Any] = {
        **draw(_shared()),
        "example_id": draw(words),
        "group_uid": draw(words),
        "rollout_uid": draw(uids),
        "metadata": draw(st.just("{}") | words),
        "segment_idx": draw(st.integers(0, 5)),
        "is_last_segment": draw(st.booleans()),
        "created_ts": draw(st.integers(0, 2**52)),
        "reward": draw(st.none() | finite),
        "prompt_tokens": draw(st.lists(tokens, max_size=TOKENS_MAX)),
        "output_tokens": draw(st.lists(tokens, min_size=count, max_size=count)),
        "logprobs": per_token(finite),
        "loss_mask": per_token(st.booleans()),
    }
    if draw(st.booleans()):
        arrays = {
            "actor_logprobs": per_token(finite),
            "ref_logprobs": per_token(finite),
            "token_rewards": per_token(finite),
            "weight_steps": per_token(st.integers(0, 2**40)),
        }
        drawn |= {name: array for name, array in arrays.items() if array is not None}
        drawn |= draw(_rare(count))
    return make_entry(**{**drawn, **fixed})


@st.composite
def _rare(draw: st.DrawFn, count: int) -> dict[str, Any]:
    """What few segments have; each is given only where it says something."""
    which = st.lists(st.sampled_from(sorted(TOKEN_ARRAYS)), unique=True)
    given = {
        "continuation_of": draw(words),
        "prefix_hash": draw(words),
        "messages": draw(words),
        "rewards": draw(st.dictionaries(st.sampled_from(COMPONENTS), finite)),
        "attachments": draw(st.dictionaries(words, st.binary(max_size=16), max_size=2)),
        "token_arrays": {
            name: (TOKEN_ARRAYS[name] + draw(st.integers(0, 255)))[:count].astype(
                TOKEN_ARRAYS[name].dtype
            )
            for name in draw(which)
        },
    }
    rare: dict[str, Any] = {name: value for name, value in given.items() if value}
    whole = draw(st.none() | finite)
    return rare if whole is None else {**rare, "actor_logprob_sum": whole}


def _shared() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "group_size": st.integers(0, 64),
            "lineage": words,
            "policy_version": uids,
            "policy_epoch": st.integers(0, 9),
            "weight_step": st.integers(-1, 2**40),
            "replica_id": words,
            "split": st.sampled_from(["train", "eval"]),
            "stop_reason": words,
            "actor_policy_version": words,
        }
    )


def control_entries() -> st.SearchStrategy[Entry]:
    """Dispatches and failures."""
    group = {"example_id": words, "group_uid": words, "group_size": st.integers(0, 64)}
    dispatched = st.builds(make_dispatched, **group)
    count = st.integers(1, 2**31 - 1)
    failed = st.builds(make_failed, count=count, reason=words, rollout_uid=uids, **group)
    return dispatched | failed


def entries() -> st.SearchStrategy[Entry]:
    """Any sound entry."""
    return segments() | control_entries()


def records(
    entry: st.SearchStrategy[Entry] | None = None, *, max_size: int = 8
) -> st.SearchStrategy[list[Entry]]:
    """The entries of one record; in some, one is there many times."""
    some = st.lists(entries() if entry is None else entry, min_size=1, max_size=max_size)
    return some | st.builds(lambda few, times: few * times, some, st.integers(2, 500 // max_size))
