"""Follows ``admission.<env>`` for one producer, from its beginning: that is little, since it is
compacted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from rollstream.schemas.events import PolicyAnnounced, SharesGranted
from rollstream.schemas.order import PolicyRef


class Granted(NamedTuple):
    """The newest shares of one sampler.

    Attributes:
        shares: with those of the producer that follows the log, or of nobody, where the sampler
            writes each producer's share by itself; else with those of all.
        read_s: when this process read them, by its monotonic clock: from then on they are valid
            for ``shares.valid_s``, whatever any other clock says. Of those that the log held at
            the first read, earlier by how much newer the log's last record is, in log time.
        total: how many groups the producer may have begun by them, as ``Allowance`` takes them.
        needed: of these, how many whatever other samplers grant.
    """

    shares: SharesGranted
    read_s: float
    total: int = 0
    needed: int = 0

    @property
    def ends_s(self) -> float:
        """Until when they are valid, by this process's monotonic clock."""
        return self.read_s + self.shares.valid_s


class AdmissionLog(Protocol):
    """One environment's. May be shared between threads; nothing is read before the first call.

    Of a sampler the policy with the highest ``offset`` holds, and the shares with the highest
    ``(epoch, number)``, in whatever order they are read.
    """

    def policies(self) -> Mapping[str, PolicyAnnounced]:
        """The newest of each sampler that lives, as far as was read: one that last announced it
        600 s before the newest record of the log, by the broker's clock, is left out.

        Raises:
            ProducerClosed: it was closed, so whether anything is newer is not known.
        """

    def versions(self) -> Mapping[tuple[str, str], PolicyRef]:
        """Each policy that was read so far, by lineage and version; the newest 4,096."""

    def shares(self) -> Mapping[str, Granted]:
        """The newest of each sampler, as far as was read; those that left among them."""

    def wait(self, seen: int, timeout_s: float) -> int:
        """Returns as soon as what was read is not what it was when this returned ``seen`` (0 at
        first), the whole log as it stood at the first call being read; or after ``timeout_s``, or
        when it is closed. An empty log that was read is another than none.

        Raises:
            UnknownTopic: the environment has no such topic. NotAuthorised. BrokerUnavailable: none
                can be reached, or the log was not read so far, when the time is up.
        """

    def outage(self) -> str:
        """Why the log cannot be read now; empty: it can. Asks nobody."""

    def close(self) -> None:
        """Ends its thread. Idempotent."""
