"""Row files that are read in time, some at once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rollstream.sampler.rows.reading import FILES_AT_ONCE, Reading
from rollstream.store.errors import StoreHangs
from rollstream.store.local import LocalBlobs

WAIT_S = 30.0


def test_files_behind_one_that_hung_are_read_by_nobody_who_gave_them_up(tmp_path: Path) -> None:
    reading = Reading(LocalBlobs(tmp_path), 0.1)
    answers, read = threading.Event(), list[int]()

    def hanging(file: int) -> None:
        assert answers.wait(WAIT_S)
        read.append(file)

    with pytest.raises(StoreHangs):
        list(reading.for_each(hanging, range(4)))
    answers.set()
    patient = Reading(LocalBlobs(tmp_path), WAIT_S)
    assert list(patient.for_each(str, range(2))) == ["0", "1"], "another's hang concerns it not"
    for _ in range(round(WAIT_S / 0.1)):
        try:
            assert list(reading.for_each(str, range(1))) == ["0"]
            break
        except StoreHangs:
            continue
    assert read == [0]


def test_no_more_files_are_read_than_are_taken_and_some(tmp_path: Path) -> None:
    read = list[int]()
    found = Reading(LocalBlobs(tmp_path), WAIT_S).for_each(read.append, range(4 * FILES_AT_ONCE))
    next(found)
    assert len(read) == FILES_AT_ONCE
    assert len([None, *found]) == 4 * FILES_AT_ONCE == len(read)
