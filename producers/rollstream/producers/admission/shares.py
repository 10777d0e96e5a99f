"""How many groups a producer may have begun, by what samplers granted it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from rollstream.producers.errors import SeveralLineages
from rollstream.schemas.events import SharesGranted

_IDLE_S_MIN = 1.0  # Shares that give no time are no reason to divide by it.


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


class Limit(NamedTuple):
    """How many groups a producer may have begun in its life, as of now.

    Attributes:
        groups: None: nothing limits it, since no sampler of its lineage ever took part.
        by: the shares that say so.
        away_s: since when no sampler's shares are valid; None: these are.
        changes_s: when it is another by time alone. Times are those of the monotonic clock.
        most: the shares with the most groups that can ever be open at one time; None: that is not
            known.
    """

    groups: int | None
    by: Granted | None = None
    away_s: float | None = None
    changes_s: float = inf
    most: SharesGranted | None = None


@dataclass(eq=False)
class Allowance:
    """What the samplers of one lineage allow one producer.

    Each sets a total; of several whose shares are valid the smallest holds, but that nobody who
    waits is held by one who does not: what any of them needs may be begun. Shares are valid from
    when they were read, by this process's clock. Once none are, the total of the sampler whose
    shares ended last stays, and after each ``idle_s`` from then on ``idle_groups`` more may be
    begun, so that nobody waits for ever for a trainer that is away.

    Args:
        environment: for messages.
        lineage: theirs; None: the only one that there is, as in ``RolloutProducer.policy``; where
            no shares are valid, that of those that ended last.
    """

    _environment: str
    _producer_id: str
    _lineage: str | None
    _known: dict[str, Granted] = field(default_factory=dict)  # Of each sampler, of any lineage.
    _stays: tuple[Granted, int] | None = None  # The last ones, and the total that stays.

    def limit(self, newest: Mapping[str, Granted], begun: int, now_s: float) -> Limit:
        """The limit by the newest shares of each sampler.

        Args:
            newest: as ``AdmissionLog.shares``.
            begun: how many groups the producer has begun.

        Raises:
            SeveralLineages: shares of two are valid, and the producer names none.
        """
        for sampler, granted in newest.items():
            known = self._known.get(sampler)
            if (
                known is None
                or known.shares is not granted.shares
                or known.read_s != granted.read_s
            ):
                self._take(sampler, granted)
        named = self._lineage
        shares = [one for one in self._known.values() if named in (None, one.shares.lineage)]
        if not shares:
            return Limit(None)
        valid = [one for one in shares if now_s < one.ends_s]
        if len(lineages := {one.shares.lineage for one in valid}) > 1:
            raise SeveralLineages(self._environment, sorted(lineages), "RolloutProducer(lineage=…)")
        if valid:
            self._stays = None
            least = min(valid, key=lambda share: share.total)
            needs = max(valid, key=lambda share: share.needed)
            ends_s = min(share.ends_s for share in valid)
            each = [share.shares for share in valid]
            most = max(each, key=lambda shares: shares.most) if all(s.most for s in each) else None
            is_needed = needs.needed > least.total
            groups, by = (needs.needed, needs) if is_needed else (least.total, least)
            return Limit(groups, by, None, ends_s, most)
        last = max(shares, key=lambda share: (share.ends_s, -share.total))
        if self._stays is None or self._stays[0] is not last:
            # A producer that was granted less than it has begun already may go on, too.
            self._stays = last, max(last.total, begun)
        idle_s = max(last.shares.idle_s, _IDLE_S_MIN)
        periods = int((now_s - last.ends_s) // idle_s)
        groups = self._stays[1] + periods * last.shares.idle_groups
        return Limit(groups, last, last.ends_s, last.ends_s + (periods + 1) * idle_s)

    def _take(self, sampler: str, granted: Granted) -> None:
        shares = granted.shares
        known, needed = self._known.pop(sampler, None), 0
        if self._producer_id in shares.producer_ids:
            at = shares.producer_ids.index(self._producer_id)
            total = int(shares.totals[at])
            needed = int(shares.needed[at]) if len(shares.needed) else 0
        else:  # It does not know this producer (any more); one that leaves need not name any.
            total = known.total if known is not None and not shares.valid_s else 0
        if shares.valid_s >= 0:  # Else it takes no part: as if it had never granted anything.
            self._known[sampler] = granted._replace(total=total, needed=needed)
