"""What ``Blobs`` promises holds when an object store refuses, is slow, or is cut off midway."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import suppress
from uuid import uuid4

import pytest

from harness.s3_proxy import Fault, Kind, S3Proxy, s3_proxy
from harness.s3_server import S3Server
from rollstream.runtime.config.store import StoreConfig
from rollstream.store import (
    BlobExists,
    BlobInfo,
    BlobMissing,
    Blobs,
    CorruptFile,
    StoreError,
    StoreFull,
    StoreRefused,
    create_or_compare,
    open_store,
)

ENDED_S = 60.0  # None takes a second; one that hangs is killed.
CONTENT = bytes(range(256)) * 1024
CALLS: dict[str, Callable[[Blobs], object]] = {
    "PUT": lambda blobs: blobs.create("new", CONTENT),
    "GET": lambda blobs: blobs.read("a/b"),
    "LIST": lambda blobs: [*blobs.list("a")],
    "HEAD": lambda blobs: blobs.info("a/b"),
    "DELETE": lambda blobs: blobs.delete("a/c"),
}
FOUND: dict[str, object] = {
    "PUT": None,
    "GET": CONTENT,
    "LIST": [BlobInfo("a/b", len(CONTENT)), BlobInfo("a/c", 0)],
    "HEAD": BlobInfo("a/b", len(CONTENT)),
    "DELETE": None,
}
by_method = pytest.mark.parametrize("method", CALLS)
pytestmark = pytest.mark.proves("A23")


class Stores:
    """The same blobs through the proxy, and past it."""

    def __init__(self, proxy: S3Proxy, server: S3Server) -> None:
        self.proxy = proxy
        self.direct = server.store(uuid4().hex)
        self.past = open_store(self.direct)
        self.past.create("a/b", CONTENT)
        self.past.create("a/c", b"")

    def through(self, timeout_s: float = 30.0) -> Blobs:
        settings = {"endpoint": self.proxy.endpoint, "timeout_s": timeout_s}
        return open_store(StoreConfig(**{**self.direct.model_dump(), **settings}))


@pytest.fixture
def stores(s3: S3Server) -> Iterator[Stores]:
    with s3_proxy(s3.endpoint) as proxy:
        yield Stores(proxy, s3)


@by_method
def test_a_refusal_is_raised_at_once_and_changes_nothing(stores: Stores, method: str) -> None:
    stores.proxy.faults.append(Fault(method, "refuse"))
    with pytest.raises(StoreRefused, match="give the credentials this right"):
        CALLS[method](stores.through())
    assert stores.proxy.asked.count(method) == 1
    assert [blob.path for blob in stores.past.list("")] == ["a/b", "a/c"]


@by_method
def test_an_overloaded_store_is_asked_again(stores: Stores, method: str) -> None:
    stores.proxy.faults.append(Fault(method, "refuse", times=2, status=503, code="SlowDown"))
    assert CALLS[method](stores.through()) == FOUND[method]
    assert stores.proxy.asked.count(method) == 3


@by_method
def test_a_store_that_stays_overloaded_is_an_error_in_time(stores: Stores, method: str) -> None:
    stores.proxy.faults.append(Fault(method, "refuse", status=503, code="SlowDown"))
    with pytest.raises(StoreError, match="503 Service Unavailable"):
        CALLS[method](stores.through(timeout_s=1.0))
    assert [blob.path for blob in stores.past.list("")] == ["a/b", "a/c"]


@by_method
def test_a_store_that_does_not_answer_is_an_error_in_time(stores: Stores, method: str) -> None:
    stores.proxy.faults.append(Fault(method, "hang"))
    with pytest.raises(StoreError, match="did not answer in time"):
        CALLS[method](stores.through(timeout_s=1.0))
    assert [blob.path for blob in stores.past.list("")] == ["a/b", "a/c"]


def _whole_or_error(stores: Stores, method: str) -> None:
    """The call has its whole effect and answer, or raises; it may raise only ``StoreError``."""
    with suppress(StoreError):
        assert CALLS[method](stores.through(timeout_s=4.0)) == FOUND[method]
    if (found := stores.past.info("new")) is not None:
        assert stores.past.read("new") == CONTENT
        assert found.size == len(CONTENT)


@by_method
@pytest.mark.parametrize("kind", ["cut_body", "cut_answer", "lose_answer"])
@pytest.mark.parametrize("times", [1, 100])
def test_a_connection_that_is_cut_gives_all_or_nothing(
    stores: Stores, method: str, kind: Kind, times: int
) -> None:
    stores.proxy.faults.append(Fault(method, kind, times=times))
    _whole_or_error(stores, method)
    stores.proxy.faults.clear()
    if method == "PUT":  # Whoever does not know repeats it.
        create_or_compare(stores.through(), "new", CONTENT)
        assert stores.past.read("new") == CONTENT
    else:
        assert CALLS[method](stores.through()) == FOUND[method]


def test_ranges_of_an_answer_that_is_cut_are_whole_or_an_error(stores: Stores) -> None:
    stores.proxy.faults.append(Fault("GET", "cut_answer"))
    with pytest.raises(StoreError):
        stores.through(timeout_s=2.0).read_ranges("a/b", [(0, 100_000), (200_000, 200_010)])


def test_a_write_whose_answer_was_lost_is_compared_when_it_is_repeated(stores: Stores) -> None:
    stores.proxy.faults.append(Fault("PUT", "lose_answer", times=1))
    blobs = stores.through()
    with pytest.raises(StoreError):  # Not known whether it was written, or known by a repeat.
        blobs.create("new", CONTENT)
    assert stores.past.read("new") == CONTENT
    create_or_compare(blobs, "new", CONTENT)
    with pytest.raises(CorruptFile, match="new exists and holds other bytes"):
        create_or_compare(blobs, "new", b"others")
    with pytest.raises(BlobExists):
        blobs.create("new", CONTENT)


def test_a_conflict_of_two_writers_is_no_blob_that_exists(stores: Stores) -> None:
    """S3 answers 409 if a delete or another write of the key is under way."""
    conflict = Fault("PUT", "refuse", status=409, code="ConditionalRequestConflict")
    stores.proxy.faults.append(conflict)
    with pytest.raises(StoreError) as raised:
        stores.through(timeout_s=2.0).create("new", CONTENT)
    assert not isinstance(raised.value, BlobExists)
    with pytest.raises(BlobExists):
        stores.through(timeout_s=2.0).create("a/b", CONTENT)
    assert stores.past.info("new") is None


@pytest.mark.parametrize("call", [*CALLS, "replace"])
@pytest.mark.parametrize("prolog", ['<?xml version="1.0" encoding="UTF-8"?>', ""])
def test_a_conflict_is_an_error_of_the_store_that_repeats_nothing_that_was_signed(
    stores: Stores, call: str, prolog: str
) -> None:
    method = "PUT" if call == "replace" else call
    stores.proxy.faults.append(
        Fault(method, "refuse", status=409, code="OperationAborted", prolog=prolog)
    )
    blobs = stores.through()
    with pytest.raises(StoreError, match="409 Conflict") as raised:
        CALLS[call](blobs) if call in CALLS else blobs.replace("a/c", CONTENT)
    assert not isinstance(raised.value, BlobExists)
    assert "x-amz" not in str(raised.value)


@pytest.mark.parametrize(
    ("status", "code"), [(404, "NoSuchBucket"), (400, "ExpiredToken"), (503, "SlowDown")]
)
def test_ranges_that_are_refused_say_why_and_nothing_is_asked_besides(
    stores: Stores, status: int, code: str
) -> None:
    stores.proxy.faults.append(Fault("GET", "refuse", status=status, code=code))
    with pytest.raises(StoreError, match=code) as raised:
        stores.through(timeout_s=1.0).read_ranges("a/b", [(0, 10)])
    assert not isinstance(raised.value, BlobMissing)
    assert set(stores.proxy.asked) == {"GET"}


@pytest.mark.parametrize("opens", [False, True])
def test_a_forked_process_is_refused_and_does_not_hang(stores: Stores, *, opens: bool) -> None:
    here, there = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        try:
            (open_store(stores.direct) if opens else stores.past).read("a/b")
        except StoreError as error:
            there.send(str(error))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    try:
        assert here.poll(ENDED_S), "it hangs"
        assert "get_context('spawn')" in here.recv()
    finally:
        process.kill()
        process.join()
    assert stores.past.read("a/b") == CONTENT


def test_a_bucket_at_its_quota_is_a_full_store(stores: Stores) -> None:
    stores.proxy.faults.append(Fault("PUT", "refuse", status=403, code="QuotaExceeded"))
    with pytest.raises(StoreFull, match="no space is left for s3://runs"):
        stores.through().create("new", CONTENT)
