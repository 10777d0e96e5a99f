"""The files of a flush and what its event says of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from harness.assembling import Drive
from harness.rollouts import make_entry, members
from rollstream.consumers.sealing.rows import FlushTarget, draft_flush
from rollstream.schemas.digest import row_digests
from rollstream.schemas.events import Flushed
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.ingest.entry import Entry
from rollstream.store import MemoryBlobs, read_rows

TARGET = FlushTarget(PartitionAddress("math", 1, 0), 7, "nonce", "name", "none", "root")
U1, U2 = {"experts": np.zeros((3, 2), "u1")}, {"experts": np.zeros(3, "u2")}


def flush(drive: Drive) -> tuple[Flushed, MemoryBlobs]:
    """All that is decided."""
    plan = drive.commit()
    assert plan is not None
    blobs = MemoryBlobs()
    return draft_flush(plan, TARGET, blobs.create), blobs


def shuffled_groups() -> list[Entry]:
    """Twelve members of three groups, no two of one group side by side."""
    return [
        make_entry(
            rollout_uid=f"u{number}",
            example_id=f"ex-{number % 3}",
            weight_step=100 - number,
            replica_id=f"r{number % 2}",
            output_tokens=range(number + 1),
        )
        for number in range(12)
    ]


@pytest.mark.parametrize("entries_max", [1, 5, 12])
def test_rows_are_the_same_however_records_cut_them(entries_max: int) -> None:
    drive = Drive(target_group_size=4)
    entries = shuffled_groups()
    for start in range(0, 12, entries_max):
        drive.add(*entries[start : start + entries_max])
    event, blobs = flush(drive)
    (file,) = event.files
    rows = read_rows(blobs, file.path, checksum=file.checksum)
    uids = [f"u{number}" for first in range(3) for number in range(first, 12, 3)]
    assert list(rows.scalars["rollout_uid"]) == list(event.segments.uids) == uids
    outputs = [rows.arrays["output_tokens"].row(row) for row in range(12)]
    assert [[] if output is None else output.tolist() for output in outputs] == [
        list(range(number + 1)) for first in range(3) for number in range(first, 12, 3)
    ]
    starts = [group.row_start for group in event.groups]
    assert row_digests(rows, starts) == [group.digest for group in event.groups]
    assert [group.weight_step for group in event.groups] == [91, 90, 89]
    where = zip(event.segments.offsets.tolist(), event.segments.entries.tolist(), strict=True)
    numbers = [int(uid[1:]) for uid in uids]
    assert list(where) == [divmod(number, entries_max) for number in numbers]
    assert event.watermark == -(-12 // entries_max)
    assert event.touched.offsets.tolist() == list(range(event.watermark))
    assert event.touched.counts.sum() == 12
    assert [event.segments.replicas[i] for i in event.segments.replica_idxs] == [
        f"r{number % 2}" for number in numbers
    ]


def test_groups_whose_named_arrays_differ_are_in_files_of_their_own() -> None:
    drive = Drive()
    drive.add(*members(2, example_id="x", token_arrays=U1))
    drive.add(*_pair("b", example_id="y", token_arrays=U2))
    drive.add(*_pair("c", example_id="z", token_arrays=U1))
    event, blobs = flush(drive)
    assert len({file.path for file in event.files}) == 2
    assert [(group.file, group.row_start) for group in event.groups] == [(0, 0), (0, 2), (1, 0)]
    signatures = [
        read_rows(blobs, file.path).token_arrays["experts"].signature for file in event.files
    ]
    assert signatures == [("|u1", (2,)), ("<u2", ())]


def test_expired_rows_lie_by_version_and_by_their_arrays() -> None:
    drive = Drive(seal_timeout_s=1, expire_after_s=2, target_group_size=9, min_group_size=9)
    same = {"group_uid": "g", "group_size": 9}
    drive.add(
        *(
            make_entry(rollout_uid=f"u{n}", policy_version=f"step-{n // 2}", **same)
            for n in range(4)
        )
    )
    drive.rollout("arrays", policy_version="step-1", token_arrays=U1, **same)
    drive.wait(10)
    event, blobs = flush(drive)
    found = {
        file.path: tuple(read_rows(blobs, file.path).scalars["rollout_uid"])
        for file in event.incomplete
    }
    assert list(found.values()) == [("u0", "u1"), ("u2", "u3"), ("arrays",)]
    assert event.files == ()
    assert _settled(event) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]
    assert event.touched.counts.tolist() == [4, 1]


def _pair(name: str, **fields: object) -> Sequence[Entry]:
    return [make_entry(rollout_uid=f"{name}{number}", **fields) for number in range(2)]


def _settled(event: Flushed) -> list[tuple[int, int]]:
    (part,) = event.settled
    return list(zip(part.offsets.tolist(), part.entries.tolist(), strict=True))
