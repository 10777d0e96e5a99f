"""The id that sets a store's root apart from every other folder, such as the one below a mount that
is missing. It is made once, and never again by whoever only writes there."""

from __future__ import annotations

import json

from rollstream.runtime.entropy import Entropy
from rollstream.store.blobs import Blobs
from rollstream.store.errors import BlobExists, BlobMissing, CorruptFile
from rollstream.store.layout import ROOT_ID


def read_root_id(blobs: Blobs) -> str:
    """The root's id; empty where it has none.

    Raises:
        CorruptFile: the file of that name does not hold one. StoreError: it cannot be read.
    """
    try:
        data = blobs.read(ROOT_ID)
    except BlobMissing:
        return ""
    try:
        root_id = json.loads(data)["root_id"]
    except (ValueError, LookupError, TypeError):
        root_id = None
    if not isinstance(root_id, str) or not root_id:
        raise CorruptFile(
            f"{ROOT_ID} holds no root's id but {data[:80]!r}; restore the file from a "
            "copy, or write the id that the seal logs name"
        )
    return root_id


def create_root_id(blobs: Blobs, entropy: Entropy) -> str:
    """Gives the root an id, or finds the one that another process gave it; which one.

    Raises:
        StoreFull, StoreError: it could not be written. CorruptFile: as ``read_root_id``.
    """
    root_id = entropy.token()
    try:
        blobs.create(ROOT_ID, json.dumps({"root_id": root_id}).encode())
    except BlobExists:
        return read_root_id(blobs)
    return root_id
