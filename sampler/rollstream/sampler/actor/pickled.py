"""Results that are pickled once, however many callers they go to, and how they cross to them."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.decide.command import Reply

BESIDE_BYTES_MIN = 1_024  # An array beside the header costs more than to copy a smaller one.
# Ray hands bytes on as they are, and an answer of up to 100 KiB together with the call.
JOINED_BYTES_MAX = 96 * 1024
PAUSE_S = 1e-4  # Between two pieces; enough for a thread that waits for Python's lock to take it.


class Stored(NamedTuple):
    """What lies in Ray's object store, by Ray's reference to it."""

    ref: Any


class Pickled(NamedTuple):
    """A pickled object, whose larger arrays lie beside it: they are copied neither here nor where
    it is opened.

    Attributes:
        header: all of it but these arrays' bytes, and but its ``fields``.
        buffers: uint8 [size] of each of them, read-only, or where it is stored.
        fields: of the object, which others may share: a value, one that is pickled, or stored.
    """

    header: bytes
    buffers: Sequence[NDArray[np.uint8] | Stored]
    fields: Mapping[str, Any]

    @classmethod
    def of(cls, value: object, **fields: Any) -> Self:
        """``value`` without these fields."""
        buffers: list[pickle.PickleBuffer] = []

        def keep_beside(buffer: pickle.PickleBuffer) -> bool:
            if buffer.raw().nbytes >= BESIDE_BYTES_MIN:
                buffers.append(buffer)
                return False
            return True  # In the header.

        header = pickle.dumps(value, protocol=5, buffer_callback=keep_beside)
        arrays = [np.frombuffer(each.raw().toreadonly(), np.uint8) for each in buffers]
        return cls(header, arrays, fields)

    @classmethod
    def of_result(cls, make: Callable[[], object]) -> Self:
        """What ``make`` returns, which is called where this is opened. It is pickled in pieces of
        64 KiB: between two pieces other threads get Python's lock at once."""
        pieces = _Pieces()
        pickle.Pickler(pieces, protocol=5).dump(make)
        return cls.of(_Made(pieces.written))

    @property
    def nbytes(self) -> int:
        """Its size, without fields and what is stored."""
        here = [each.nbytes for each in self.buffers if not isinstance(each, Stored)]
        return len(self.header) + sum(here)

    def open(self, fetched: Mapping[int, Any] = MappingProxyType({})) -> Any:
        """The object.

        Args:
            fetched: by their ids, what was stored.
        """

        def opened_part(part: Any) -> Any:
            return part.open(fetched) if isinstance(part, Pickled) else fetched.get(id(part), part)

        value = pickle.loads(self.header, buffers=list(map(opened_part, self.buffers)))
        fields = {name: opened_part(part) for name, part in self.fields.items()}
        return replace(value, **fields) if fields else value


class _Pieces:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self._never = threading.Event()

    def write(self, piece: bytes | memoryview) -> None:
        self.written.append(bytes(piece))
        self._never.wait(PAUSE_S)


class _Made:
    """Unpickled, it is the result of the callable that was pickled in these pieces."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (list(map(pickle.PickleBuffer, self._pieces)),)


def _make(pieces: Sequence[memoryview]) -> object:
    return pickle.loads(b"".join(pieces))()


def crossing(answer: object) -> object:
    """What crosses for an answer (a ``Reply``, or another one): bytes where what was pickled is
    small."""
    parts = _parts_of(answer)
    size = sum([one.nbytes for one in parts if isinstance(one, Pickled)])
    # Ray is to see its references, and arrays are views of the object store where they arrive.
    if size > JOINED_BYTES_MAX or any(isinstance(one, Stored) for one in parts):
        return answer
    return pickle.dumps(answer, protocol=5)


def stored_in(crossed: object) -> list[Stored]:
    """What is to be fetched for an answer."""
    return [one for one in _parts_of(crossed) if isinstance(one, Stored)]


def opened(crossed: object, fetched: Sequence[Any] = ()) -> Any:
    """The answer, with what was pickled in it.

    Args:
        fetched: what ``stored_in`` names.
    """
    answer = pickle.loads(crossed) if isinstance(crossed, bytes) else crossed
    if not (isinstance(answer, Reply) and isinstance(answer.value, Pickled)):
        return answer
    found = dict(zip(map(id, stored_in(answer)), fetched, strict=True))
    return Reply(answer.trainer_epoch, answer.value.open(found))


def _parts_of(answer: object) -> list[object]:
    """What was pickled for an answer, and its parts."""
    value = answer.value if isinstance(answer, Reply) else None
    return [value, *value.buffers, *value.fields.values()] if isinstance(value, Pickled) else []
