"""What the records of ``admission.<env>`` come to, in whatever order they are read. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from rollstream.producers.admission.shares import Granted
from rollstream.schemas import codec
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import (
    PolicyAnnounced,
    ProducerShare,
    SharesGranted,
    SharesValid,
    share_of,
)
from rollstream.schemas.order import PolicyRef
from rollstream.streams.broker import Record

# Owners repeat their policy every 200 s, or more often; a trainer that restarts takes minutes.
LIVES_S = 600.0
_VERSIONS_KEPT = 4_096  # Of more, those that were read first are forgotten.


class NewestRecords:
    """The newest policy and the newest shares of each sampler. One thread adds; any may look.

    Args:
        producer_id: whose shares are taken from the second generation of the log.

    Attributes:
        shares: as ``AdmissionLog.shares``.
        versions: as ``AdmissionLog.versions``.
    """

    def __init__(self, producer_id: str = "") -> None:
        self.versions: Mapping[tuple[str, str], PolicyRef] = {}
        self.shares: Mapping[str, Granted] = {}
        self._producer_id = producer_id
        self._own: dict[str, ProducerShare] = {}  # This producer's, by sampler.
        # The claims by which samplers write single shares.
        self._claims: dict[str, int] = {}
        self._announced: Mapping[str, tuple[PolicyAnnounced, int]] = {}  # And when last, by Kafka.
        self._newest_us = 0
        self._last_us = 0  # Log time of the record that was read last.
        self._granted_us: dict[str, int] = {}  # Log time of each sampler's newest shares.

    def add(self, record: Record, read_s: float) -> bool:
        """Adds a record that was read now; returns whether anything is another than before.

        Raises:
            UnreadableEvent: it is garbage, or of a newer release; nothing was added.
        """
        share = share_of(record.key)
        event = codec.decode(record.value) if share is None or record.value else None
        self._newest_us = max(self._newest_us, record.timestamp_us)
        self._last_us = record.timestamp_us
        if share is not None and isinstance(event, ProducerShare | None):
            sampler, producer_id = share
            return producer_id == self._producer_id and self._share(sampler, event)
        if isinstance(event, PolicyAnnounced):
            return self._announce(event, record.timestamp_us)
        if isinstance(event, SharesGranted):
            return self._grant(event, record.timestamp_us, read_s)
        if isinstance(event, SharesValid):
            granted = SharesGranted(**asdict(event), **self._own_columns(event.sampler))
            return self._grant(granted, record.timestamp_us, read_s, by_producer=True)
        raise UnreadableEvent("not_an_event", f"{type(event).__name__}, which env workers need not")

    def shares_by_producer(self) -> list[Granted]:
        """The newest of those samplers that write each producer's share by itself."""
        return [one for one in self.shares.values() if self._is_by_producer(one.shares)]

    def age_shares(self, read_s: float) -> None:
        """All that the log held was read by now: shares that it held count as read when they were
        written, by how much later the log's last record was. Only log time tells that, and where
        the broker's clock went back they count as read now."""
        self.shares = {
            sampler: one._replace(
                read_s=min(one.read_s, read_s - (self._last_us - self._granted_us[sampler]) / 1e6)
            )
            for sampler, one in self.shares.items()
        }

    def policies(self) -> Mapping[str, PolicyAnnounced]:
        """As ``AdmissionLog.policies``."""
        return self._announced_by(lives=True)

    def ended(self) -> Mapping[str, PolicyAnnounced]:
        """As ``AdmissionLog.ended``."""
        left_out = self._announced_by(lives=False)
        return {sampler: policy for sampler, policy in left_out.items() if policy.over}

    def _announced_by(self, *, lives: bool) -> dict[str, PolicyAnnounced]:
        lives_us = self._newest_us - LIVES_S * 1e6
        return {
            sampler: policy
            for sampler, (policy, announced_us) in self._announced.items()
            if (announced_us >= lives_us) == lives
        }

    # Each change makes a new mapping: whoever looks at the one before needs no lock.

    def _announce(self, event: PolicyAnnounced, announced_us: int) -> bool:
        self._name(event)
        known = self._announced.get(event.sampler)
        is_newer = known is None or event.offset > known[0].offset
        if known is not None:
            event = event if is_newer else known[0]
            announced_us = max(announced_us, known[1])
        self._announced = {**self._announced, event.sampler: (event, announced_us)}
        return is_newer

    def _name(self, event: PolicyAnnounced) -> None:
        key = (event.lineage, event.policy_version)
        if key not in self.versions:
            kept = [*self.versions.items()][1 - _VERSIONS_KEPT :]
            ref = PolicyRef(event.lineage, event.policy_epoch, event.step)
            self.versions = {**dict(kept), key: ref}

    def _grant(
        self, event: SharesGranted, granted_us: int, read_s: float, *, by_producer: bool = False
    ) -> bool:
        """
        Args:
            by_producer: the sampler writes each producer's share by itself. What it writes besides
                under the same claim is for producers of older releases.
        """
        known = self.shares.get(event.sampler)
        if known is not None:
            newest = known.shares
            before = newest.epoch, self._is_by_producer(newest), newest.number
            if (event.epoch, by_producer, event.number) <= before:
                return False
        if by_producer:
            self._claims[event.sampler] = event.epoch
        self._granted_us[event.sampler] = granted_us
        self.shares = {**self.shares, event.sampler: Granted(event, read_s)}
        return True

    def _share(self, sampler: str, share: ProducerShare | None) -> bool:
        """This producer's newest share; None: it has none any more."""
        before, known = self._own.get(sampler), self.shares.get(sampler)
        if share is None:
            self._own.pop(sampler, None)
        elif before is None or (share.epoch, share.number) > (before.epoch, before.number):
            self._own[sampler] = share
        if self._own.get(sampler) == before:
            return False
        if known is None or not self._is_by_producer(known.shares):
            return False
        shares = replace(known.shares, **self._own_columns(sampler))
        self.shares = {**self.shares, sampler: known._replace(shares=shares)}
        return True

    def _is_by_producer(self, shares: SharesGranted) -> bool:
        return self._claims.get(shares.sampler) == shares.epoch

    def _own_columns(self, sampler: str) -> dict[str, Any]:
        share = self._own.get(sampler)
        return {
            "producer_ids": () if share is None else (self._producer_id,),
            "totals": np.array([] if share is None else [share.total], np.int64),
            "needed": np.array([] if share is None else [share.needed], np.int64),
        }
