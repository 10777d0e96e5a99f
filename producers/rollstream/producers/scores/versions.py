"""Reads a log of scores, so that who scores learns which version a score became."""

from __future__ import annotations

from collections.abc import Mapping

from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Scored
from rollstream.schemas.scoring import NewestVersions, repeats, says_same, version_of
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.owned.follow import READ_RECORDS_MAX, READ_SLICE_S, Follower, PutAside


class LoggedVersions:
    """The versions of an environment's scores, as far as they were read: from the beginning of its
    logs, once. Keeps the newest score of each rollout and scorer, about 0.5 KB."""

    def __init__(self, broker: Broker, topic: str, partitions: int) -> None:
        logs = [TopicPartition(topic, number) for number in range(partitions)]
        self._newest = [NewestVersions() for _ in logs]
        self._aside: dict[TopicPartition, PutAside] = {}
        self._follower = Follower(broker, dict.fromkeys(logs, 0), logs, aside=self._aside)

    def lost(
        self, where: TopicPartition, offset: int, deadline: Deadline
    ) -> Mapping[str, int] | None:
        """Reads up to the record of scores at this offset, which no call has named before. Returns
        the rollouts for which it does not count, with their newest version before it: another one
        than it expects, or that one, of the same attempt and with another score. None: it was not
        read in time; go on with another record.

        Raises:
            NewerEvent: a newer version wrote a record before it, which may be a score. Others as
                ``Follower.poll``.
        """
        found: Mapping[str, int] = {}
        while self._follower.next_offsets()[where] <= offset:
            if deadline.passed():
                return None
            if where in self._aside:
                raise self._aside[where].error
            deadline.log_waiting(lambda: f"{where} to be read up to offset {offset}")
            for one in self._follower.poll(READ_RECORDS_MAX, deadline.slice_s(READ_SLICE_S)):
                assert isinstance(one.event, Scored), one
                newest = self._newest[one.where.partition]
                if (one.where, one.offset) == (where, offset):
                    found = _lost(newest, one.event)
                for score in one.event.scores:
                    newest.add(one.event, score)
        return found

    def close(self) -> None:
        """Idempotent."""
        self._follower.close()


def _lost(newest: NewestVersions, event: Scored) -> Mapping[str, int]:
    expected, found = event.expect_version, {}
    assert expected is not None, event
    for score in event.scores:
        before = newest.of(event.group_id, event.scorer, score.rollout_uid)
        version, again = version_of(before), repeats(before, event, score)
        if version == expected:
            lost = again and before is not None and not says_same(before, score)
        else:
            # Else a call whose answer was lost has said it already, as the version after.
            lost = not (again and version == expected + 1)
        if lost:
            found[score.rollout_uid] = version
    return found
