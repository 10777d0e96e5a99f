"""Coroutines that run to their end at once, so that one body serves those who await and others."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def at_once(call: Coroutine[Any, Any, T]) -> T:
    """Returns what a coroutine returns, or raises, that awaits nothing but others of its kind."""
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waited")
