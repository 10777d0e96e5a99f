"""Arrays that are computed when they are first read. Pure.

A rank's packs need the advantages and log-probs of its own tokens alone, masked.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class OfExamples(NamedTuple):
    """A value for each example, at the tokens that the loss counts; 0 at others.

    Attributes:
        values: float32 [n].
        offsets: int64 [n + 1], where each begins.
        loss_mask: bool [total].
        prompts: int32 [n], tokens of each prompt, at which there are neither such tokens nor
            log-probs; None: turns were merged.
    """

    values: NDArray[np.float32]
    offsets: NDArray[np.int64]
    loss_mask: NDArray[np.bool_]
    prompts: NDArray[np.int32] | None

    def array(self) -> NDArray[np.float32]:
        """float32 [total]."""
        each = np.repeat(self.values, np.diff(self.offsets))
        np.copyto(each, 0, where=~self.loss_mask)
        return each


class OfTokens(NamedTuple):
    """A value for each token, at those that the loss counts; 0 at others.

    Attributes:
        values: float32 [total].
        loss_mask: bool [total].
    """

    values: NDArray[np.float32]
    loss_mask: NDArray[np.bool_]

    def array(self) -> NDArray[np.float32]:
        """float32 [total]."""
        return np.where(self.loss_mask, self.values, np.float32(0))


Source = OfExamples | OfTokens | NDArray[np.float32]


class OnFirstUse:
    """A field, of a dataclass without slots, that is given as a source and read as its array."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> NDArray[np.float32]:
        if instance is None:
            raise AttributeError(self._name)  # So that the field has no default.
        found = source_of(instance, self._name)
        if not isinstance(found, np.ndarray):
            found = instance.__dict__[self._name] = found.array()
        return found

    def __set__(self, instance: Any, value: Source) -> None:
        instance.__dict__[self._name] = value


def source_of(instance: Any, name: str) -> Source:
    """What a field was given as, or its array once it was read."""
    found: Source = instance.__dict__[name]
    return found
