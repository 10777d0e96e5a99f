"""Payloads that are moved to temporary files, and read from there."""

from __future__ import annotations

import contextlib
import gc
import os
import stat
import tempfile
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from harness.rollouts import make_entry, make_record
from rollstream.consumers.sealing.scratch import FILE_BYTES, Scratch
from rollstream.runtime.clock import ManualClock
from rollstream.schemas.ingest.entry import Entry
from rollstream.schemas.ingest.gather import gather
from rollstream.schemas.ingest.record import IngestRecord


def entries() -> Sequence[Entry]:
    return (
        make_entry(rollout_uid="plain"),
        make_entry(
            rollout_uid="full",
            metadata='{"字": "é"}',
            messages='[{"role": "user"}]',
            attachments={"page": b"<html>"},
            token_arrays={"experts": np.arange(6, dtype=np.uint8).reshape(3, 2)},
        ),
    )


def in_memory(record: IngestRecord) -> bool:
    return isinstance(record.payload.obj, bytes)


def assert_equal(moved: IngestRecord, kept: IngestRecord) -> None:
    everything = range(kept.count)
    assert moved.part(everything) == kept.part(everything)
    found, expected = (gather([one] * one.count, everything) for one in (moved, kept))
    assert found.scalars["metadata"] == expected.scalars["metadata"]
    assert found.scalars["messages"] == expected.scalars["messages"]
    assert found.attachments == expected.attachments
    tokens, due = (one.arrays["output_tokens"].values for one in (found, expected))
    np.testing.assert_array_equal(tokens, due)


def test_a_record_in_scratch_reads_as_one_in_memory() -> None:
    scratch, moved = Scratch(ManualClock()), make_record(entries())
    assert scratch.take(moved)
    assert not in_memory(moved)
    assert moved.sizes() == make_record(entries()).sizes()
    assert_equal(moved, make_record(entries()))
    scratch.close()
    assert_equal(moved, make_record(entries()))


@pytest.mark.parametrize(
    ("name", "long"),
    [("metadata", '{"x": "' + "y" * 100_000 + '"}'), ("attachments", {"page": bytes(100_000)})],
)
def test_what_is_long_stays_in_scratch_when_some_rows_of_its_record_are_read(
    name: str, long: Any
) -> None:
    size, count = 100_000, 64
    rows = [make_entry(rollout_uid=str(number), **{name: long}) for number in range(count)]
    scratch, record = Scratch(ManualClock()), make_record(rows)
    assert scratch.take(record)
    tracemalloc.start()
    gather([record], [0])
    record.part([count - 1])
    left, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert left < size < count * size < peak
    read = gather([record], [1])
    assert (read.attachments or read.scalars[name]) == [long]
    scratch.close()


def test_records_share_files_whose_space_is_free_once_nobody_refers_to_them() -> None:
    gc.collect()  # Files of other tests.
    scratch, open_before = Scratch(ManualClock()), len(os.listdir("/proc/self/fd"))
    large = make_entry(attachments={"page": bytes(FILE_BYTES // 3)})
    records = [make_record([large]) for _ in range(5)]
    assert all(scratch.take(record) for record in records)
    scratch.close()
    assert len(os.listdir("/proc/self/fd")) == open_before + 3
    assert all(len(record.attachments()[0]["page"]) == FILE_BYTES // 3 for record in records)
    records.clear()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_few_records_that_wait_for_long_keep_no_more_of_the_disk_than_twice_what_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollstream.consumers.sealing.scratch.FILE_BYTES", 2**20)
    gc.collect()  # Files of other tests.
    scratch, waiting, before = Scratch(ManualClock()), [], on_disk()
    page = make_entry(attachments={"page": bytes(2**16)})
    for number in range(1_600):
        record = make_record([make_entry(output_tokens=range(2**13)), page])
        assert scratch.take(record)
        if number % 50 == 0:  # Else it is sealed at once.
            waiting.append(record)
    del record
    gc.collect()
    left = sum(record.size for record in waiting)
    assert on_disk() - before < 2 * left + 3 * 2**20
    assert all(
        one.attachments() == {1: {"page": bytes(2**16)}}
        and gather([one], [0]).arrays["output_tokens"].values.tolist() == [*range(2**13)]
        for one in waiting
    )
    scratch.close()


def on_disk() -> int:
    """Bytes of the files that have no name and that this process has open."""
    files: dict[int, int] = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # That of the folder itself.
            found = os.stat(f"/proc/self/fd/{number}")
            if not found.st_nlink and stat.S_ISREG(found.st_mode):
                files[found.st_ino] = 512 * found.st_blocks
    return sum(files.values())


def test_without_a_file_payloads_stay_in_memory_until_there_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    clock = ManualClock()
    scratch, record = Scratch(clock), make_record(entries())
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    assert not scratch.take(record)
    assert in_memory(record)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("scratch")))
    clock.advance(1.0)
    assert scratch.take(record)
    assert_equal(record, make_record(entries()))
    scratch.close()
