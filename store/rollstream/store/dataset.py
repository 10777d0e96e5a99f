"""Rows to Parquet bytes and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rollstream.schemas.columns import Columns
from rollstream.store.blobs import Blobs


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where each row came from.

    Attributes:
        group_ids: one a row.
        policy_versions: of the row's group (``mixed`` where members differ), one a row.
        generation, partition, epoch: of the source log and the claim, the same for all rows.
        offsets: int64 [rows], in the source partition.
    """

    group_ids: Sequence[str]
    policy_versions: Sequence[str]
    generation: int
    partition: int
    epoch: int
    offsets: NDArray[np.int64]


def encode_rows(columns: Columns, provenance: Provenance) -> pa.Buffer:
    """The rows as one Parquet file. Equal arguments give equal bytes.

    Columns are the fields of ``RolloutRecord`` plus ``group_id``, ``log_generation``,
    ``log_partition``, ``log_offset``, ``log_epoch``; arrays are lists that any reader opens.
    """
    raise NotImplementedError


def read_rows(
    blobs: Blobs,
    path: str,
    *,
    ranges: Sequence[tuple[int, int]] | None = None,
    fields: Sequence[str] | None = None,
) -> Columns:
    """Rows of one file, exactly as they were encoded.

    Args:
        blobs: where.
        path: of the file.
        ranges: (first row, rows) pairs in the wanted order; None: all rows.
        fields: names of the ``rollout`` schema to read; None: all. What is not read is not there.
    """
    raise NotImplementedError
