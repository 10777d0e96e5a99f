"""Values of a Parquet column where they lie in the file.

``encode_rows`` writes a token array that every row has as one plain page, uncompressed. The page
ends with the values, one after the other, so they can be used in place, without decoding the
file: reading a row of a mapped file costs what touching its bytes costs.

Source: Apache Parquet format, "Data pages", "Plain encoding"; PageHeader in Thrift's compact
protocol.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rollstream.schemas.varint import read_number
from rollstream.store.errors import CorruptFile

# PageHeader: 1 type (data page), 2 and 3 the size before and after compression, 5 DataPageHeader (1
# values, 2 encoding).
_DATA_PAGE, _OF_PAGE, _IS_PLAIN = b"\x15\x00\x15", b"\x2c\x15", b"\x15\x00"
_HEADER_BYTES_MAX = 64  # Of a page without statistics.


def plain_bytes(
    path: str, data: pa.Buffer, chunk: pq.ColumnChunkMetaData, size: int
) -> NDArray[np.uint8]:
    """The last ``size`` bytes of a chunk that is one plain page: its values. A view.

    Raises:
        CorruptFile: the chunk is cut short, or is no such page; it names ``path``.
    """
    start = chunk.data_page_offset
    end = start + chunk.total_compressed_size
    if not 0 <= start <= end <= data.size:
        raise CorruptFile(f"{path}: a column from byte {start} to {end} of {data.size}")
    head = data.slice(start, min(_HEADER_BYTES_MAX, end - start)).to_pybytes()
    page = _plain_page_bytes(head.ljust(_HEADER_BYTES_MAX, b"\x00"))
    if page is not None and size <= page and 0 < end - start - page <= _HEADER_BYTES_MAX:
        return np.frombuffer(data.slice(end - size, size), np.uint8)
    raise CorruptFile(f"{path}: column {chunk.path_in_schema} is no plain page with {size} bytes")


def unpacked_bits(packed: NDArray[np.uint8], start: int, stop: int) -> NDArray[np.bool_]:
    """Booleans ``start`` to ``stop`` of a plain page of bits; a copy."""
    bits = np.unpackbits(packed[start // 8 : -(-stop // 8)], bitorder="little")
    return bits[start % 8 :][: stop - start].view(np.bool_)


def _plain_page_bytes(head: bytes) -> int | None:
    """How many bytes follow the header of a plain page that is not compressed; None: it is no such
    page. pyarrow would tell the codec too, but ends the process where it does not know it."""
    if not head.startswith(_DATA_PAGE):
        return None
    before, at = read_number(head, len(_DATA_PAGE))
    after, at = read_number(head, at + 1)
    if before != after or not head.startswith(_OF_PAGE, at):
        return None
    _, at = read_number(head, at + len(_OF_PAGE))
    return after if head.startswith(_IS_PLAIN, at) else None
