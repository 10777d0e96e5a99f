"""Hypothesis strategies over the entries of a record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness.rollouts import make_dispatched, make_ended, make_entry, make_failed
from rollstream.schemas.ingest.entry import Entry
from rollstream.schemas.rules import LOGPROB_MIN

TOKENS_MAX = 12
COMPONENTS = ("format", "length", "größe")
# Of one name all entries of a record have the same dtype and trailing shape.
TOKEN_ARRAYS: Mapping[str, NDArray[Any]] = {
    "routed_experts": np.zeros((TOKENS_MAX, 2, 3), np.uint8),
    "entropy": np.zeros(TOKENS_MAX, np.float32),
    "nothing": np.zeros((TOKENS_MAX, 0), np.int16),
}
words = st.sampled_from(
    ["", "a", "ex-17", "größe", "数学", "\U0001f9ee x", '"\\\0', "/" * 60, "long " * 60]
)
uid_words = words.filter(lambda word: "\0" not in word)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
uids = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


def per_token(count: int, dtype: str) -> st.SearchStrategy[NDArray[Any]]:
    """[count], of any values within a range that the dtype has."""
    spread = {"<i4": 8_388_607, "<i8": 2**33 + 1, "<f4": -0.125, "|b1": 1}[dtype]
    drawn = st.binary(min_size=count, max_size=count)
    return drawn.map(lambda raw: (np.frombuffer(raw, np.int8) * np.array(spread)).astype(dtype))


@st.composite
def segments(draw: st.DrawFn, /, **fixed: Any) -> Entry:
    """A sound segment; ``fixed`` fields are not drawn."""
    count = draw(st.integers(0, TOKENS_MAX))

    def some(dtype: str) -> NDArray[Any] | None:
        return draw(st.none() | per_token(count, dtype))

    drawn: dict[str, Any] = {
        **draw(_SHARED),
        **draw(_OWN),
        "prompt_tokens": np.abs(draw(per_token(draw(st.integers(0, TOKENS_MAX)), "<i4"))),
        "output_tokens": np.abs(draw(per_token(count, "<i4"))),
        "logprobs": _logprobs(some("<f4")),
        "loss_mask": some("|b1"),
    }
    if draw(st.booleans()):
        arrays = {name: some(dtype) for name, dtype in _RARE_ARRAYS.items()}
        arrays |= {name: _logprobs(arrays[name]) for name in ("old_logprobs", "ref_logprobs")}
        drawn |= {name: array for name, array in arrays.items() if array is not None}
        drawn |= draw(_rare(count))
    return make_entry(**{**drawn, **fixed})


def _logprobs(values: NDArray[Any] | None) -> NDArray[Any] | None:
    return None if values is None else np.maximum(-np.abs(values), LOGPROB_MIN, dtype="<f4")


_RARE_ARRAYS = {
    "old_logprobs": "<f4",
    "ref_logprobs": "<f4",
    "token_rewards": "<f4",
    "weight_steps": "<i8",
}
_OWN = st.fixed_dictionaries(
    {
        "example_id": words,
        "group_uid": uid_words,
        "rollout_uid": uids,
        "metadata": st.just("{}") | st.dictionaries(words, words, max_size=2).map(json.dumps),
        "segment_idx": st.integers(0, 5),
        "is_last_segment": st.booleans(),
        "created_ts": st.integers(0, 2**52),
        "reward": st.none() | finite,
    }
)
_SHARED = st.fixed_dictionaries(
    {
        "group_size": st.integers(0, 64),
        "lineage": words,
        "policy_version": st.sampled_from(["step-0", "step-1", "größe", "/" * 66]),
        "policy_epoch": st.integers(0, 9),
        "weight_step": st.integers(-1, 2**40),
        "replica_id": words,
        "split": st.sampled_from(["train", "eval"]),
        "stop_reason": words,
        "old_policy_version": words,
    }
)


@st.composite
def _rare(draw: st.DrawFn, count: int) -> dict[str, Any]:
    """What few segments have; each is given only where it says something."""
    which = st.lists(st.sampled_from(sorted(TOKEN_ARRAYS)), unique=True)
    given = {
        "continuation_of": draw(words),
        "prefix_hash": draw(words),
        "messages": draw(words),
        "rewards": draw(st.dictionaries(st.sampled_from(COMPONENTS), finite)),
        "attachments": draw(st.dictionaries(texts, st.binary(max_size=16), max_size=2)),
        "token_arrays": {
            name: (TOKEN_ARRAYS[name] + draw(st.integers(0, 255)))[:count].astype(
                TOKEN_ARRAYS[name].dtype
            )
            for name in draw(which)
        },
    }
    rare: dict[str, Any] = {name: value for name, value in given.items() if value}
    for name, sums in (("logprob_sum", finite.map(lambda x: -abs(x))), ("old_logprob_sum", finite)):
        whole = draw(st.none() | sums)
        rare |= {} if whole is None else {name: whole}
    return rare


def control_entries() -> st.SearchStrategy[Entry]:
    """Dispatches, failures and ends of trajectories."""
    group = {"example_id": words, "group_uid": uid_words, "group_size": st.integers(0, 64)}
    dispatched = st.builds(make_dispatched, **group)
    count = st.integers(1, 2**31 - 1)
    failed = st.builds(make_failed, count=count, reason=words, rollout_uid=uids, **group)
    ended = st.builds(make_ended, uids, st.integers(0, 5), group_uid=uid_words)
    return dispatched | failed | ended


def entries() -> st.SearchStrategy[Entry]:
    """Any sound entry."""
    return segments() | control_entries()


def records(
    entry: st.SearchStrategy[Entry] | None = None, *, max_size: int = 8
) -> st.SearchStrategy[list[Entry]]:
    """The entries of one record; in some, one is there many times."""
    some = st.lists(entries() if entry is None else entry, min_size=1, max_size=max_size)
    return some | st.builds(lambda few, times: few * times, some, st.integers(2, 500 // max_size))
