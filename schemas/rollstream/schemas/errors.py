"""The root of every error that Rollstream raises, and the errors of bytes and records."""

from __future__ import annotations

from typing import Any

_SHOWN_CHARS_MAX = 200


class RollstreamError(Exception):
    """Whatever Rollstream raises on purpose: the message names the value and the remedy."""

    def __reduce__(self) -> tuple[Any, ...]:
        """It crosses processes, also where it takes other arguments than its message."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(
    kind: type[RollstreamError], args: tuple[Any, ...], state: dict[str, Any]
) -> RollstreamError:
    error = kind.__new__(kind, *args)
    error.args = args  # Of an ``OSError`` with an initialiser of its own, these are not there yet.
    error.__dict__.update(state)
    return error


class MissingExtra(RollstreamError, ImportError):
    """A library that this needs is not installed; the message says how to install it."""


class WrongValue(RollstreamError, ValueError):
    """A value breaks a rule. The message has the field, what is wrong and what to do.

    Attributes:
        field: the argument, with key or index if one of its values is wrong: ``logprobs[3]``,
            ``metadata['a']``.
        value: the wrong value: a number, text or None as it was given, and of anything else the
            beginning of its ``repr``.
        finding: what is wrong with the value, for example ``is -1``.
        remedy: what to give instead.
    """

    def __init__(self, field: str, value: Any, remedy: str, finding: str = "") -> None:
        # The message is made of these when it is asked for: who knows more adds it, as an index.
        self.field = field
        self.value = _kept(value)
        self.remedy = remedy
        self.finding = finding or f"is {shown(value)}"
        super().__init__(field, self.value, remedy, self.finding)  # And not the value itself.

    def __str__(self) -> str:
        return f"{self.field} {self.finding}; {self.remedy}"


class InvalidRollout(WrongValue):
    """A rollout, score or dispatch breaks a rule. If a producer raises it, nothing was published.

    Attributes:
        field: the argument, with key or index if one of its values is wrong: ``logprobs[3]``,
            ``metadata['a']``.
        value: the wrong value: a number, text or None as it was given, and of anything else the
            beginning of its ``repr``.
        finding: what is wrong with the value, for example ``is -1``.
        remedy: what to give instead.
        index: the index of the step in the call's list. None: the call has no list.
        of: the name of that list, for the message.
    """

    index: int | None = None
    of = "steps"

    def __str__(self) -> str:
        at = "" if self.index is None else f"{self.of}[{self.index}]: "
        return f"{at}{super().__str__()}"


def shown(value: Any) -> str:
    """The beginning of the value's ``repr``, for a message."""
    try:
        return f"{value!r:.{_SHOWN_CHARS_MAX}}"
    except (ValueError, RecursionError):  # Of more than 4,300 digits, or nested too deep.
        return f"a large {type(value).__name__}"


def _kept(value: Any) -> Any:
    """What an error holds of a value: it can be pickled, and is small."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and value.bit_length() <= _SHOWN_CHARS_MAX:
        return value
    return str.__str__(value)[:_SHOWN_CHARS_MAX] if isinstance(value, str) else shown(value)


class UnreadableEvent(RollstreamError):
    """Bytes that are no event of ours.

    Attributes:
        reason: one of ``LetterReason``.
        detail: what exactly was wrong, for a person.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
