"""What can go wrong between the ranks of a trainer."""

from __future__ import annotations

from rollstream.schemas.errors import RollstreamError

# The exit code of a rank whose peer was lost (sysexits.h: a failure that passes; try again).
PEER_LOST = 75


class GrpoError(RollstreamError):
    """The run could not do what was asked."""


class PeerLost(GrpoError):
    """Another rank of the trainer ended, or did not answer in time."""

    def __init__(self, rank: int, waited_for: str, timeout_s: float, cause: str) -> None:
        super().__init__(
            f"rank {rank} waited for {waited_for}, and another rank ended or did not answer within "
            f"{timeout_s:.0f} s ({cause}): start all ranks again, and they resume behind the "
            "newest checkpoint with the same batches"
        )
        self.rank = rank
        self.waited_for = waited_for
