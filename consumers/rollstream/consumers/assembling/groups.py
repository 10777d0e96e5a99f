"""All groups and trajectories of one partition that are not decided.

Offsets and log time never go back, so the order in which groups begin is the order of their
deadlines. Every operation costs the same however many are pending: an ``OrderedDict`` finds and
removes its oldest entry at constant cost, which a plain dict does not.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice, takewhile

from rollstream.consumers.assembling.decisions import Settlement
from rollstream.consumers.assembling.pending import (
    Chain,
    PendingEntry,
    PendingGroup,
    PendingKey,
)
from rollstream.runtime.config.sections import EnvironmentConfig
from rollstream.schemas.events import Continuation


class PendingGroups:
    """Groups and open trajectories, oldest first.

    Attributes:
        by_key: the groups, by what their members share.
        chains: trajectories that are not complete, by the uid that came first, in whichever group
            they are now.
        entries: that groups hold; ``entries_max`` is their bound.
        prompts: the groups that steps began, by their uid.
        unnamed: the entry that dispatched each group which nothing in the seal log names yet;
            whoever named it there removes it.
    """

    def __init__(self, config: EnvironmentConfig) -> None:
        self.by_key: OrderedDict[PendingKey, PendingGroup] = OrderedDict()
        self.chains: OrderedDict[str, Chain] = OrderedDict()
        self._named: dict[str, Chain] = {}  # By their other names.
        self._waiting: OrderedDict[Chain, int] = OrderedDict()  # Since then, the longest first.
        self.prompts: dict[str, PendingGroup] = {}
        self.unnamed: dict[PendingGroup, Settlement] = {}
        self.entries = 0
        self.entries_max = config.max_pending_rollouts
        # Groups whose seal time-out has not passed; all others are older.
        self._fresh: OrderedDict[PendingKey, PendingGroup] = OrderedDict()
        # Prompts of which a trajectory began within ``prompt_idle_s``; the longest ago first.
        self._busy: OrderedDict[PendingGroup, None] = OrderedDict()
        self.prompt_idle_us = round(min(config.prompt_idle_s, config.seal_timeout_s) * 1e6)
        self._capped = config.max_per_replica is not None
        self._seal_timeout_us = round(config.seal_timeout_s * 1e6)
        self._expire_after_us = round(config.expire_after_s * 1e6)

    def begin(self, key: PendingKey, size: int, entry: int, now_us: int) -> PendingGroup:
        """A new group, under a key that no pending one has."""
        group = self.by_key[key] = self._fresh[key] = PendingGroup(key, size, entry, now_us)
        return group

    def begin_trajectory(self, prompt: PendingGroup, now_us: int) -> None:
        """A trajectory of the prompt began."""
        prompt.begun_us = now_us
        self._busy[prompt] = None
        self._busy.move_to_end(prompt)

    def next_idle(self, now_us: int) -> PendingGroup | None:
        """A prompt of which no trajectory began for ``prompt_idle_s``; once, until one begins."""
        prompt = next(iter(self._busy), None)
        if prompt is None or prompt.begun_us + self.prompt_idle_us > now_us:
            return None
        del self._busy[prompt]
        return prompt

    def remove(self, group: PendingGroup) -> None:
        """The group is decided; what becomes of its trajectories is for the caller to do."""
        del self.by_key[group.key]
        if group.is_prompt:
            del self.prompts[group.key[0]]
            self._busy.pop(group, None)
        if group.dispatched:
            self.unnamed.pop(group, None)
        if not group.overdue:
            del self._fresh[group.key]
        self.entries -= group.entries

    def oldest(self) -> PendingGroup | None:
        """The group that began first; None without any."""
        return next(iter(self.by_key.values()), None)

    def oldest_ts(self) -> int | None:
        """Log time of its first record; None without any. Any thread may call it."""
        while True:
            try:
                group = self.oldest()
            except RuntimeError:  # Another group came, or ended, just now.
                continue
            return None if group is None else group.first_ts

    def due_us(self) -> int | None:
        """Log time from which a time-out may be due; None without any group or trajectory."""
        group = self.oldest()
        if group is None:
            return None
        chain = next(iter(self.chains.values()), None)
        oldest_ts = group.first_ts if chain is None else min(group.first_ts, chain.first_ts)
        due_us = oldest_ts + self._seal_timeout_us
        prompt = next(iter(self._busy), None)
        return due_us if prompt is None else min(due_us, prompt.begun_us + self.prompt_idle_us)

    def next_timed_out(self, now_us: int) -> PendingGroup | None:
        """A group whose seal time-out has passed; it counts as overdue from now on."""
        group = next(iter(self._fresh.values()), None)
        if group is None or group.first_ts + self._seal_timeout_us > now_us:
            return None
        del self._fresh[group.key]
        group.overdue = True
        return group

    def chain_of(self, uid: str) -> Chain | None:
        """The trajectory that has, or waits for, a rollout of this uid; None: none that is open."""
        return self.chains.get(uid) or self._named.get(uid)

    def ended_chain(self, end: PendingEntry) -> Chain | None:
        """The open trajectory that an entry says has ended, by whichever of its names."""
        group_uid, own = end.value("group_uid"), end.step_uids()
        found = self.chain_of(own.rollout_uid)
        if group_uid and (found is None or found.group.key[0] != group_uid):
            other = self.chain_of(own.trajectory_uid or own.digest(group_uid))
            found = other if other and other.group.key[0] == group_uid else found
        return found

    def name_chain(self, chain: Chain, *uids: str) -> None:
        """Rollouts of these uids are of the trajectory."""
        for uid in uids:
            if uid != chain.uid and uid not in self._named:
                self._named[uid] = chain
                chain.names.append(uid)

    def trajectory(self, uid: str, prior: str) -> Chain | None:
        """The trajectory of a segment of the rollout ``uid`` that continues the rollout ``prior``,
        empty: none. Where there is one of each, they are one from now on."""
        chain = self.chain_of(uid)
        if prior in ("", uid):
            return chain
        other = self.chain_of(prior)
        if chain is None or other is None or other is chain:
            return other or chain
        older, newer = sorted((chain, other), key=lambda one: one.first_entry)
        group = newer.group
        self.remove_chain(newer)
        group.entries -= newer.entries
        older.group.entries += newer.entries
        if self._capped:
            group.replicas[newer.replica_id] -= 1
        older.join(newer)
        self.name_chain(older, newer.uid, *newer.names)
        if group.entries == 0:
            self.remove(group)
        return older

    def remove_chain(self, chain: Chain) -> None:
        """The trajectory is complete or settled; what it holds stays counted in its group."""
        self._forget(chain)
        del chain.group.chains[chain.uid]

    def note_waiting(self, chain: Chain, now_us: int) -> None:
        """Whether the open trajectory waits for a rollout that it continues may have changed."""
        if chain.waiting() is None:
            self._waiting.pop(chain, None)
        else:
            self._waiting.setdefault(chain, now_us)

    def waiting_since(self, until_us: int, named_max: int) -> tuple[int, list[Continuation]]:
        """How many trajectories wait for a rollout that they continue since ``until_us`` or for
        longer, and the first of them."""
        newer = sum(1 for _ in takewhile(until_us.__lt__, reversed(self._waiting.values())))
        count = len(self._waiting) - newer
        named = islice(self._waiting.items(), min(count, named_max))
        return count, [_continuation(chain, since_us) for chain, since_us in named]

    def _forget(self, chain: Chain) -> None:
        self._waiting.pop(chain, None)
        del self.chains[chain.uid]
        for uid in chain.names:
            del self._named[uid]

    def next_expired_chain(self, now_us: int, lag_limit: int) -> Chain | None:
        """Removes, with its entries, the oldest trajectory that is too old in the same way. A group
        that holds nothing else goes too."""
        chain = next(iter(self.chains.values()))
        if not self.too_old(chain, now_us, lag_limit):
            return None
        group = chain.group
        self.remove_chain(chain)
        group.entries -= chain.entries
        self.entries -= chain.entries
        if self._capped:
            group.replicas[chain.replica_id] -= 1
        if group.entries == 0:
            self.remove(group)
        return chain

    def move_chains(self, decided: PendingGroup, rest: PendingGroup) -> None:
        """Trajectories that were open when their group was decided go on in a new one."""
        for uid, chain in decided.chains.items():
            chain.group = rest
            rest.chains[uid] = chain
            rest.entries += chain.entries
            rest.uids.update(decided.uids_of(uid))
            if self._capped:
                rest.replicas[chain.replica_id] = rest.replicas.get(chain.replica_id, 0) + 1
            for row in chain.rows():
                agrees = rest.agrees(row)
                assert agrees, "they agreed in the group that they come from"
                split = row.value("split")
                if split != "train":
                    rest.split = split
        self.entries += rest.entries

    def too_old(self, of: PendingGroup | Chain, now_us: int, lag_limit: int) -> bool:
        """Whether it waited for longer than it may, or began before the entry ``lag_limit``."""
        return of.first_entry < lag_limit or of.first_ts + self._expire_after_us <= now_us


def _continuation(chain: Chain, since_us: int) -> Continuation:
    segment = chain.waiting()
    assert segment is not None, f"{chain.uid} waits for nothing"
    group_uid, example_id, *_ = chain.group.key
    prior = segment.value("continuation_of")
    return Continuation(segment.uid, segment.segment_idx, prior, example_id, group_uid, since_us)
