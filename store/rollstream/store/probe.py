"""Looks whether a store does all that a deployment asks of it, and says what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rollstream.runtime.entropy import Entropy
from rollstream.store.blobs import Blobs
from rollstream.store.errors import BlobExists, StoreError, StoreRefused
from rollstream.store.layout import PROBES

_FIRST, _SECOND = b"probe", b"overwritten"
_UNTIL = {
    "create": "sealers and samplers write nothing",
    "read": "no reader, sealer or sampler starts",
    "list": "no reader, sealer or sampler starts",
    "delete": "retired files stay, and so does this probe",
}


class Lack(NamedTuple):
    """What a store does not do.

    Attributes:
        what: the store's answer, with what to do about it.
        until: what does not work meanwhile.
    """

    what: str
    until: str

    def __str__(self) -> str:
        return f"{self.what}. Until then {self.until}"


def probe_reading(blobs: Blobs) -> None:
    """Returns if the root can be listed. Writes nothing.

    Raises:
        StoreError: it cannot be, with what to do.
    """
    next(blobs.list("", limit=1), None)


def probe_store(blobs: Blobs, entropy: Entropy) -> tuple[Lack, ...]:
    """Returns what the store does not do for the credentials of this process; empty: it does all.

    Creates a blob of its own below the root, twice, reads it, lists it and deletes it. Other blobs
    stay as they are. It ends at the first failure that is not about one right: the bucket is
    missing, or the store cannot be reached.
    """
    path, lacks = f"{PROBES}/{entropy.token()}", list[Lack]()
    try:
        with _noting("create", lacks):
            blobs.create(path, _FIRST)
            with _noting("read", lacks):
                lacks += _after_create(blobs, path)
        with _noting("list", lacks):
            listed = [blob.path for blob in blobs.list(path)]
            if not (lacks or listed):
                lacks.append(_unseen(blobs, path))
        with _noting("delete", lacks):
            blobs.delete(path)
    except StoreError as error:
        lacks.append(Lack(str(error), _UNTIL["create"]))
    return tuple(lacks)


def require_store(blobs: Blobs, entropy: Entropy) -> None:
    """Returns if the store does all that a deployment asks of it.

    Raises:
        StoreError: with everything that ``probe_store`` found.
    """
    if lacks := probe_store(blobs, entropy):
        raise StoreError(" ".join(f"{lack}." for lack in lacks))


def _after_create(blobs: Blobs, path: str) -> Iterator[Lack]:
    try:
        blobs.create(path, _SECOND)
    except BlobExists:
        if blobs.read(path) != _FIRST:
            yield _unseen(blobs, path)
        return
    yield Lack(
        f"{blobs.address(path)} was created twice: the store has no conditional writes "
        "(If-None-Match), or a proxy in front of it drops them; take a store that has them",
        "two sealers may overwrite each other's files, so nothing starts",
    )


def _unseen(blobs: Blobs, path: str) -> Lack:
    return Lack(
        f"{blobs.address(path)} was created, and who reads or lists at once does not see it; take "
        "a store whose reads and lists are strongly consistent",
        "readers leave rows out",
    )


@contextmanager
def _noting(step: str, lacks: list[Lack]) -> Iterator[None]:
    """Notes that the store refuses a step; later ones may be allowed."""
    try:
        yield
    except StoreRefused as error:
        lacks.append(Lack(f"no right to {step}: {error}", _UNTIL[step]))
