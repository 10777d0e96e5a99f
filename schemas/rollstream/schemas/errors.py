"""The root of every error that Rollstream raises, and the errors of bytes and records."""

from __future__ import annotations

from typing import Self


class RollstreamError(Exception):
    """Whatever Rollstream raises on purpose: the message names the value and the remedy."""


class MissingExtra(RollstreamError, ImportError):
    """A library that this needs is not installed; the message says how to install it."""


class InvalidRollout(RollstreamError, ValueError):
    """A rollout, score or dispatch that a caller gave breaks a rule; nothing was published."""


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

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        """It crosses from a sampler's process to a trainer's."""
        return type(self), (self.reason, self.detail)
