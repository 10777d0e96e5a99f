"""One environment under one sealer: its consumer group, and the partitions that are assigned."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from rollstream.consumers.sealing.partition import Partition, SealerContext
from rollstream.consumers.sealing.stats import PartitionStats
from rollstream.streams.broker import GroupReader, Record, TopicPartition
from rollstream.streams.errors import BrokerUnavailable, CorruptLog, OffsetLost

POLL_RECORDS_MAX = 1_000
ASK_EVERY_S = 1.0  # How often the group is asked about a partition that was let go.
_log = logging.getLogger("rollstream.sealer")


class EnvironmentSealer:
    """Reads one consumer group and hands its partitions their records.

    Adoption runs outside the rebalance callback: there a partition is only noted.
    """

    def __init__(
        self, make_reader: Callable[[Callable[[TopicPartition], None]], GroupReader]
    ) -> None:
        self.reader = make_reader(self._on_revoked)
        self._context: SealerContext | None = None
        self._partitions: dict[TopicPartition, Partition] = {}
        self._ask_at_s: dict[TopicPartition, float] = {}

    def open(self, context: SealerContext) -> None:
        """Once, before the first step."""
        self._context = context

    def step(self, timeout_s: float) -> int:
        """Reads once, then lets every partition go on; how many records were read."""
        count = 0
        try:
            records = self.reader.poll(POLL_RECORDS_MAX, timeout_s)
        except OffsetLost as error:
            self._unless_away(partial(self._find_losses, error))
        except BrokerUnavailable as error:
            _log.warning("%s: %s", self._open_context.environment, error)
        else:
            count = len(records)
            self._hand_out(records)
        self._unless_away(self._adopt)
        self.turn()
        return count

    def turn(self, *, draining: bool = False) -> None:
        """Lets every partition go on; reads nothing."""
        for where, partition in list(self._partitions.items()):
            partition.turn(draining=draining)
            if partition.relinquished:
                self.reader.pause(where)
                self._ask_at_s[where] = self._now_s() + ASK_EVERY_S
            if (partition.revoked or partition.relinquished) and not partition.busy():
                partition.release()
                del self._partitions[where]

    def force(self) -> None:
        """Seals every pending group that has enough members."""
        for partition in self._partitions.values():
            if partition.assembler is not None:
                partition.assembler.flush()

    def busy(self) -> bool:
        """Whether any job runs beside the loop."""
        return any(partition.busy() for partition in self._partitions.values())

    def drained(self) -> bool:
        """Whether everything that is decided is committed."""
        return all(partition.drained() for partition in self._partitions.values())

    def leave(self) -> None:
        """Commits offsets and leaves the group. No job may be running."""
        for partition in self._partitions.values():
            partition.commit_now()
            partition.release()
        self._partitions.clear()
        self.reader.close()

    def stats(self) -> list[PartitionStats]:
        return [partition.stats() for _, partition in sorted(self._partitions.items())]

    def _hand_out(self, records: Iterable[Record]) -> None:
        """Per partition all at once; within one they stay in order."""
        by_number: dict[int, list[Record]] = {}
        for record in records:
            listed = by_number.get(record.partition)
            if listed is None:
                listed = by_number[record.partition] = []
            listed.append(record)
        topic = self._open_context.layout.rollouts(self._open_context.environment)
        for number, listed in by_number.items():
            partition = self._partitions.get(TopicPartition(topic, number))
            if partition is not None and not partition.revoked:
                self._unless_away(partial(partition.take, listed))

    def _unless_away(self, ask: Callable[[], None]) -> None:
        """Where the broker does not answer, the next step asks again."""
        try:
            ask()
        except BrokerUnavailable as error:
            _log.warning("%s: %s", self._open_context.environment, error)

    def _adopt(self) -> None:
        for where in sorted(self.reader.assigned()):
            if where in self._partitions:
                continue
            ask_at_s = self._ask_at_s.get(where)
            if ask_at_s is not None:
                if self._now_s() < ask_at_s:
                    continue
                # It was let go, and the group did not take it away: does it think it is ours?
                if not self.reader.still_assigned(where, self._open_context.timeout_s):
                    self._ask_at_s[where] = self._now_s() + ASK_EVERY_S
                    continue
                del self._ask_at_s[where]
            self._partitions[where] = Partition(self._open_context, where.partition)

    def _on_revoked(self, where: TopicPartition) -> None:
        self._ask_at_s.pop(where, None)
        partition = self._partitions.get(where)
        if partition is not None:
            partition.revoked = True

    def _find_losses(self, error: OffsetLost) -> None:
        """Retention was faster than we: which partition, and up to where.

        Raises:
            CorruptLog: it was not retention. BrokerUnavailable.
        """
        found = False
        for where, partition in self._partitions.items():
            assembler = partition.assembler
            if assembler is None or partition.revoked:
                continue
            first, _ = self.reader.bounds(where, self._open_context.timeout_s)
            if assembler.position < first:
                partition.lost(first)
                found = True
        if not found:
            # Also where the log was written to again and holds that offset by now. The reader says
            # nothing of partitions that are revoked, so it is one of ours.
            raise CorruptLog(
                f"{error}, and retention did not take it: the log was cut back, so its offsets may "
                "name other records than those that were sealed. Restore it, or begin a new "
                "generation"
            ) from error

    def _now_s(self) -> float:
        return self._open_context.clock.monotonic_s()

    @property
    def _open_context(self) -> SealerContext:
        assert self._context is not None, "open first"
        return self._context
