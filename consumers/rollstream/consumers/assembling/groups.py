"""All groups and trajectories of one partition that are not decided."""

from __future__ import annotations

from collections import OrderedDict

from rollstream.consumers.assembling.expiry import AgeOrder
from rollstream.consumers.assembling.grouping import PendingKey
from rollstream.consumers.assembling.pending import Chain, PendingGroup
from rollstream.runtime.config.sections import EnvironmentConfig


class PendingGroups:
    """Groups by key and by age, and open trajectories by uid, in the order in which they began.

    Attributes:
        by_key: the groups, by what their members share.
        ages: the groups, oldest first.
        chains: trajectories that are not complete, in whichever group they are now.
        records: offsets that groups hold; ``records_max`` is their bound.
        size: payload bytes that groups hold; ``size_max`` is their bound.
    """

    def __init__(self, config: EnvironmentConfig) -> None:
        self.ages = AgeOrder(round(config.seal_timeout_s * 1e6), round(config.expire_after_s * 1e6))
        self.chains: OrderedDict[str, Chain] = OrderedDict()
        self.records = 0
        self.size = 0
        self.records_max = config.max_pending_rollouts
        self.size_max = config.max_pending_bytes
        self.by_key: dict[PendingKey, PendingGroup] = {}
        self._capped = config.max_per_replica is not None

    def oldest_ts(self) -> int | None:
        """Log time from which the oldest group or trajectory counts; None without any."""
        group = self.ages.oldest()
        if group is None:
            return None
        chain = next(iter(self.chains.values()), None)
        return group.first_ts if chain is None else min(group.first_ts, chain.first_ts)

    def begin(self, key: PendingKey, size: int, offset: int, now_us: int) -> PendingGroup:
        """A new group. Offsets and log time never go back, so groups stay in the order of both."""
        group = self.by_key[key] = PendingGroup(key, size, offset, now_us)
        self.ages.add(group)
        return group

    def remove(self, group: PendingGroup) -> None:
        """The group is decided; what becomes of its trajectories is for the caller to do."""
        del self.by_key[group.key]
        self.ages.remove(group)
        self.records -= group.records
        self.size -= group.payload

    def begin_chain(self, uid: str, group: PendingGroup, offset: int, now_us: int) -> Chain:
        """A trajectory that begins with the segment at ``offset``, in the group."""
        chain = self.chains[uid] = group.chains[uid] = Chain(group, offset, now_us)
        return chain

    def remove_chain(self, uid: str, chain: Chain) -> None:
        """The trajectory is complete or settled; its records stay counted in its group."""
        del self.chains[uid], chain.group.chains[uid]

    def take_chain(self, uid: str, chain: Chain) -> None:
        """Removes the trajectory with its records; a group that holds nothing else goes too."""
        group = chain.group
        self.remove_chain(uid, chain)
        group.records -= len(chain)
        group.payload -= chain.size
        self.records -= len(chain)
        self.size -= chain.size
        if self._capped:
            group.replicas[chain.replica_id] -= 1
        if group.records == 0:
            self.remove(group)

    def move_chains(self, decided: PendingGroup, rest: PendingGroup) -> None:
        """Trajectories that were open when their group was decided go on in a new one."""
        for uid, chain in decided.chains.items():
            chain.group = rest
            rest.chains[uid] = chain
            rest.records += len(chain)
            rest.payload += chain.size
            if self._capped:
                rest.replicas[chain.replica_id] = rest.replicas.get(chain.replica_id, 0) + 1
            for _, segment in chain.rows():
                if segment.header.split != "train":
                    rest.split = segment.header.split
        self.records += rest.records
        self.size += rest.payload
