"""What a root holds that was written after an event of a log was confirmed: while the log is there,
none of it is ahead of it."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import NamedTuple

from rollstream.store.blobs import Blobs
from rollstream.store.errors import BlobMissing, StoreError
from rollstream.store.layout import (
    batch_in,
    batch_path,
    batches_prefix,
    hint_path,
    manifests_of,
    newest_batches_prefix,
    offset_in,
)

_log = logging.getLogger("rollstream.store")


@dataclass(frozen=True, slots=True)
class Hint:
    """A blob that spares reading a log from its beginning, and that the log has to prove. What
    fails is logged, and costs time alone.
    """

    blobs: Blobs
    path: str

    def read(self) -> bytes:
        """Returns the blob; empty: there is none, or it cannot be read."""
        try:
            return self.blobs.read(self.path)
        except BlobMissing:
            return b""
        except StoreError as error:
            _log.warning("%s is not used: %s", self.path, error)
            return b""

    def write(self, data: bytes) -> None:
        """Replaces the blob."""
        try:
            self.blobs.replace(self.path, data)
        except StoreError as error:
            _log.warning("%s was not written: %s", self.path, error)


class NewestBatch(NamedTuple):
    """The newest batch of a sampler that a root knows of.

    Attributes:
        batch: its trainer epoch and step.
        content: JSON with its ``digest`` and ``replacements``, or damaged.
    """

    batch: tuple[int, int]
    content: bytes


@dataclass(frozen=True, slots=True)
class Followed:
    """Finds blobs of a root that were written after an event of a log was confirmed. As long as the
    log is whole, none of them is ahead of it. Each call reads the root, and raises ``StoreError``
    if it cannot.
    """

    blobs: Blobs

    def has_manifests(self, environment: str, generation: int) -> bool:
        """Returns whether the root holds a manifest of a flush of the environment."""
        blobs = self.blobs.list(manifests_of(environment, generation))
        return any(offset_in(blob.path) is not None for blob in blobs)

    def decisions(self, sampler: str, log: str, kind: str) -> Hint:
        """Returns the hint of a sampler's decision log for readers of this kind."""
        return Hint(self.blobs, hint_path(sampler, log, kind))

    def newest_batch(self, sampler: str) -> tuple[int, int] | None:
        """Returns trainer epoch and step of a sampler's newest batch; None: there is none."""
        newest = self.newest_named(sampler)
        return None if newest is None else newest.batch

    def newest_named(self, sampler: str) -> NewestBatch | None:
        """Returns a sampler's newest batch, by the blobs that name it, one a claim: an owner that
        was fenced writes its own alone. Lists the batch files if there is none, as older releases
        left it."""
        named = (
            self._named_in(one.path) for one in self.blobs.list(newest_batches_prefix(sampler))
        )
        found = max((one for one in named if one is not None), default=None)
        if found is not None:
            return found
        batches = (batch_in(blob.path) for blob in self.blobs.list(batches_prefix(sampler)))
        newest = max((one for one in batches if one is not None), default=None)
        if newest is None:
            return None
        return NewestBatch(newest, self.blobs.read(batch_path(sampler, *newest)))

    def _named_in(self, path: str) -> NewestBatch | None:
        """Returns the batch that a blob names; None: it is damaged, or gone."""
        try:
            content = self.blobs.read(path)
            named = json.loads(content)
            return NewestBatch((int(named["trainer_epoch"]), int(named["step"])), content)
        except (BlobMissing, ValueError, KeyError, TypeError):
            return None
