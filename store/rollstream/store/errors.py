"""Errors of the store."""

from __future__ import annotations

from rollstream.schemas.errors import RollstreamError


class StoreError(RollstreamError):
    """The store refused a request, or failed to carry it out."""


class BlobExists(StoreError):
    """The path has a blob already, which stays as it is."""


class BlobMissing(StoreError):
    """There is no blob under that path."""


class StoreAway(StoreError):
    """Blobs that were there are missing, as if the store was: a lost mount, or a folder that moved.
    Nothing was given up for it, and you may repeat the call.
    """


class StoreRefused(StoreError):
    """This process lacks the right to do this; it may have others."""


class StoreFull(StoreError):
    """No space is left; nothing was created."""


class StoreHangs(StoreError):
    """A call of the store has not ended, and nothing can end it: a mount without its server."""


class CorruptFile(StoreError):
    """A file or manifest is damaged, or is not the one that its event names."""


class NewerFile(StoreError):
    """A newer version of Rollstream wrote a file or manifest. It is not damaged: upgrade."""


class NoTokenArray(StoreError, LookupError):
    """A table has no named array of this name, or does not say its dtype and shape."""
