"""Rows to Parquet and back: nothing changes."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.columns import assert_same, columns, entry_lists
from harness.examples import examples
from harness.rollouts import make_columns, make_entry, members
from harness.sealed_files import provenance
from rollstream.schemas.columns import ArraySignature, Columns
from rollstream.schemas.digest import checksum, row_digests
from rollstream.schemas.ingest.entry import Entry
from rollstream.store import (
    BlobMissing,
    Blobs,
    CorruptFile,
    LocalBlobs,
    MemoryBlobs,
    encode_rows,
    read_rows,
    token_array_signatures,
)

PATH = "groups/environment=math/policy_version=step-0/segment=0/7-a.parquet"
COMPRESSIONS = ("none", "lz4", "zstd")


def written(columns: Columns, blobs: Blobs | None = None, compression: str = "none") -> Blobs:
    blobs = blobs or MemoryBlobs()
    data = encode_rows(columns, provenance(columns.rows), compression=compression)
    blobs.replace(PATH, data)
    return blobs


@pytest.mark.proves("F10", "F15")
@given(columns(), st.sampled_from(COMPRESSIONS))
@settings(max_examples=examples(80))
def test_rows_come_back_exactly_and_keep_their_digests(drawn: Columns, compression: str) -> None:
    found = read_rows(written(drawn, compression=compression), PATH)
    assert_same(found, drawn)
    starts = list(range(drawn.rows))
    assert row_digests(found, starts) == row_digests(drawn, starts)


@given(entry_lists(), st.data(), st.sampled_from(COMPRESSIONS))
@settings(max_examples=examples(80))
def test_ranges_give_the_wanted_rows_in_the_wanted_order(
    drawn: list[Entry], data: st.DataObject, compression: str
) -> None:
    firsts = data.draw(st.lists(st.integers(0, len(drawn) - 1), max_size=4))
    ranges = [(first, data.draw(st.integers(0, len(drawn) - first))) for first in firsts]
    blobs = written(make_columns(drawn), compression=compression)
    found = read_rows(blobs, PATH, ranges=ranges)
    rows = [row for first, count in ranges for row in range(first, first + count)]
    if rows:
        assert_same(found, make_columns([drawn[row] for row in rows]))
    else:
        assert (found.rows, found.rewards, found.attachments) == (0, None, None)
        assert list(found.arrays) == ["prompt_tokens", "output_tokens"]
        assert found.token_arrays == {}


@given(columns())
@settings(max_examples=10)
def test_equal_rows_give_equal_bytes(drawn: Columns) -> None:
    once, again = (bytes(encode_rows(drawn, provenance(drawn.rows))) for _ in range(2))
    assert once == again


def test_size_and_checksum_are_those_of_the_bytes() -> None:
    drawn = make_columns([make_entry(output_tokens=range(30_000)), *members(3)])
    for compression in COMPRESSIONS:
        data = encode_rows(drawn, provenance(4), compression=compression)
        joined = bytes(data)
        assert (data.size, data.checksum()) == (len(joined), checksum(joined))


def test_large_arrays_are_not_copied_for_the_file() -> None:
    experts = np.zeros((600, 4, 8), np.uint8)
    token_arrays = {"experts": experts}
    drawn = make_columns([make_entry(output_tokens=range(600), token_arrays=token_arrays)] * 10)
    buffers = [
        np.frombuffer(buffer, np.uint8) for buffer in encode_rows(drawn, provenance(10)).buffers
    ]
    for values in (drawn.arrays["output_tokens"].values, drawn.token_arrays["experts"].values):
        assert any(np.shares_memory(values, buffer) for buffer in buffers)


def test_only_the_requested_fields_are_read() -> None:
    named = {"a": np.ones(3, np.float32), "b": np.ones((3, 2), np.uint8)}
    blobs = written(make_columns(members(3, rewards={"x": 1.0}, token_arrays=named)))
    found = read_rows(blobs, PATH, fields=["reward", "environment", "logprobs", "loss_mask"])
    assert found.scalars["environment"] == ["math"] * 3
    assert found.scalars["reward"].tolist() == [0.0, 1.0, 0.0]  # type: ignore[union-attr]
    assert len(found.scalars) == 2
    assert list(found.arrays) == ["logprobs"]
    assert (found.rewards, found.token_arrays) == (None, {})
    found = read_rows(blobs, PATH, fields=["rewards"], token_arrays=["b", "c"])
    assert (found.scalars, found.arrays) == ({}, {})
    assert found.rewards is not None
    assert list(found.token_arrays) == ["b"]


def test_named_arrays_of_a_file_are_in_its_footer() -> None:
    experts = {"experts": np.ones((3, 2, 4), np.uint8)}
    drawn = make_columns([make_entry(), make_entry(token_arrays=experts)])
    found = token_array_signatures(written(drawn), PATH)
    assert found == {"experts": ArraySignature("|u1", (2, 4))}
    assert token_array_signatures(written(make_columns(members(2))), PATH) == {}


def test_rows_of_a_local_file_outlive_its_deletion(tmp_path: Path) -> None:
    drawn = make_columns(members(3))
    blobs = written(drawn, LocalBlobs(tmp_path))
    found = read_rows(blobs, PATH)
    blobs.delete(PATH)
    assert_same(found, drawn)


def test_rows_of_a_local_file_stay_what_they_were_when_it_is_damaged_and_cut_short(
    tmp_path: Path,
) -> None:
    drawn = [
        make_entry(
            rollout_uid=f"u{i}",
            output_tokens=range(i),
            loss_mask=[i % 2 == 0] * i,
            token_arrays={"experts": np.full((i, 2), i, np.uint8), "entropy": np.ones(i, "<f4")},
        )
        for i in range(20)
    ]
    blobs = written(make_columns(drawn), LocalBlobs(tmp_path))
    ranges = ([(3, 4)], [(19, 1), (0, 2), (5, 0)], [(0, 20)])
    found = [read_rows(blobs, PATH, ranges=asked) for asked in ranges]
    with open(tmp_path / PATH, "r+b") as file:
        file.write(bytes(len(blobs.read(PATH)) // 2))
        file.flush()
        file.truncate(100)
    for asked, part in zip(ranges, found, strict=True):
        rows = [row for first, count in asked for row in range(first, first + count)]
        assert_same(part, make_columns([drawn[row] for row in rows]))


@given(st.data())
@settings(max_examples=examples(300))
def test_damage_is_refused_or_changes_a_digest_or_changes_no_row(data: st.DataObject) -> None:
    experts, entropy = np.ones((3, 2), np.uint8), np.ones(3, np.float32)
    rare = make_entry(rewards={"é": 0.5}, token_arrays={"experts": experts, "entropy": entropy})
    drawn = make_columns([rare, *members(2, token_arrays={"experts": experts})])
    blobs = written(drawn)
    raw = bytearray(blobs.read(PATH))
    places = st.integers(0, len(raw) - 1)
    flips = data.draw(st.dictionaries(places, st.integers(1, 255), min_size=1, max_size=3))
    for place, bits in flips.items():
        raw[place] ^= bits
    blobs.replace(PATH, bytes(raw))
    with suppress(CorruptFile):
        found = read_rows(blobs, PATH)
        if row_digests(found, range(found.rows)) == row_digests(drawn, range(drawn.rows)):
            assert_same(found, drawn)
    with pytest.raises(CorruptFile, match="checksum"):
        read_rows(blobs, PATH, checksum=checksum(bytes(encode_rows(drawn, provenance(3)))))


def test_each_damaged_byte_is_refused_or_changes_a_digest_or_changes_no_row() -> None:
    """All three happen, so that each of them is looked at."""
    drawn = make_columns(members(3, token_arrays={"entropy": np.ones(3, np.float32)}))
    blobs = written(drawn)
    raw = blobs.read(PATH)
    digests = row_digests(drawn, range(drawn.rows))
    outcomes: Counter[str] = Counter()
    for place in range(0, len(raw), 31):
        damaged = bytearray(raw)
        damaged[place] ^= 0xFF
        blobs.replace(PATH, bytes(damaged))
        try:
            found = read_rows(blobs, PATH)
        except CorruptFile:
            outcomes["refused"] += 1
            continue
        if row_digests(found, range(found.rows)) == digests:
            assert_same(found, drawn)
            outcomes["no row"] += 1
        else:
            outcomes["digest"] += 1
    assert set(outcomes) == {"refused", "digest", "no row"}, outcomes


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("dictionaries", [True, False])
def test_file_that_another_tool_wrote_anew_has_the_same_rows_but_another_checksum(
    compression: str, dictionaries: bool
) -> None:
    drawn = make_columns(members(3, loss_mask=[True, False, True], rewards={"x": 1.0}))
    blobs = written(drawn)
    before = blobs.read(PATH)
    sink = pa.BufferOutputStream()
    table = pq.read_table(pa.BufferReader(before))
    pq.write_table(table, sink, compression=compression, use_dictionary=dictionaries)
    blobs.replace(PATH, sink.getvalue().to_pybytes())
    assert_same(read_rows(blobs, PATH), drawn)
    with pytest.raises(CorruptFile, match="checksum"):
        read_rows(blobs, PATH, checksum=checksum(before))


def test_column_of_another_type_is_corrupt() -> None:
    blobs = written(make_columns(members(3)))
    table = pq.read_table(pa.BufferReader(blobs.read(PATH)))
    index = table.schema.get_field_index("worker_id")
    table = table.set_column(index, "worker_id", table.column(index).cast(pa.binary()))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    blobs.replace(PATH, sink.getvalue().to_pybytes())
    with pytest.raises(CorruptFile, match="worker_id is binary instead of string"):
        read_rows(blobs, PATH, fields=["worker_id"])


def test_large_rows_come_back(tmp_path: Path) -> None:
    tokens = np.arange(200_000, dtype=np.int32)
    drawn = make_columns(
        [make_entry(rollout_uid=f"u{i}", output_tokens=tokens[: 50_000 * i]) for i in range(5)]
    )
    assert_same(read_rows(written(drawn, LocalBlobs(tmp_path)), PATH), drawn)


def test_file_that_is_cut_short_is_corrupt() -> None:
    blobs = written(make_columns(members(3)))
    data = blobs.read(PATH)
    for size in (0, 3, len(data) // 2, len(data) - 1):
        blobs.replace(PATH, data[:size])
        with pytest.raises(CorruptFile, match="is no Parquet file"):
            read_rows(blobs, PATH)


def with_rows(data: bytes, rows: int, claimed: int) -> bytes:
    """The file with another number of rows wherever its footer says it."""

    def counted(number: int) -> bytes:
        bits, digits = number << 1, []  # Thrift's i64: zigzag, then seven bits a byte.
        while bits > 127:
            digits.append(bits & 127 | 128)
            bits >>= 7
        return b"\x16" + bytes([*digits, bits])

    size = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - size : -8].replace(counted(rows), counted(claimed))
    return data[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


@pytest.mark.parametrize("fields", [None, ["environment"], ["rewards"], ["output_tokens"]], ids=str)
@pytest.mark.parametrize("claimed", [5_000, 2**40])
def test_rows_that_a_damaged_footer_claims_take_no_memory(
    fields: list[str] | None, claimed: int
) -> None:
    """Of a file that another tool wrote anew; a footer of ours has the number as text."""
    drawn = make_columns(members(4_567, rewards={"x": 1.0}))
    table = pq.read_table(pa.BufferReader(written(drawn).read(PATH)))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    data, blobs = sink.getvalue().to_pybytes(), MemoryBlobs()
    blobs.create(PATH, with_rows(data, 4_567, claimed))
    with pytest.raises(CorruptFile):
        read_rows(blobs, PATH, fields=fields)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("fields", [None, ["environment"], ["output_tokens"]], ids=str)
def test_rows_that_a_damaged_layout_claims_are_refused(
    fields: list[str] | None, compression: str
) -> None:
    blobs = written(make_columns(members(1_000)), compression=compression)
    blobs.replace(
        PATH, blobs.read(PATH).replace(b"[1000, ", b"[9999, ").replace(b"[1000,", b"[9999,")
    )
    with pytest.raises(CorruptFile):
        read_rows(blobs, PATH, fields=fields)


def test_parquet_of_somebody_else_is_corrupt() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": [1]}), sink)
    blobs = MemoryBlobs()
    blobs.create(PATH, sink.getvalue().to_pybytes())
    with pytest.raises(CorruptFile, match="a sealer did not write it"):
        read_rows(blobs, PATH)


def test_rows_beyond_the_file_are_corrupt() -> None:
    blobs = written(make_columns(members(3)))
    with pytest.raises(CorruptFile, match="has 3 rows, not 2 from 2 on"):
        read_rows(blobs, PATH, ranges=[(2, 2)])


def test_missing_file_is_typed(tmp_path: Path) -> None:
    for blobs in (MemoryBlobs(), LocalBlobs(tmp_path)):
        with pytest.raises(BlobMissing):
            read_rows(blobs, PATH)
