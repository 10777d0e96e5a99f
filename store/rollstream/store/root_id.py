"""The id that sets a store's root apart from every other folder, such as the one below a mount that
is missing, and the deployment that the root is of. It is made once, and never again by whoever only
writes there."""

from __future__ import annotations

import json

from rollstream.runtime.entropy import Entropy
from rollstream.schemas.ids import RootId
from rollstream.store.blobs import Blobs
from rollstream.store.errors import BlobExists, BlobMissing, CorruptFile
from rollstream.store.layout import ROOT_ID


def read_root_id(blobs: Blobs) -> RootId:
    """Returns the root's id, and whose it is. Its fields are empty if the root has none.

    Raises:
        CorruptFile: the file of that name does not hold an id.
        StoreError: it cannot be read.
    """
    try:
        data = blobs.read(ROOT_ID)
    except BlobMissing:
        return RootId()
    try:
        fields = json.loads(data)
        found = RootId(fields["root_id"], fields.get("namespace", ""), fields.get("generation", 0))
    except (ValueError, LookupError, TypeError):
        found = RootId()
    if tuple(map(type, found)) != (str, str, int) or not found.root_id:
        raise CorruptFile(
            f"{ROOT_ID} holds no root's id but {data[:80]!r}; restore the file from a "
            "copy, or write the id that the seal logs name"
        )
    return found


def create_root_id(blobs: Blobs, entropy: Entropy, namespace: str, generation: int) -> RootId:
    """Gives the root an id for this deployment, and returns it, or the id that another process gave
    it.

    That one may be of another deployment.

    Raises:
        StoreFull, StoreError: it could not be written.
        CorruptFile: as ``read_root_id``.
    """
    made = RootId(entropy.token(), namespace, generation)
    try:
        blobs.create(ROOT_ID, _encoded(made))
    except BlobExists:
        return read_root_id(blobs)
    return made


def hand_root_over(blobs: Blobs, root_id: RootId) -> None:
    """Records under the same id whose the root is from now on.

    Raises:
        StoreFull, StoreError: it could not be written.
    """
    blobs.replace(ROOT_ID, _encoded(root_id))


def _encoded(root_id: RootId) -> bytes:
    return json.dumps(root_id._asdict()).encode()
