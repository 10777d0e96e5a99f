"""The named arrays of a batch. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from rollstream.sampler.errors import ArrayMissing, SamplerError


class TokenArrays(Mapping[str, NDArray[Any]]):
    """The named arrays of a batch. Access to one in whose dtype or trailing shape groups differ
    raises ``ArraysDiffer``, which names them, and access to one that none has ``ArrayMissing``;
    only the others are counted and iterated over."""

    def __init__(
        self, arrays: Mapping[str, NDArray[Any]], refused: Mapping[str, SamplerError]
    ) -> None:
        self._arrays = dict(arrays)
        self._refused = dict(refused)

    def __getitem__(self, name: str) -> NDArray[Any]:
        if (error := self._refused.get(name)) is not None:
            raise type(error)(*error.args)  # One that is raised again keeps all frames it passed.
        if name not in self._arrays:
            raise ArrayMissing(f"token array {name!r} was not asked for; name it in columns=")
        return self._arrays[name]

    def each(self, function: Callable[[NDArray[Any]], NDArray[Any]]) -> TokenArrays:
        """The same with the function's result for each array."""
        made = {name: function(array) for name, array in self._arrays.items()}
        return TokenArrays(made, self._refused)

    def joined_by(self, arrays: Mapping[str, NDArray[Any]]) -> TokenArrays:
        """The same and these."""
        return TokenArrays({**self._arrays, **arrays}, self._refused)

    def __repr__(self) -> str:
        """One line."""
        arrays = [f"{name} {a.dtype} {list(a.shape)}" for name, a in self._arrays.items()]
        return (
            f"TokenArrays({', '.join([*arrays, *[f'{name} refused' for name in self._refused]])})"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)
