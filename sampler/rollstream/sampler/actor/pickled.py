"""Results that are pickled once, however many callers they go to, and how they cross to them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.batch.assembled import AssembledBatch
from rollstream.sampler.decide.command import Reply

BESIDE_BYTES_MIN = 1_024  # An array beside the header costs more than to copy a smaller one.
# Ray hands bytes on as they are, and an answer of up to 100 KiB together with the call.
JOINED_BYTES_MAX = 96 * 1024


class Pickled(NamedTuple):
    """A pickled object, whose larger arrays lie beside it: they are copied neither here nor where
    it is opened.

    Attributes:
        header: all of it but these arrays' bytes.
        buffers: uint8 [size] of each of them, read-only.
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
        return cls(header, [_read_only(each.raw()) for each in buffers])

    @property
    def nbytes(self) -> int:
        """Its size."""
        return len(self.header) + sum([buffer.nbytes for buffer in self.buffers])

    def open(self) -> Any:
        """The object."""
        return pickle.loads(self.header, buffers=self.buffers)


class StoredBatch(NamedTuple):
    """A batch that was pickled before it was decided, and whose buffer is in Ray's object store.

    Attributes:
        header: as that of ``Pickled``.
        ref: Ray's reference to the buffer, uint8 [size], read-only.
        decision: of the batch.
    """

    header: bytes
    ref: Any
    decision: Mapping[str, Any]

    def open(self, buffer: NDArray[np.uint8]) -> AssembledBatch:
        """The batch, with its buffer as it was fetched."""
        batch: AssembledBatch = pickle.loads(self.header, buffers=[buffer])
        return replace(batch, decision=self.decision)


def joined(answers: list[Any]) -> bytes | list[Any]:
    """What crosses for answers (``Reply`` and others): bytes where what was pickled is small. What
    several share crosses once."""
    if stored_in(answers):
        return answers  # Ray is to see its references.
    shared = {id(value): value for value in map(_value_of, answers) if isinstance(value, Pickled)}
    if sum([value.nbytes for value in shared.values()]) > JOINED_BYTES_MAX:
        return answers  # Their arrays are views of the object store, where they arrive.
    return pickle.dumps(answers, protocol=5)


def stored_in(crossed: bytes | list[Any]) -> list[StoredBatch]:
    """The batches among the answers whose buffers are to be fetched."""
    values = () if isinstance(crossed, bytes) else map(_value_of, crossed)
    return [value for value in values if isinstance(value, StoredBatch)]


def opened(crossed: bytes | list[Any], fetched: Sequence[NDArray[np.uint8]] = ()) -> list[Any]:
    """The answers, with what was pickled in them; what several share is opened once.

    Args:
        fetched: the buffers of ``stored_in``.
    """
    buffers = iter(fetched)
    answers = pickle.loads(crossed) if isinstance(crossed, bytes) else crossed
    found: dict[int, Any] = {}
    for number, answer in enumerate(answers):
        value = _value_of(answer)
        if isinstance(value, StoredBatch):
            answers[number] = Reply(answer.trainer_epoch, value.open(next(buffers)))
        elif isinstance(value, Pickled):
            if id(value) not in found:
                found[id(value)] = value.open()
            answers[number] = Reply(answer.trainer_epoch, found[id(value)])
    return answers


def _value_of(answer: object) -> object:
    return answer.value if isinstance(answer, Reply) else None


def _read_only(raw: memoryview) -> NDArray[np.uint8]:
    array = np.frombuffer(raw, np.uint8)
    array.flags.writeable = False
    return array
