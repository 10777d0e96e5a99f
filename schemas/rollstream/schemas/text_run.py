"""Equally long texts, cut out of what they came in when somebody looks at them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload


class TextRun(Sequence[str]):
    """A sequence of texts; it equals each other sequence of the same texts.

    Args:
        text: all of them, each behind ``head`` characters of something else.
        step: characters from one to the next.
    """

    __slots__ = ("_head", "_step", "_text")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, text: str, step: int, head: int) -> None:
        self._text, self._step, self._head = text, step, head

    def __len__(self) -> int:
        return len(self._text) // self._step

    def __iter__(self) -> Iterator[str]:
        text, size = self._text, self._step - self._head
        starts = range(self._head, len(text) + 1, self._step)
        return iter([text[start : start + size] for start in starts[: len(self)]])

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[str, ...]: ...

    def __getitem__(self, at: int | slice) -> str | tuple[str, ...]:
        if isinstance(at, slice):
            return tuple(self)[at]
        start = range(len(self))[at] * self._step
        return self._text[start + self._head : start + self._step]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)
