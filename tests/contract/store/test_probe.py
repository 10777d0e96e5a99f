"""What a store lacks is named before anything is written there, with what to do."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from harness.failing_blobs import LaggingBlobs, OverwritingBlobs
from harness.s3_proxy import Fault, S3Proxy, s3_proxy
from harness.s3_server import S3Server
from harness.stores import KINDS, opened
from rollstream.runtime.config.store import StoreConfig
from rollstream.runtime.entropy import SystemEntropy
from rollstream.store import Blobs, LocalBlobs, MemoryBlobs, open_store
from rollstream.store.errors import StoreError
from rollstream.store.probe import probe_store, require_store

pytestmark = pytest.mark.proves("A23")


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[S3Proxy]:
    with s3_proxy(s3.endpoint) as made:
        yield made


def through(proxy: S3Proxy, s3: S3Server, **settings: object) -> StoreConfig:
    store = s3.store(uuid4().hex)
    return StoreConfig.model_validate(
        {**store.model_dump(), "endpoint": proxy.endpoint, "timeout_s": 4.0, **settings}
    )


def lacks(blobs: Blobs) -> list[str]:
    return [str(lack) for lack in probe_store(blobs, SystemEntropy())]


@pytest.fixture(params=KINDS)
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return opened(request, tmp_path)


def test_a_store_that_does_everything_lacks_nothing_and_is_left_as_it_was(blobs: Blobs) -> None:
    blobs.create("a/b", b"there")
    assert lacks(blobs) == []
    assert [blob.path for blob in blobs.list("")] == ["a/b"]
    require_store(blobs, SystemEntropy())


@pytest.mark.parametrize(
    ("method", "step"), [("PUT", "create"), ("GET", "read"), ("LIST", "list"), ("DELETE", "delete")]
)
def test_a_right_that_is_missing_is_named(
    proxy: S3Proxy, s3: S3Server, method: str, step: str
) -> None:
    proxy.faults.append(Fault(method, "refuse"))
    (lack,) = lacks(open_store(through(proxy, s3)))
    assert lack.startswith(f"no right to {step}: s3://runs/")
    assert "give the credentials this right" in lack


def test_several_missing_rights_are_all_named(proxy: S3Proxy, s3: S3Server) -> None:
    proxy.faults += [Fault("PUT", "refuse"), Fault("LIST", "refuse"), Fault("DELETE", "refuse")]
    with pytest.raises(StoreError) as raised:
        require_store(open_store(through(proxy, s3)), SystemEntropy())
    for step in ("create", "list", "delete"):
        assert f"no right to {step}" in str(raised.value)


def test_a_store_whose_conditional_writes_do_nothing_is_named(proxy: S3Proxy, s3: S3Server) -> None:
    proxy.faults.append(Fault("PUT", "drop_condition"))
    (lack,) = lacks(open_store(through(proxy, s3)))
    assert "no conditional writes" in lack


def test_a_store_that_refuses_conditions_says_so(proxy: S3Proxy, s3: S3Server) -> None:
    proxy.faults.append(Fault("PUT", "refuse", status=501, code="NotImplemented"))
    (lack,) = lacks(open_store(through(proxy, s3)))
    assert "the store must know conditional writes" in lack


def test_a_store_whose_lists_lag_is_named() -> None:
    (lack,) = lacks(LaggingBlobs(MemoryBlobs()))
    assert "strongly consistent" in lack


def test_a_store_that_overwrites_is_named_and_the_probe_deleted() -> None:
    inner = MemoryBlobs()
    (lack,) = lacks(OverwritingBlobs(inner))
    assert "created twice" in lack
    assert [*inner.list("")] == []


def test_a_folder_without_rights_is_named(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    blobs = LocalBlobs(tmp_path / "root")
    (tmp_path / "root").chmod(0o500)
    try:
        if lacks(blobs):  # Root may write everywhere.
            assert "no right to create" in lacks(blobs)[0]
    finally:
        (tmp_path / "root").chmod(0o700)


def test_a_bucket_that_is_missing_is_named_once(s3: S3Server) -> None:
    store = StoreConfig(root="s3://no-such-bucket/x", endpoint=s3.endpoint, region="us-east-1")
    (lack,) = lacks(open_store(store))
    assert "there is no such bucket; make it, or correct store.root" in lack


def test_an_endpoint_that_does_not_answer_is_named_once(s3: S3Server) -> None:
    nobody = "http://127.0.0.1:9"
    store = StoreConfig(root="s3://runs/x", endpoint=nobody, region="us-east-1", timeout_s=1.0)
    (lack,) = lacks(open_store(store))
    assert "check store.endpoint and the network" in lack


def test_no_secret_is_in_an_answer_an_error_or_a_name(
    proxy: S3Proxy, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, token = "wrong-secret-9876543210", "session-token-1234567890"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    proxy.faults += [
        Fault(method, "refuse", code="SignatureDoesNotMatch")
        for method in ("PUT", "GET", "LIST", "HEAD", "DELETE")
    ]
    blobs = open_store(through(proxy, s3))
    calls: list[Callable[[], object]] = [
        lambda: blobs.create("a", b""),
        lambda: blobs.replace("a", b""),
        lambda: blobs.read("a"),
        lambda: blobs.read_ranges("a", [(0, 1)]),
        lambda: [*blobs.list("a")],
        lambda: blobs.delete("a"),
    ]
    shown = [*lacks(blobs), repr(blobs), str(blobs), blobs.address("a/b")]
    for call in calls:
        with pytest.raises(StoreError, match=r"the secret key|this right") as raised:
            call()
        shown.append("".join(traceback.format_exception(raised.value)))
    for text in shown:
        assert secret not in text
        assert token not in text
