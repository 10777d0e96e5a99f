"""Blobs in an object store: S3, whatever speaks its protocol, and GCS."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollstream.runtime.addresses import Bucket
from rollstream.runtime.extras import how_to_install
from rollstream.store.blobs import LISTED_AT_ONCE, BlobInfo, Bytes, Pieces, ends_before, names_of
from rollstream.store.errors import BlobExists, BlobMissing, StoreError, StoreFull, StoreRefused

try:
    import obstore
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.exceptions import AlreadyExistsError, BaseError
    from obstore.fsspec import FsspecStore
    from obstore.store import GCSStore, S3Store
except ImportError as error:
    raise StoreError(
        f"a root in an object store needs more ({error}); {how_to_install('object-store')}"
    ) from error

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

RANGE_GAP = 256 * 1024  # Bytes that take about as long as a request of their own.
ATTEMPTS_MAX = 8
REQUESTS_AT_ONCE = 32  # Each takes up to 0.2 s, and mostly waits.
_FULL = ("507 ", "QuotaExceeded", "StorageFull")
_BEYOND_END = "416 "
_ANSWER = re.compile(r":\s*(?=[<{])")  # What begins it: XML, with or without a prolog, or JSON.
_RIGHTS = ("AccessDenied", "403 Forbidden")
_REMEDIES = {
    "NoSuchBucket": "there is no such bucket; make it, or correct store.root",
    "SignatureDoesNotMatch": "the secret key is another than this access key's",
    "InvalidAccessKeyId": "the store does not know this access key; correct the credentials",
    "InvalidToken": "the session's token is wrong; log in again",
    "ExpiredToken": "the session's token has expired; log in again",
    "RequestTimeTooSkewed": "this machine's clock is wrong; set it",
    **dict.fromkeys(_RIGHTS, "give the credentials this right (the guide on object stores)"),
    "501 Not Implemented": "the store must know conditional writes (If-None-Match)",
    "TimedOut": "the store did not answer in time; check it, or raise store.timeout_s",
    "error sending request": "the store cannot be reached; check store.endpoint and the network",
}
_users = set[int]()  # The process that opened a store first.


class ObjectBlobs:
    """Keeps blobs as objects of a bucket. A blob is durable once ``create`` returns, and no reader
    sees any part of it before. Methods: see ``Blobs``. Threads and processes may share a bucket,
    but for a process that was forked off one that opened any: it is refused.

    A request is tried again after a failure that may pass, with growing, random pauses, until
    ``timeout_s`` is over. Whether a write that failed was carried out is not known; repeating it
    tells: ``create_or_compare``.

    Args:
        bucket: with the prefix of all keys.
        endpoint, region: of the store; empty: as the environment says.
        timeout_s: of a request, with all its attempts.
    """

    def __init__(
        self, bucket: Bucket, *, endpoint: str = "", region: str = "", timeout_s: float = 60.0
    ) -> None:
        self.bucket = bucket
        self.root = "/".join(filter(None, (f"{bucket.scheme}://{bucket.name}", bucket.prefix)))
        self.options = _options(bucket, endpoint, region, timeout_s)
        make: Any = S3Store if bucket.scheme == "s3" else GCSStore
        with self._as_store_errors(""):
            self._store = make(bucket.name, prefix=bucket.prefix or None, **self.options)

    def __repr__(self) -> str:
        return f"ObjectBlobs({self.root!r})"

    def create(self, path: str, data: Bytes | Pieces) -> None:
        with self._as_store_errors(path):
            try:
                self._put(path, data, "create")
            except AlreadyExistsError:
                if self.info(path) is None:  # Another one was writing it, too, and did not.
                    raise
                raise BlobExists(f"{path} exists below {self.root}; it was left as it is") from None

    def replace(self, path: str, data: Bytes | Pieces) -> None:
        with self._as_store_errors(path):
            self._put(path, data, "overwrite")

    def read(self, path: str) -> bytes:
        names_of(path)
        with self._as_store_errors(path):
            return bytes(obstore.get(self._store, path).bytes())

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Spans up to ``RANGE_GAP`` bytes apart are read by one request."""
        names_of(path)
        asked = [span for span in spans if span[0] < span[1]]
        with self._as_store_errors(path):
            try:
                found = obstore.get_ranges(
                    self._store,
                    path,
                    starts=[start for start, _ in asked],
                    ends=[stop for _, stop in asked],
                    coalesce=RANGE_GAP,
                )
            except BaseError as error:
                if _BEYOND_END in str(error):
                    self._compare_size(path, spans)
                raise
        parts = iter(found)
        read = [memoryview(next(parts) if start < stop else b"") for start, stop in spans]
        if any(len(data) < b - a for data, (a, b) in zip(read, spans, strict=True)):
            self._compare_size(path, spans)
        return read

    def info(self, path: str) -> BlobInfo | None:
        names_of(path)
        try:
            with self._as_store_errors(path):
                return BlobInfo(path, obstore.head(self._store, path)["size"])
        except BlobMissing:
            return None

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[BlobInfo]:
        return islice(self._listed(prefix, after), limit)

    def delete(self, path: str) -> None:
        names_of(path)
        with suppress(BlobMissing), self._as_store_errors(path):  # GCS says that it is missing.
            obstore.delete(self._store, path)

    def delete_staged(self, before_us: int) -> int:
        return 0  # An object is there whole or not at all.

    @property
    def requests_at_once(self) -> int:
        return REQUESTS_AT_ONCE

    def local_path(self, path: str) -> Path | None:
        return None

    def address(self, path: str) -> str:
        return f"{self.root}/{path}"

    def fsspec(self) -> FsspecStore:
        """Returns the same store as other libraries open it, with paths ``bucket/key``."""
        # What these objects cache would outlive credentials.
        make: Any = FsspecStore
        found: FsspecStore = make(self.bucket.scheme, **self.options, skip_instance_cache=True)
        return found

    def _put(self, path: str, data: Bytes | Pieces, mode: Any) -> None:
        names_of(path)
        content = list(data.buffers) if isinstance(data, Pieces) else data
        # In one request: several parts could replace what exists.
        obstore.put(self._store, path, content, mode=mode, use_multipart=False)

    def _listed(self, prefix: str, after: str) -> Iterator[BlobInfo]:
        # Object stores of this library list by whole names; keys are in the order of their bytes.
        folder = prefix.rpartition("/")[0]
        beginning = max(after, prefix[:-1]) if prefix != f"{folder}/" else after
        with self._as_store_errors(prefix):
            pages = obstore.list(
                self._store, folder or None, offset=beginning or None, chunk_size=LISTED_AT_ONCE
            )
            for page in pages:
                for found in page:
                    path = found["path"]
                    if path.startswith(prefix) and path > after:
                        yield BlobInfo(path, found["size"])
                    elif path > after and path > prefix:
                        return

    def _compare_size(self, path: str, spans: Sequence[tuple[int, int]]) -> None:
        found = self.info(path)
        if found is None:
            raise BlobMissing(f"there is no blob {path}")
        for _, stop in spans:
            if stop > found.size:
                raise ends_before(path, stop)

    # Raised from None: the library's errors show the whole answer.
    @contextmanager
    def _as_store_errors(self, path: str) -> Iterator[None]:
        where = f"{self.root}/{path}" if path else self.root
        _refuse_fork(where)
        try:
            yield
        except (BaseError, OSError, ValueError, UnicodeError) as error:
            text = str(error)
            code = next((code for code in _REMEDIES if code in text), "")
            if isinstance(error, FileNotFoundError) and not code:
                raise BlobMissing(f"there is no blob {path}") from None
            if any(code in text for code in _FULL):
                told = f"no space is left for {where}; free some or move the root"
                raise StoreFull(told) from None
            kind = StoreRefused if code in _RIGHTS else StoreError
            remedy = _REMEDIES.get(code, "check the store, and `rollstream topics check`")
            raise kind(f"{where}: {_told(text)}; {remedy}") from None


