"""Files: the Parquet data set, its manifests, and the bytes below both.

Map, a line a file:

- ``blobs``       the interface: atomic durable creates, reads, lists, deletes
- ``local``       the interface on a local disk
- ``memory``      the interface in memory, for tests (public)
- ``open``        from a root to blobs, and to a pyarrow data set of the visible files
- ``layout``      every path below the root
- ``arrow``       columns to Arrow tables and back; the schema, derived from the ``.avsc``
- ``dataset``     rows to Parquet bytes, Parquet bytes to rows
- ``plain/``      files whose arrays are plain: written without a look at a token, used in place
- ``page_cache``  leaves the system's page cache to what is still to be read
- ``warm_memory`` how a process that moves large buffers all its life keeps its memory
- ``manifests``   a seal event as a JSON file, named by generation, partition and offset
- ``errors``      what a store may answer
"""

from rollstream.store.blobs import BlobInfo, Blobs, Bytes
from rollstream.store.dataset import Provenance, RowFile, encode_rows, read_rows
from rollstream.store.errors import BlobExists, BlobMissing, CorruptFile, StoreError, StoreFull
from rollstream.store.local import LocalBlobs
from rollstream.store.manifests import (
    Manifest,
    list_manifests,
    project,
    read_manifest,
    visible_files,
)
from rollstream.store.memory import MemoryBlobs
from rollstream.store.open import UnsupportedRoot, open_dataset, open_store

__all__ = [
    "BlobExists",
    "BlobInfo",
    "BlobMissing",
    "Blobs",
    "Bytes",
    "CorruptFile",
    "LocalBlobs",
    "Manifest",
    "MemoryBlobs",
    "Provenance",
    "RowFile",
    "StoreError",
    "StoreFull",
    "UnsupportedRoot",
    "encode_rows",
    "list_manifests",
    "open_dataset",
    "open_store",
    "project",
    "read_manifest",
    "read_rows",
    "visible_files",
]
