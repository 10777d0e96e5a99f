"""Events to bytes and back; what is no event of ours is ``UnreadableEvent``, nothing else."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollstream.schemas.header import RolloutHeader

from harness.events import KINDS, ROLLOUT, events, example, same
from harness.rollouts import encode_segment, make_fields, token_array
from harness.strategies import rollout_fields
from rollstream.schemas import wire_schemas
from rollstream.schemas.codec import Segment, decode, decode_as, encode, encode_rollout
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import Claimed, Dispatched, Failed


@given(st.one_of([events(kind) for kind in KINDS]))
def test_any_event_comes_back_as_it_was(event: Any) -> None:
    assert same(decode(encode(event)), event)


@given(rollout_fields())
def test_any_rollout_comes_back_as_it_was(fields: dict[str, Any]) -> None:
    segment = decode(encode_rollout(fields))
    assert isinstance(segment, Segment)
    assert {**segment.header._asdict(), **segment.body} == fields
    assert segment.header == RolloutHeader(**{k: fields[k] for k in RolloutHeader._fields})


@given(st.sampled_from([example(kind) for kind in KINDS]), st.data())
def test_an_event_that_ends_early_or_late_is_torn(event: Any, data: st.DataObject) -> None:
    value = encode(event)
    cut = data.draw(st.integers(wire_schemas.PREFIX_BYTES, len(value) - 1))
    for torn in (value[:cut], value + b"\0"):
        with pytest.raises(UnreadableEvent) as told:
            decode(torn)
        assert told.value.reason == "torn"


@given(st.sampled_from(list(wire_schemas.by_prefix())), st.binary(max_size=80))
def test_garbage_behind_a_known_prefix_is_an_event_or_unreadable(
    prefix: bytes, junk: bytes
) -> None:
    _decode_or_unreadable(prefix + junk)


@given(
    st.sampled_from([*map(encode, map(example, KINDS)), encode_segment(**ROLLOUT)]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
)
def test_flipped_bytes_are_an_event_or_unreadable(
    value: bytes, flips: list[tuple[float, int]]
) -> None:
    changed = bytearray(value)
    for place, byte in flips:
        changed[int(place * len(changed))] = byte
    _decode_or_unreadable(bytes(changed))


def _decode_or_unreadable(value: bytes) -> None:
    # Anything else that is raised fails the test.
    with contextlib.suppress(UnreadableEvent):
        decode(value)


@pytest.mark.parametrize("value", [b"", b"\xc3", b"hello, this is no event", b"{}"])
def test_bytes_without_the_marker_are_not_an_event(value: bytes) -> None:
    with pytest.raises(UnreadableEvent) as told:
        decode(value)
    assert told.value.reason == "not_an_event"


def test_an_unknown_fingerprint_is_named() -> None:
    with pytest.raises(UnreadableEvent, match="0102030405060708") as told:
        decode(wire_schemas.MARKER + bytes(range(1, 9)) + b"payload")
    assert told.value.reason == "unknown_schema"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"created_ts": 253_402_300_800_000_000}, "created_ts is 253402300800000000"),
        ({"prompt_count": 3}, "prompt_count"),
        ({"token_count": 2}, "token_count"),
        ({"logprobs": [0.0]}, "logprobs"),
        ({"loss_mask": [True]}, "loss_mask"),
        ({"loss_mask": b"\0\1\2"}, "loss_mask"),
        ({"ref_logprobs": [0.0]}, "ref_logprobs"),
        ({"weight_steps": [1, 2]}, "weight_steps"),
        ({"token_arrays": [token_array("experts", np.zeros((2, 4)))]}, "experts"),
        ({"token_arrays": [{**token_array("t", np.zeros(3)), "dtype": "|O"}]}, "dtype"),
        ({"token_arrays": [{**token_array("t", np.zeros(3)), "dtype": "no such"}]}, "dtype"),
        ({"token_arrays": [{**token_array("t", np.zeros(3)), "shape": [-1]}]}, "shape"),
        ({"token_arrays": [{**token_array("t", np.zeros((3, 0))), "shape": [2**18]}]}, "shape"),
        ({"reward": float("nan")}, "reward"),
        ({"reward": float("inf")}, "reward"),
        ({"segment_idx": -1}, "segment_idx is -1; give a number from 0 to 2147483647"),
        ({"weight_step": -2}, "weight_step is -2"),
        ({"group_size": -8}, "group_size is -8"),
    ],
)
def test_a_rollout_that_contradicts_itself_is_inconsistent(
    fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnreadableEvent, match=named) as told:
        decode(encode_segment(**fields))
    assert told.value.reason == "inconsistent"


@pytest.mark.parametrize(
    "event",
    [
        Failed(environment="e", example_id="x", group_uid="g", group_size=8, count=-1, reason="r"),
        Dispatched(environment="e", example_id="x", group_uid="g", group_size=-8),
    ],
)
def test_counts_out_of_bounds_are_inconsistent(event: Dispatched | Failed) -> None:
    with pytest.raises(UnreadableEvent) as told:
        decode(encode(event))
    assert told.value.reason == "inconsistent"


def test_arrays_are_views_of_the_bytes() -> None:
    tokens = np.arange(1000)
    segment = decode(encode_rollout(make_fields(output_tokens=tokens)))
    assert isinstance(segment, Segment)
    assert np.array_equal(np.frombuffer(segment.body["output_tokens"], "<i4"), tokens)


def test_decode_as_says_what_stands_in_the_wrong_place() -> None:
    assert decode_as(Claimed, encode(Claimed(owner="a", nonce="n"))).owner == "a"
    with pytest.raises(UnreadableEvent, match="Segment where Claimed is due"):
        decode_as(Claimed, encode_segment())
