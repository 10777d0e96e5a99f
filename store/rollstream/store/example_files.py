"""The files of examples that were made of batches: one row an example, in any reader's types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rollstream.store.arrow import whole_table
from rollstream.store.blobs import Blobs
from rollstream.store.errors import BlobExists, CorruptFile
from rollstream.store.layout import examples_path

ABOUT = b"rollstream_examples"  # Where the file's metadata has what they were made of, as JSON.


class ExampleColumns(NamedTuple):
    """Examples, one after the other; n of them, and total tokens.

    Attributes:
        scalars: by name [n], numbers or texts.
        ragged: by name [total, …], what has a value for each token.
        offsets: int64 [n + 1]: example ``i`` has the tokens ``offsets[i]`` to ``offsets[i + 1]``.
    """

    scalars: Mapping[str, NDArray[Any] | tuple[str, ...]]
    ragged: Mapping[str, NDArray[Any]]
    offsets: NDArray[np.int64]


def write_examples(
    blobs: Blobs, examples_id: str, examples: ExampleColumns, about: Mapping[str, Any]
) -> None:
    """Creates the file, whole or not at all; one that is there stays as it is: its id says what it
    was made of. Raises as ``Blobs.create``."""
    columns = {
        name: pa.array(values, pa.string()) if isinstance(values, tuple) else pa.array(values)
        for name, values in examples.scalars.items()
    }
    offsets = pa.array(examples.offsets)
    for name, values in examples.ragged.items():
        columns[name] = pa.LargeListArray.from_arrays(offsets, _items(values))
    text = json.dumps(about, sort_keys=True).encode()
    table = pa.table(columns).replace_schema_metadata({ABOUT: text})
    written = BytesIO()
    pq.write_table(table, written, compression="none")
    try:
        blobs.create(examples_path(examples_id), written.getvalue())
    except BlobExists:
        return


def read_examples(blobs: Blobs, examples_id: str) -> tuple[ExampleColumns, dict[str, Any]]:
    """The examples of that id, and what they were made of.

    Raises:
        BlobMissing: there are none. CorruptFile: the file is damaged, or none of these.
    """
    path = examples_path(examples_id)
    data = blobs.read(path)
    try:
        table = whole_table(data).combine_chunks()
        about: dict[str, Any] = json.loads((table.schema.metadata or {})[ABOUT])
    except (pa.ArrowInvalid, OSError, KeyError, ValueError) as error:
        raise CorruptFile(f"{path} holds no examples, or is damaged: {error}") from error
    scalars: dict[str, NDArray[Any] | tuple[str, ...]] = {}
    ragged: dict[str, NDArray[Any]] = {}
    offsets = np.zeros(1, np.int64)
    for name, column in zip(table.column_names, table.columns, strict=True):
        array = column.combine_chunks()
        if pa.types.is_large_list(array.type):
            offsets = array.offsets.to_numpy()
            ragged[name] = _values(array.values)
        elif pa.types.is_string(array.type):
            scalars[name] = tuple(array.to_pylist())
        else:
            scalars[name] = array.to_numpy(zero_copy_only=False)
    return ExampleColumns(scalars, ragged, offsets), about


def _items(values: NDArray[Any]) -> pa.Array:
    """One item a token, of as many numbers as it has."""
    items = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in reversed(values.shape[1:]):
        items = pa.FixedSizeListArray.from_arrays(items, size)
    return items


def _values(items: pa.Array) -> NDArray[Any]:
    shape = [len(items)]
    while pa.types.is_fixed_size_list(items.type):
        shape.append(items.type.list_size)
        items = items.flatten()
    found: NDArray[Any] = items.to_numpy(zero_copy_only=False).reshape(shape)
    return found
