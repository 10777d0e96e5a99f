"""Results that are pickled once, however many callers they go to, and how they cross to them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.decide.command import Reply

BESIDE_BYTES_MIN = 1_024  # An array beside the header costs more than to copy a smaller one.
# Ray hands bytes on as they are, and an answer of up to 100 KiB together with the call.
JOINED_BYTES_MAX = 96 * 1024


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
        return cls(header, [_read_only(each.raw()) for each in buffers], fields)

    @property
    def nbytes(self) -> int:
        """Its size, without fields and what is stored."""
        here = [each.nbytes for each in self.buffers if not isinstance(each, Stored)]
        return len(self.header) + sum(here)

    @property
    def parts(self) -> list[object]:
        """What it refers to: buffers and fields."""
        return [*self.buffers, *self.fields.values()]

    def open(self, found: dict[int, Any] | None = None) -> Any:
        """The object.

        Args:
            found: by their ids, parts that were fetched or opened; more are added.
        """
        known = {} if found is None else found

        def opened_part(part: Any) -> Any:
            if isinstance(part, Pickled) and id(part) not in known:
                known[id(part)] = part.open(known)
            return known.get(id(part), part)

        value = pickle.loads(self.header, buffers=list(map(opened_part, self.buffers)))
        fields = {name: opened_part(part) for name, part in self.fields.items()}
        return replace(value, **fields) if fields else value


def joined(answers: list[Any]) -> bytes | list[Any]:
    """What crosses for answers (``Reply`` and others): bytes where what was pickled is small. What
    several share crosses once."""
    if stored_in(answers):
        return answers  # Ray is to see its references.
    shared = {id(one): one for one in _parts_of(answers) if isinstance(one, Pickled)}
    if sum([one.nbytes for one in shared.values()]) > JOINED_BYTES_MAX:
        return answers  # Their arrays are views of the object store, where they arrive.
    return pickle.dumps(answers, protocol=5)


def stored_in(crossed: bytes | list[Any]) -> list[Stored]:
    """What is to be fetched for the answers, each once."""
    parts = [] if isinstance(crossed, bytes) else _parts_of(crossed)
    return list({id(one): one for one in parts if isinstance(one, Stored)}.values())


def opened(crossed: bytes | list[Any], fetched: Sequence[Any] = ()) -> list[Any]:
    """The answers, with what was pickled in them; what several share is opened once.

    Args:
        fetched: what ``stored_in`` names.
    """
    found = dict(zip(map(id, stored_in(crossed)), fetched, strict=True))
    answers = pickle.loads(crossed) if isinstance(crossed, bytes) else crossed
    for number, answer in enumerate(answers):
        value = _value_of(answer)
        if isinstance(value, Pickled):
            if id(value) not in found:
                found[id(value)] = value.open(found)
            answers[number] = Reply(answer.trainer_epoch, found[id(value)])
    return answers


def _parts_of(answers: list[Any]) -> list[object]:
    """What was pickled for the answers, and its parts."""
    values = [value for value in map(_value_of, answers) if isinstance(value, Pickled)]
    return [*values, *(part for value in values for part in value.parts)]


def _value_of(answer: object) -> object:
    return answer.value if isinstance(answer, Reply) else None


def _read_only(raw: memoryview) -> NDArray[np.uint8]:
    array = np.frombuffer(raw, np.uint8)
    array.flags.writeable = False
    return array
