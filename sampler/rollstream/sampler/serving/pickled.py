"""A result that is pickled once, however many callers it goes to."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray


class Pickled(NamedTuple):
    """A pickled object, whose arrays lie beside it and are not copied, here or where it is opened.

    Attributes:
        header: all of it but the arrays' bytes.
        buffers: uint8 [size] of each array.
    """

    header: bytes
    buffers: Sequence[NDArray[np.uint8]]

    @classmethod
    def of(cls, value: object) -> Self:
        buffers: list[pickle.PickleBuffer] = []
        header = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        return cls(header, [np.frombuffer(each.raw(), np.uint8) for each in buffers])

    def open(self) -> Any:
        """The object."""
        return pickle.loads(self.header, buffers=self.buffers)
