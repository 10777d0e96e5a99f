"""The id of a store's root, on every implementation of ``Blobs``."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier, Thread

import pytest

from harness.stores import KINDS, opened
from rollstream.runtime.entropy import SystemEntropy
from rollstream.schemas.ids import RootId
from rollstream.store import (
    Blobs,
    CorruptFile,
    create_root_id,
    read_root_id,
)
from rollstream.store.layout import ROOT_ID

pytestmark = pytest.mark.proves("I3")


@pytest.fixture(params=KINDS)
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return opened(request, tmp_path)


def test_a_fresh_root_has_none_and_reading_makes_none(blobs: Blobs) -> None:
    assert read_root_id(blobs) == RootId()
    assert list(blobs.list("")) == []


def test_it_is_made_once(blobs: Blobs) -> None:
    made = create_root_id(blobs, SystemEntropy(), "rollstream", 1)
    assert (len(made.root_id), *made[1:]) == (24, "rollstream", 1)
    assert create_root_id(blobs, SystemEntropy(), "second", 1) == made == read_root_id(blobs)
    assert [blob.path for blob in blobs.list("")] == [ROOT_ID]


def test_of_many_who_make_it_at_a_time_all_have_the_same(blobs: Blobs) -> None:
    made, together = set[RootId](), Barrier(8)

    def make() -> None:
        together.wait()
        made.add(create_root_id(blobs, SystemEntropy(), "rollstream", 1))

    threads = [Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == {read_root_id(blobs)}


BAD_OWNER = b'{"root_id": "a", "namespace": 3}'


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b'{"root_id": ""}', b'{"root_id": 3}', BAD_OWNER]
)
def test_a_file_that_holds_none_is_damaged_and_stays(blobs: Blobs, data: bytes) -> None:
    blobs.create(ROOT_ID, data)
    with pytest.raises(CorruptFile, match=r"root_id\.json holds no root's id"):
        read_root_id(blobs)
    with pytest.raises(CorruptFile, match="restore the file"):
        create_root_id(blobs, SystemEntropy(), "rollstream", 1)
    assert blobs.read(ROOT_ID) == data
