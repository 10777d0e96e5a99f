"""Rows that a rank reads from the store itself."""

from __future__ import annotations

import logging
from functools import cached_property

from rollstream.runtime.config.store import StoreConfig
from rollstream.sampler.batch.assembled import AssembledBatch, assemble
from rollstream.sampler.batch.share import Share
from rollstream.sampler.rows.payloads import Payloads
from rollstream.store.blobs import Blobs
from rollstream.store.errors import StoreError
from rollstream.store.open import open_store

_log = logging.getLogger("rollstream.sampler")


class RankReader:
    """Reads a rank's shares, as the sampler would: the same checks, the same bytes, and a cache of
    its own.

    Args:
        store: the store, or where it is: then it is opened at the first share.
    """

    def __init__(self, store: Blobs | StoreConfig, cache_bytes: int) -> None:
        self._store = store
        self._cache_bytes = cache_bytes

    def read(self, share: Share) -> AssembledBatch | None:
        """The share with its rows; None, with a warning, where they cannot be read here: only the
        sampler can tell whether the groups are lost, or this machine's view of the store."""
        try:
            parts = self._payloads.parts(share.decided.step, share.groups, share.columns)
            return assemble(share, parts, self._payloads.token_arrays)
        except StoreError as error:
            _log.warning(
                "rank %d of %d cannot read its share of step %d here, so that the sampler is asked "
                "to: %s",
                share.dp_rank,
                share.dp_size,
                share.decided.step,
                error,
            )
            return None

    @cached_property
    def store(self) -> Blobs:
        """The store, as this process reads it."""
        return open_store(self._store) if isinstance(self._store, StoreConfig) else self._store

    @cached_property
    def _payloads(self) -> Payloads:
        return Payloads(self.store, self._cache_bytes)
