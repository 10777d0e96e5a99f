"""Arguments that users of other systems write, refused with the name that is ours. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def refuses(**remedies: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Raises ``TypeError``, as for any unknown argument, for these: each with what to give."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **given: P.kwargs) -> R:
            for name, remedy in remedies.items():
                if name in given:
                    of = type(args[0]).__name__ if function.__name__ == "__init__" else ""
                    called = of or function.__name__
                    raise TypeError(
                        f"{called}() got an unexpected keyword argument {name!r}; give {remedy}"
                    )
            return function(*args, **given)

        return call

    return decorate
