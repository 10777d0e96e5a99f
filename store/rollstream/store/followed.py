"""What a root holds that was written after an event of a log was confirmed: while the log is there,
none of it is ahead of it."""

from __future__ import annotations

from dataclasses import dataclass

from rollstream.store.blobs import Blobs
from rollstream.store.layout import batch_in, batches_prefix, manifests_of, offset_in


@dataclass(frozen=True, slots=True)
class Followed:
    """Finds blobs of a root that were written after an event of a log was confirmed. As long as the
    log is whole, none of them is ahead of it. Each call lists the root, and raises ``StoreError``
    if it cannot.
    """

    blobs: Blobs

    def has_manifests(self, environment: str, generation: int) -> bool:
        """Returns whether the root holds a manifest of a flush of the environment."""
        blobs = self.blobs.list(manifests_of(environment, generation))
        return any(offset_in(blob.path) is not None for blob in blobs)

    def newest_batch(self, sampler: str) -> tuple[int, int] | None:
        """Returns trainer epoch and step of a sampler's newest batch file; None: there is none."""
        batches = (batch_in(blob.path) for blob in self.blobs.list(batches_prefix(sampler)))
        return max((one for one in batches if one is not None), default=None)
