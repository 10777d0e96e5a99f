"""What breaks a value is its entry's: the others are read."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harness.rollouts import (
    encode_record,
    make_alive,
    make_dispatched,
    make_ended,
    make_entry,
    make_failed,
    members,
)
from harness.strategies import entries
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.ingest.entry import Entry, EntryKind, Failure, Producer
from rollstream.schemas.ingest.record import decode_record
from rollstream.schemas.rules import BOUNDS, NAME_CHARS_MAX, check_number

LONG = "é" * (NAME_CHARS_MAX + 1)
INFINITE = float("inf")
BROKEN: list[tuple[Entry, str]] = [
    (make_entry(created_ts=-1), "created_ts is -1"),
    (make_entry(created_ts=253_402_300_800_000_000), "created_ts is 253402300800000000"),
    (make_entry(segment_idx=-1), "segment_idx is -1; give a number from 0 to 2147483647"),
    (make_entry(weight_step=-2), "weight_step is -2"),
    (make_entry(group_size=-8), "group_size is -8"),
    (make_entry(group_size=2**40), "group_size is 1099511627776"),
    (make_entry(policy_epoch=-1), "policy_epoch is -1"),
    (make_entry(policy_version=""), "policy_version is ''"),
    (make_entry(policy_version="x" * 201), "policy_version is 'xxx"),
    (make_entry(reward=INFINITE), "reward is inf"),
    (make_entry(reward=-INFINITE), "reward is -inf"),
    (make_entry(reward=1e308), "reward is 1e+308; float32, as batches have it, has no room"),
    (make_entry(reward=-3.5e38), "reward is -3.5e+38; float32"),
    (make_entry(rewards={"a": 1.0, "b": 1e39}), "rewards['b'] is 1e+39; float32"),
    (make_entry(old_logprob_sum=INFINITE), "old_logprob_sum is inf"),
    (make_entry(logprob_sum=1.5), "logprob_sum is 1.5"),
    (make_entry(logprobs=[0, 0, -1.1e4]), "logprobs[2] is -11000.0"),
    (make_entry(prompt_tokens=[3, -1]), "prompt_tokens[1] is -1; token ids are not negative"),
    (make_entry(output_tokens=[-7, 1, -2]), "output_tokens[0] is -7"),
    (make_entry(logprobs=[-1, 0.5, 0.25]), "logprobs[1] is 0.5; log-probs are finite and at most"),
    (make_entry(logprobs=[-1, 0.0, float("nan")]), "logprobs[2] is nan"),
    (make_entry(logprobs=[-1, -INFINITE, 0]), "logprobs[1] is -inf"),
    (make_entry(old_logprobs=[0, 0, 0.01]), "old_logprobs[2] is 0.0"),
    (make_entry(ref_logprobs=[1, 0, 0]), "ref_logprobs[0] is 1.0"),
    (make_entry(token_rewards=[0, INFINITE, 0]), "token_rewards[1] is inf; give finite numbers"),
    (make_entry(rewards={"a": 1.0, "b": -INFINITE}), "rewards['b'] is -inf; give a finite"),
    (make_entry(loss_mask=b"\0\1\2"), "loss_mask has bytes other than 0 and 1"),
    (make_entry(is_last_segment=7), "is_last_segment is 7"),
    (make_entry(rollout_uid=""), "rollout_uid is empty"),
    (make_entry(rollout_uid=b"\xff\xfe"), "rollout_uid is no UTF-8"),
    (make_entry(metadata=b"\xc3"), "metadata is no UTF-8"),
    (make_entry(metadata="[1]"), "metadata '[1]' of 3 characters is no JSON object: it is"),
    (make_entry(metadata=""), "metadata '' of 0 characters is no JSON object"),
    (make_entry(metadata='{"x":NaN}'), "metadata '{\"x\":NaN}' of 9 characters is no JSON object"),
    (make_entry(messages=b"\x80"), "messages is no UTF-8"),
    *(
        (make_entry(**{name: LONG}), f"{name} has 4097 characters")
        for name in (
            *("example_id", "group_uid", "rollout_uid"),
            *("lineage", "replica_id", "stop_reason", "old_policy_version"),
        )
    ),
    (make_entry(policy_version="mixed"), "policy_version is 'mixed', the name of groups"),
    (make_entry(split="banana"), "split is 'banana'; give 'train' or 'eval'"),
    (make_dispatched(group_size=-1), "group_size is -1"),
    (make_dispatched(group_uid=LONG), "group_uid has 4097 characters"),
    (make_dispatched(example_id=LONG), "example_id has 4097 characters"),
    (make_failed(count=0), "count is 0"),
    (make_failed(count=-1), "count is -1"),
    (make_failed(rollout_uid=LONG), "rollout_uid has 4097 characters"),
    (make_failed(rollout_uid=""), "rollout_uid is empty"),
    (make_failed()._replace(failure=None), "kinds is 2, and failures has none of this entry"),
    (make_entry()._replace(failure=Failure(1, "r")), "kinds is 0, and failures has one"),
    (make_entry()._replace(kind=8), "kinds is 8"),
    (make_ended(""), "rollout_uid is empty"),
    (make_ended("t", -1), "segment_idx is -1"),
]


@pytest.mark.parametrize(("entry", "told"), BROKEN, ids=[told[:40] for _, told in BROKEN])
def test_one_broken_entry_is_named_and_the_others_are_read(entry: Entry, told: str) -> None:
    sound = members(3)
    record = decode_record(encode_record([sound[0], entry, *sound[1:]]))
    assert {index: str(rule)[: len(told)] for index, rule in record.broken.items()} == {1: told}
    assert [record.entry(index) for index in (0, 2, 3)] == sound


def test_uids_with_control_characters_are_read() -> None:
    """Producers refuse them. Records from before that have them, and must not be dead letters."""
    entry = make_entry(rollout_uid="r\n1", group_uid="g\x9f")
    record = decode_record(encode_record([entry]))
    assert record.broken == {}
    assert record.entry(0) == entry


@pytest.mark.parametrize(("entry", "told"), BROKEN, ids=[told[:40] for _, told in BROKEN])
def test_a_broken_entry_alone_is_written_as_it_was(entry: Entry, told: str) -> None:
    record = decode_record(encode_record([*members(2), entry]))
    alone = decode_record(record.part([2]))
    assert alone.entry(0) == entry
    assert str(alone.broken[0]).startswith(told)


SOME_BROKEN = st.integers(0, len(BROKEN) - 1).map(lambda index: BROKEN[index][0])


@given(st.lists(entries() | SOME_BROKEN, min_size=1, max_size=8))
def test_exactly_the_broken_entries_are_named(given_entries: list[Entry]) -> None:
    named = any(entry.kind or entry.fields["rollout_uid"] for entry in given_entries)
    assume(named or len(given_entries) == 1)  # Else the whole record is refused.
    unsound = {index for index, entry in enumerate(given_entries) if is_broken(entry)}
    record = decode_record(encode_record(given_entries))
    assert set(record.broken) == unsound
    assert [record.entry(index) for index in range(record.count)] == given_entries


def is_broken(entry: Entry) -> bool:
    return bool(decode_record(encode_record([entry])).broken)


def test_rounding_takes_a_log_prob_a_little_above_zero() -> None:
    assert not is_broken(make_entry(logprobs=[0.0, 9.9e-4, 1e-7]))
    assert is_broken(make_entry(logprobs=[0.0, 1.1e-3, 0.0]))


def test_a_dispatch_needs_neither_uid_nor_policy() -> None:
    entry = make_dispatched(rollout_uid="", policy_version="")
    assert entry.kind == EntryKind.DISPATCHED
    assert not is_broken(entry)


@pytest.mark.parametrize(
    ("producer", "told"),
    [
        (Producer("", 1, 0), "producer_id is empty; give one that no other process has"),
        (Producer(LONG, 1, 0), "producer_id has 4097 characters"),
        (Producer("a", -1, 0), "begun is -1"),
        (Producer("a", 0, -1), "waiting is -1"),
        (Producer("a", 0, 2**31), "waiting is 2147483648"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_producer_says_of_itself_breaks_the_entries_that_say_it(
    producer: Producer, told: str
) -> None:
    entries = [make_entry(), make_dispatched(), make_failed(), make_alive("a")]
    record = decode_record(encode_record(entries, producer=producer))
    assert {index: str(rule)[: len(told)] for index, rule in record.broken.items()} == {
        1: told,
        3: told,
    }


def test_nobody_reads_the_metadata_of_a_dispatch() -> None:
    both = [make_dispatched(metadata=""), make_entry(metadata='{"seed":1}')]
    assert decode_record(encode_record(both)).broken == {}


def test_the_same_combination_may_be_broken_for_a_segment_only() -> None:
    both = [make_dispatched(policy_version=""), make_entry(policy_version="", weight_step=-1)]
    record = decode_record(encode_record(both))
    assert set(record.broken) == {1}


@pytest.mark.parametrize(
    "name", ["group_size", "segment_idx", "policy_epoch", "weight_step", "created_ts"]
)
def test_who_publishes_and_who_seals_keep_the_same_bounds(name: str) -> None:
    bounds = BOUNDS[name]

    def broken(number: int) -> Any:
        changed: dict[str, Any] = {name: number}
        return decode_record(encode_record([make_entry(**changed)])).broken

    for inside in (bounds.start, bounds.stop - 1):
        check_number(name, inside)
        assert broken(inside) == {}
    with pytest.raises(InvalidRollout, match=f"{name} is {bounds.start - 1}; "):
        check_number(name, bounds.start - 1)
    assert f"{name} is {bounds.start - 1}; " in str(broken(bounds.start - 1)[0])


def test_nothing_is_kept_of_long_texts_that_were_refused() -> None:
    long = "x" * 1_000_000
    read(encode_record([make_entry(policy_version=long)]))
    tracemalloc.start()
    try:
        for number in range(20):
            read(encode_record([make_entry(policy_version=f"{number}{long}")]))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2_000_000


def read(value: bytes) -> None:
    assert decode_record(value).broken
