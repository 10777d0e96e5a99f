"""Columns for tests: strategies, and exact comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from harness.rollouts import make_columns, make_entry
from rollstream.schemas.columns import Columns, Components, Ragged
from rollstream.schemas.ingest.entry import Entry

TOKENS_MAX = 12
SIGNATURES = [
    *(("|u1", (2, 3)), ("|u1", ()), ("|b1", ()), ("<f2", ()), ("<i4", ()), ("<u4", ())),
    *(("<f4", ()), ("<i8", ()), ("<f8", ()), ("<f4", (2,)), ("<c8", ()), ("|u1", (0,))),
]
"""dtype and trailing shape of named arrays: lists and bytes, also with nothing a token."""

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = st.text("ab.-_é", min_size=1, max_size=3)
finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


def entry_lists(*, attachments: bool = True) -> st.SearchStrategy[list[Entry]]:
    """Some segments that may stand in one file: they agree in dtype and shape of named arrays."""
    signatures = st.dictionaries(names, st.sampled_from(SIGNATURES), max_size=3)
    return signatures.flatmap(
        lambda named: st.lists(_entries(named, attachments), min_size=1, max_size=6)
    )


@st.composite
def _entries(draw: st.DrawFn, named: dict[str, Any], attachments: bool) -> Entry:
    count = draw(st.integers(0, TOKENS_MAX))

    def per_token(values: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | st.lists(values, min_size=count, max_size=count))

    fields: dict[str, Any] = {
        "example_id": draw(words),
        "group_uid": draw(words),
        "group_size": draw(st.integers(0, 64)),
        "rollout_uid": draw(words.filter(bool)),
        "segment_idx": draw(st.integers(0, 5)),
        "is_last_segment": draw(st.booleans()),
        "policy_version": draw(words),
        "weight_step": draw(st.integers(-1, 2**40)),
        "created_ts": draw(st.integers(0, 2**52)),
        "prompt_tokens": range(draw(st.integers(0, TOKENS_MAX))),
        "output_tokens": range(count),
        "logprobs": per_token(finite),
        "loss_mask": per_token(st.booleans()),
        "reward": draw(st.none() | finite),
        "metadata": draw(words),
    }
    if draw(st.booleans()):
        fields |= {
            "rewards": draw(st.dictionaries(words, finite, max_size=3)),
            "messages": draw(words),
            "logprob_sum": draw(st.none() | finite),
            "old_logprob_sum": draw(st.none() | finite),
            "ref_logprobs": per_token(finite),
            "weight_steps": per_token(st.integers(0, 2**40)),
            "token_arrays": {
                name: np.full((count, *shape), draw(st.integers(0, 1)), dtype)
                for name, (dtype, shape) in named.items()
                if draw(st.booleans())
            },
        }
        if attachments:
            files = st.dictionaries(words, st.binary(max_size=4), max_size=2)
            fields["attachments"] = draw(files)
    return make_entry(**fields)


def columns(*, attachments: bool = True) -> st.SearchStrategy[Columns]:
    """The rows of a file."""
    return entry_lists(attachments=attachments).map(make_columns)


def assert_same(found: Columns, expected: Columns) -> None:
    """Both have the same fields, and these the same dtypes, rows and values."""
    assert found.rows == expected.rows
    assert found.scalars.keys() == expected.scalars.keys()
    for name, values in expected.scalars.items():
        assert_same_values(found.scalars[name], values)
    for ours, theirs in (
        (found.arrays, expected.arrays),
        (found.token_arrays, expected.token_arrays),
    ):
        assert ours.keys() == theirs.keys()
        for name, ragged in theirs.items():
            assert_same_ragged(ours[name], ragged)
    _assert_same_components(found.rewards, expected.rewards)
    assert found.attachments == expected.attachments


def assert_same_ragged(found: Ragged, expected: Ragged) -> None:
    """Both have the same rows."""
    assert found.signature == expected.signature
    assert_same_values(found.offsets, expected.offsets)
    assert found.values.tobytes() == expected.values.tobytes()
    if expected.present is None:
        assert found.present is None
    else:
        assert found.present is not None
        assert_same_values(found.present, expected.present)


def _assert_same_components(found: Components | None, expected: Components | None) -> None:
    if expected is None or found is None:
        assert found is expected
        return
    assert found.names == expected.names
    for name in ("offsets", "indexes", "values"):
        assert_same_values(getattr(found, name), getattr(expected, name))


def assert_same_values(found: Any, expected: Any) -> None:
    """Two lists of texts, or two arrays of one dtype and the same bytes."""
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
    else:
        assert found == expected
