"""The Parquet data set, its manifests, and the blobs that hold both.

Map, a line a file:

- ``blobs``        the interface of blob stores: atomic durable creates, reads, lists, deletes
- ``local``        blobs on a local disk
- ``objects``      blobs in an object store: S3 and GCS
- ``memory``       blobs in memory, for tests (public)
- ``calls``        blobs around others, whose calls all go through one method
- ``timed``        blobs whose calls are timed
- ``bounded``      blobs whose calls end in time
- ``open``         opens a root as blobs
- ``visible_rows`` the visible rows as a pyarrow data set, loaded when it is first named
- ``scores``       the set of late scores: its files, and the reader of all of them
- ``example_files`` examples that were made of batches
- ``layout``       every path below the root
- ``in_time``      calls that are waited for up to a deadline
- ``followed``     what of it follows from events of logs
- ``root_id``      the id that sets a root apart from every other folder
- ``dataset``      encodes rows as Parquet files and reads them back
- ``arrow``        the schema of row files, from the ``.avsc``; Arrow's columns as ours
- ``plain/``       writes row files and finds their arrays, without pyarrow's work a token
- ``row_file``     reads columns of one of them
- ``group_file``   reads groups of one of them, and checks each
- ``file_rows``    what it reads
- ``footer``       what its footer says besides Parquet's own
- ``token_arrays`` named arrays of a table that pyarrow read
- ``manifests``    seal events as JSON files
- ``probe``        whether a store does all that a deployment asks of it
- ``rollups``      many manifests in one blob; the visible files
- ``retired``      which files of a partition are retired, in one blob
- ``page_cache``   drops cached pages of files that are not read again soon
- ``warm_memory``  keeps freed memory mapped, for processes that move large buffers
- ``errors``       the errors of the store
- ``read_plan``     how fields are read of a file whose arrays lie there as written
- ``score_files``   the files of late scores
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import rollstream.runtime.config  # noqa: F401 - First: it says which extra is missing.
from rollstream.store.blobs import BlobInfo, Blobs, Bytes, Pieces, create_or_compare
from rollstream.store.dataset import (
    Provenance,
    encode_rows,
    read_rows,
    token_array_signatures,
)
from rollstream.store.errors import (
    BlobExists,
    BlobMissing,
    CorruptFile,
    NewerFile,
    NoTokenArray,
    StoreAway,
    StoreError,
    StoreFull,
    StoreRefused,
)
from rollstream.store.followed import Followed
from rollstream.store.local import LocalBlobs
from rollstream.store.manifests import (
    Manifest,
    list_manifests,
    project,
    read_manifest,
)
from rollstream.store.memory import MemoryBlobs
from rollstream.store.open import UnsupportedRoot, open_store
from rollstream.store.plain.sums import FileGroup
from rollstream.store.rollups import RollUps, visible_files
from rollstream.store.root_id import create_root_id, hand_root_over, read_root_id
from rollstream.store.token_arrays import token_array

if TYPE_CHECKING:
    from rollstream.store.visible_rows import open_dataset

__all__ = [
    "BlobExists",
    "BlobInfo",
    "BlobMissing",
    "Blobs",
    "Bytes",
    "CorruptFile",
    "FileGroup",
    "Followed",
    "LocalBlobs",
    "Manifest",
    "MemoryBlobs",
    "NewerFile",
    "NoTokenArray",
    "Pieces",
    "Provenance",
    "RollUps",
    "StoreAway",
    "StoreError",
    "StoreFull",
    "StoreRefused",
    "UnsupportedRoot",
    "create_or_compare",
    "create_root_id",
    "encode_rows",
    "hand_root_over",
    "list_manifests",
    "open_dataset",
    "open_store",
    "project",
    "read_manifest",
    "read_root_id",
    "read_rows",
    "token_array",
    "token_array_signatures",
    "visible_files",
]


def __dir__() -> list[str]:
    """The public names, for completion and ``help``."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """pyarrow's data sets take a quarter of a second to load, and no process of ours needs them."""
    if name != "open_dataset":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("rollstream.store.visible_rows").open_dataset
