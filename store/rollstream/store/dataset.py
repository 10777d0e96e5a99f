"""Encodes rows as Parquet files and reads them back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import rollstream
from rollstream.schemas import digest
from rollstream.schemas.columns import ArraySignature, Columns
from rollstream.schemas.fields import SCHEMA, array_fields, row_fields
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.wire_schemas import shipped
from rollstream.store import arrow
from rollstream.store.blobs import Blobs, Pieces, size_of
from rollstream.store.errors import CorruptFile
from rollstream.store.footer import Stated, read_footer
from rollstream.store.plain.rows import plain_file
from rollstream.store.plain.sums import FileGroup
from rollstream.store.row_file import RowFile

# pyarrow raises these, besides its own errors, on damaged bytes.
_DAMAGED = (
    *(pa.ArrowException, OSError, ValueError, LookupError, TypeError),
    *(AttributeError, SyntaxError),
)


@dataclass(frozen=True, slots=True)
class Provenance:
    """The group and the source of each row.

    Attributes:
        group_ids: one a row.
        address: of the ingest log, the same for all rows.
        epoch: of the claim under which the rows are sealed, the same for all rows.
        offsets: int64 [rows], the row's record in that partition of the ingest log.
        entries: int32 [rows], which of its record's entries the row is.
    """

    group_ids: Sequence[str]
    address: PartitionAddress
    epoch: int
    offsets: NDArray[np.int64]
    entries: NDArray[np.int32]


def encode_rows(
    columns: Columns,
    provenance: Provenance,
    *,
    groups: Sequence[FileGroup] = (),
    compression: str = "none",
) -> Pieces:
    """Encodes rows as one Parquet file. Equal arguments give equal bytes.

    Large arrays are not copied: the pieces are views of them. Columns are the fields of a segment,
    one ``token_array_NAME`` for each named array, and ``group_id``, ``log_generation``,
    ``log_partition``, ``log_offset``, ``log_entry``, ``log_epoch``. The environment and the group's
    policy version are in the file's path (``layout.rows_path``).

    Args:
        columns: at least one row, all of one environment.
        provenance: of each row.
        groups: the groups that the rows are; empty: none, and a reader of few rows reads all.
        compression: ``none``, ``lz4`` or ``zstd``.
    """
    assert columns.rows > 0, "a file holds at least one row"
    environment, *others = set(columns.scalars[arrow.ENVIRONMENT])
    assert not others, f"a file holds rows of one environment, not {environment} and {others}"
    in_place = _counted_arrays(columns)
    absent = [name for name in array_fields() if name not in columns.arrays]
    absent += [name for name in ("rewards", "attachments") if getattr(columns, name) is None]
    stated = Stated(
        environment,
        shipped().newest(SCHEMA).version,
        rollstream.__version__,
        arrow.signatures_of(columns),
        compression,
        in_place,
        absent,
    )
    sources = {
        "group_id": provenance.group_ids,
        "log_generation": np.full(columns.rows, provenance.address.generation, np.int32),
        "log_partition": np.full(columns.rows, provenance.address.partition, np.int32),
        "log_offset": provenance.offsets.astype(np.int64, copy=False),
        "log_entry": provenance.entries.astype(np.int32, copy=False),
        "log_epoch": np.full(columns.rows, provenance.epoch, np.int64),
    }
    return plain_file(columns, sources, stated.metadata(), compression, groups, in_place)


def _counted_arrays(columns: Columns) -> list[str]:
    """The columns of the arrays that every row has, with as many tokens as the row's count: a
    reader finds their rows without decoding levels."""
    stored = dict(columns.arrays)
    for name, ragged in columns.token_arrays.items():
        stored[arrow.TOKEN_ARRAY_PREFIX + name] = ragged
    return [
        name
        for name, ragged in stored.items()
        if (ragged.present is None or ragged.present.all())
        and np.array_equal(ragged.lengths(), columns.scalars[arrow.count_of(name)])
    ]


def read_rows(
    blobs: Blobs,
    path: str,
    *,
    checksum: str | None = None,
    ranges: Sequence[tuple[int, int]] | None = None,
    fields: Sequence[str] | None = None,
    token_arrays: Sequence[str] | None = None,
) -> Columns:
    """Reads rows of one file, exactly as they were encoded.

    Only the named fields are decoded. Give ``checksum`` to refuse a damaged file; without it damage
    may go unnoticed and change values. In files of an older version of Rollstream, new fields have
    their defaults, and removed ones are read with all fields.

    Args:
        blobs: the store.
        path: of the file.
        checksum: that its bytes must have (``SealedFile.checksum``); None: not compared.
        ranges: (first row, number of rows) pairs in the wanted order; None: all rows.
        fields: names of a segment's fields; the result holds these alone; None: all.
        token_arrays: names of named arrays; those that no row has are left out. None: all if
            ``fields`` is None, else none.

    Raises:
        BlobMissing: there is no such file.
        CorruptFile: another checksum, not a file that a sealer wrote, or a range beyond its rows.
        NewerFile: a newer version of Rollstream wrote it.
    """
    data = blobs.read(path)
    if checksum is not None:  # Over all bytes: cheap beside a training step.
        found = digest.checksum(data)
        if found != checksum:
            raise CorruptFile(
                f"{path} has checksum {found}, but its event names {checksum}; "
                "restore the file from a copy"
            )
    names = list(row_fields() if fields is None else fields)
    assert {*names} <= {*row_fields()}, names
    with as_corrupt(path):
        file = RowFile(path, pa.py_buffer(data))
        wanted = [(0, file.rows)] if ranges is None else list(ranges) or [(0, 0)]
        for first, count in wanted:
            if first < 0 or count < 0 or first + count > file.rows:
                raise CorruptFile(f"{path} has {file.rows} rows, not {count} from {first} on")
        if fields is None:
            names += file.removed_fields
        if token_arrays is None:
            token_arrays = list(file.token_arrays) if fields is None else ()
        return file.read(names, token_arrays, wanted)


def open_rows(blobs: Blobs, path: str) -> RowFile:
    """The footer of a file alone: its named arrays, and the version of its rows.

    Raises:
        BlobMissing: there is no such file. CorruptFile: not a file that a sealer wrote. NewerFile:
            a newer version of Rollstream wrote it.
    """
    tail = read_footer(blobs, path, size_of(blobs, path))
    with as_corrupt(path):
        return RowFile(path, pa.py_buffer(tail))


def token_array_signatures(blobs: Blobs, path: str) -> Mapping[str, ArraySignature]:
    """Returns the named arrays that at least one row of a file has, from its footer alone.

    Raises:
        BlobMissing, CorruptFile, NewerFile: as ``read_rows``.
    """
    return open_rows(blobs, path).token_arrays


@contextmanager
def as_corrupt(path: str) -> Iterator[None]:
    """What pyarrow and NumPy raise in the block, on damaged bytes, is a CorruptFile."""
    try:
        yield
    except _DAMAGED as error:
        raise CorruptFile(f"{path} is no Parquet file, or a damaged one: {error}") from error
