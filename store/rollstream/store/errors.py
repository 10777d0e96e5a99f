"""What a store may answer."""

from __future__ import annotations

from rollstream.schemas.errors import RollstreamError


class StoreError(RollstreamError):
    """The store refused, or could not be asked."""


class BlobExists(StoreError):
    """A create found something under that path; nothing was changed."""


class BlobMissing(StoreError):
    """Nothing lies under that path."""


class StoreFull(StoreError):
    """No space is left; nothing was created."""


class CorruptFile(StoreError):
    """A file's bytes are not those that its event names."""