def _refuse_fork(where: str) -> None:
    """A forked child has the library's memory and none of its threads: a request never ends."""
    if os.getpid() not in _users:
        if _users:
            raise StoreError(
                f"{where}: this process was forked off one that had opened an object store, where "
                "no request ends; start it by multiprocessing.get_context('spawn')"
            )
        _users.add(os.getpid())


def _told(text: str) -> str:
    """The library's message and the store's code. Not the rest of the answer: it repeats what was
    signed, with the session's token."""
    told, *rest = _ANSWER.split(text, maxsplit=1)
    answer = "".join(rest)
    code = answer.partition("<Code>")[2].partition("</Code>")[0]
    first = told.partition("\n")[0].strip().rstrip(":")[:300]
    return f"{first} {code}".strip()


def _options(bucket: Bucket, endpoint: str, region: str, timeout_s: float) -> dict[str, Any]:
    half_s = timedelta(seconds=timeout_s / 2)
    client: ClientConfig = {
        "timeout": half_s,
        "connect_timeout": min(half_s, timedelta(seconds=10)),
    }
    retries: RetryConfig = {
        "max_retries": ATTEMPTS_MAX,
        "retry_timeout": half_s,
        "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": half_s / 4, "base": 2},
    }
    options: dict[str, Any] = {"client_options": client, "retry_config": retries}
    if bucket.scheme == "s3":
        client["allow_http"] = True  # Where the endpoint says so.
        config = {"endpoint": endpoint, "region": region}
        options["config"] = {name: value for name, value in config.items() if value}
        options["credential_provider"] = _credentials(bucket)
    return options


def _credentials(bucket: Bucket) -> Boto3CredentialProvider:
    """They are looked for where Amazon's own programs do, and looked up anew before they expire."""
    try:
        return Boto3CredentialProvider()
    except (BotoCoreError, ValueError) as error:
        raise StoreError(
            f"no credentials for s3://{bucket.name} ({error}); set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, name a profile of ~/.aws by AWS_PROFILE, or give this machine "
            "a role"
        ) from error
