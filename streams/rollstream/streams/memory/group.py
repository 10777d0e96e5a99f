"""A consumer group in memory: cooperative, sticky, deterministic."""

from __future__ import annotations

from collections.abc import Mapping

from rollstream.streams.broker import Committed, GroupMembers, TopicPartition


class MemoryGroup:
    """Who holds which partition, who shall hold it, and what was committed.

    A partition passes to its next holder only after the former one gave it up in its own poll, or
    was evicted. Not locked: callers hold the lock of ``MemoryLogs``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.commits: dict[TopicPartition, Committed] = {}
        self._members: dict[int, tuple[str, ...]] = {}
        self._holders: dict[TopicPartition, int] = {}
        self._targets: dict[TopicPartition, int] = {}
        self._next_member = 0

    def join(self, topics: tuple[str, ...], counts: Mapping[str, int]) -> int:
        """Adds a member; returns its number."""
        member = self._next_member
        self._next_member += 1
        self._members[member] = topics
        self.balance(counts)
        return member

    def leave(self, member: int, counts: Mapping[str, int]) -> None:
        """Removes the member; what it held is free at once."""
        if self._members.pop(member, None) is None:
            return
        self._holders = {tp: held for tp, held in self._holders.items() if held != member}
        self.balance(counts)

    def describe(self) -> GroupMembers:
        """Who is in it, and which partition each has."""
        owners = {tp: f"{self.name}-{member}" for tp, member in self._holders.items()}
        settled = all(self._holders.get(tp) == member for tp, member in self._targets.items())
        return GroupMembers(owners, len(self._members), settled)

    def knows(self, member: int | None) -> bool:
        return member in self._members

    def holds(self, member: int | None, where: TopicPartition) -> bool:
        return self.knows(member) and self._holders.get(where) == member

    def meant_for(self, member: int | None) -> list[TopicPartition]:
        """The partitions that the member shall hold, sorted."""
        return sorted(tp for tp, target in self._targets.items() if target == member)

    def give_up(self, member: int, where: TopicPartition) -> None:
        if self.holds(member, where):
            del self._holders[where]

    def take(self, member: int) -> list[TopicPartition]:
        """Gives the member the free partitions that are meant for it; returns them."""
        taken = [tp for tp in self.meant_for(member) if tp not in self._holders]
        self._holders.update(dict.fromkeys(taken, member))
        return taken

    def balance(self, counts: Mapping[str, int]) -> None:
        """Spreads each topic's partitions; a member keeps what it has as far as shares allow."""
        self._targets = {
            tp: member
            for topic in sorted({topic for topics in self._members.values() for topic in topics})
            for tp, member in self._spread(topic, counts.get(topic, 0)).items()
        }

    def _spread(self, topic: str, partitions: int) -> dict[TopicPartition, int]:
        members = [member for member, topics in self._members.items() if topic in topics]
        all_partitions = [TopicPartition(topic, number) for number in range(partitions)]
        held = {
            member: [tp for tp in all_partitions if self._targets.get(tp) == member]
            for member in members
        }
        # Whoever has most keeps the bigger shares, so that nothing moves without need.
        by_size = sorted(members, key=lambda member: (-len(held[member]), member))
        share, bigger = divmod(partitions, len(members))
        shares = {member: share + (index < bigger) for index, member in enumerate(by_size)}
        spread = {tp: member for member in members for tp in held[member][: shares[member]]}
        free = [tp for tp in all_partitions if tp not in spread]
        for member in by_size:
            missing = shares[member] - min(len(held[member]), shares[member])
            spread.update(dict.fromkeys(free[:missing], member))
            del free[:missing]
        return spread
