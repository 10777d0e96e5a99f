"""What the footer of a row file says besides Parquet's own, as key-value metadata."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rollstream.schemas.columns import ArraySignature
from rollstream.schemas.rules import check_token_rows
from rollstream.store import arrow
from rollstream.store.blobs import Blobs
from rollstream.store.plain.file import footer_bytes

_READ_BYTES = 16_384  # A footer is read at once where it is no larger, as most are.
_VERSION_KEY = "rollstream.version"  # Of Rollstream, for people.
_ROWS_KEY = "rollstream.rows"  # Whose fields the rows have: a version of the schema.
_ENVIRONMENT_KEY = "rollstream.environment"
_COMPRESSION_KEY = "rollstream.compression"
# The others are JSON.
_TOKEN_ARRAYS_KEY = "rollstream.token_arrays"
_IN_PLACE_KEY = "rollstream.in_place"
_ABSENT_KEY = "rollstream.absent"
_ARROW_SCHEMA_KEY = "ARROW:schema"  # Where Arrow keeps the metadata of fields.


class Stated(NamedTuple):
    """What a footer says.

    Attributes:
        environment: of all rows; empty: a sealer did not write the file.
        rows: which version of ``ingest_record`` has the fields of the rows.
        version: of Rollstream, that wrote the file.
        token_arrays: the named arrays that a row has.
        compression: ``none``, ``lz4`` or ``zstd``; empty: not known.
        in_place: columns of arrays that end with their values, as many tokens a row as its count.
        absent: columns that are null or empty in each row.
    """

    environment: str
    rows: int
    version: str
    token_arrays: arrow.Signatures
    compression: str
    in_place: Collection[str]
    absent: Collection[str]

    @classmethod
    def of(cls, metadata: Mapping[bytes, bytes]) -> Stated:
        """Reads a footer's metadata.

        Raises:
            ValueError, TypeError, LookupError, SyntaxError: it is damaged.
        """
        return _stated(tuple(metadata.items()))

    def metadata(self) -> dict[str, str]:
        """The metadata of a footer that says so."""
        return {
            _ENVIRONMENT_KEY: self.environment,
            _ROWS_KEY: str(self.rows),
            _VERSION_KEY: self.version,
            _COMPRESSION_KEY: self.compression,
            _IN_PLACE_KEY: json.dumps(list(self.in_place)),
            _ABSENT_KEY: json.dumps(list(self.absent)),
            **_of_token_arrays(self.token_arrays),
        }


def read_footer(blobs: Blobs, path: str, size: int) -> memoryview:
    """The end of a file of this size, with its footer.

    Raises:
        BlobMissing: there is no such file. CorruptFile: it is shorter.
    """
    wanted = min(_READ_BYTES, size)
    (tail,) = blobs.read_ranges(path, [(size - wanted, size)])
    if wanted < (needed := footer_bytes(tail)) <= size:
        (tail,) = blobs.read_ranges(path, [(size - needed, size)])
    return tail


@lru_cache(arrow.SCHEMAS_KEPT)
def _stated(metadata: tuple[tuple[bytes, bytes], ...]) -> Stated:
    texts = {key.decode(): value.decode() for key, value in metadata}
    named = json.loads(texts.get(_TOKEN_ARRAYS_KEY, "{}"))
    token_arrays = tuple((name, _signature(name, named[name])) for name in sorted(named))
    in_place, absent = (
        frozenset(json.loads(texts.get(key, "[]"))) for key in (_IN_PLACE_KEY, _ABSENT_KEY)
    )
    rows, version = int(texts.get(_ROWS_KEY, 1)), texts.get(_VERSION_KEY, "")
    environment, compression = (texts.get(k, "") for k in (_ENVIRONMENT_KEY, _COMPRESSION_KEY))
    return Stated(environment, rows, version, token_arrays, compression, in_place, absent)


@lru_cache(arrow.SCHEMAS_KEPT)
def _of_token_arrays(signatures: arrow.Signatures) -> Mapping[str, str]:
    named = {name: {"dtype": of.dtype, "shape": of.shape} for name, of in signatures}
    found = {_TOKEN_ARRAYS_KEY: json.dumps(named)}
    if named:
        schema = arrow.rows_schema(signatures).serialize().to_pybytes()
        found[_ARROW_SCHEMA_KEY] = base64.b64encode(schema).decode()
    return found


def _signature(name: str, stated: Mapping[str, Any]) -> ArraySignature:
    dtype, shape = np.dtype(stated["dtype"]), tuple(stated["shape"])
    check_token_rows(name, dtype, shape)
    return ArraySignature(dtype.str, shape)
