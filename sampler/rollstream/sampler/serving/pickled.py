"""A result that is pickled once, however many callers it goes to."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

BESIDE_BYTES_MIN = 1_024  # An array beside the header costs more than to copy a smaller one.


class Pickled(NamedTuple):
    """A pickled object, whose larger arrays lie beside it: they are copied neither here nor where
    it is opened.

    Attributes:
        header: all of it but these arrays' bytes.
        buffers: uint8 [size] of each of them.
    """

    header: bytes
    buffers: Sequence[NDArray[np.uint8]]

    @classmethod
    def of(cls, value: object) -> Self:
        buffers: list[pickle.PickleBuffer] = []

        def keep_beside(buffer: pickle.PickleBuffer) -> bool:
            if buffer.raw().nbytes >= BESIDE_BYTES_MIN:
                buffers.append(buffer)
                return False
            return True  # In the header.

        header = pickle.dumps(value, protocol=5, buffer_callback=keep_beside)
        return cls(header, [np.frombuffer(each.raw(), np.uint8) for each in buffers])

    def open(self) -> Any:
        """The object."""
        return pickle.loads(self.header, buffers=self.buffers)
