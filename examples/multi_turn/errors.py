"""What can go wrong in the run."""

from __future__ import annotations

from rollstream.schemas.errors import RollstreamError


class NoPromptFinished(RollstreamError):
    """The pool stayed empty."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(
            f"no prompt was finished within {timeout_s:.0f} s: see the logs of workers and sealer"
        )
