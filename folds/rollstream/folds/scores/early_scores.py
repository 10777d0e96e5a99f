"""Scores that came before their group, as bytes. Pure.

Whether a score counts for a group is a function of the log times of the two alone: it is in time up
to ``waits_until``. So it may be forgotten once the seal logs were read up to then, and no state
depends on when that is done.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from rollstream.folds.group.score_targets import target_of
from rollstream.folds.group.scored import Given
from rollstream.folds.group.sorted_rows import SortedRows
from rollstream.schemas import codec
from rollstream.schemas.choosing import ServedEnvironment
from rollstream.schemas.events import Scored
from rollstream.schemas.ids import PartitionAddress

EARLY_MAX = 16_384  # Records of a partition that wait for their group, before it is read no more.
EARLY_BYTES_MAX = 8 * 1024 * 1024  # The same, of their bytes.
# A group's id is made when it is sealed, so its flush is in the log before any score of it; this is
# for brokers whose clocks differ.
GROUP_WAIT_US = 60_000_000
_HEAD = struct.Struct("<QQ")  # Target and log time.
_OFFSET_BITS = 48


class EarlyScores:
    """Records that found no group, by target; each has one.

    A record that names a rollout waits for its seal for as long as the configuration of the
    environment says (``ServedEnvironment.early_scores_s``). Scores of rollouts that are never
    sealed hold others up for as long, where there are very many.
    """

    def __init__(
        self, logs: Sequence[PartitionAddress], environments: Iterable[ServedEnvironment]
    ) -> None:
        self._logs = sorted(logs)
        self._waits_us = {one.name: round(one.early_scores_s * 1e6) for one in environments}
        self._places = SortedRows(2)  # (Target, place).
        # By number of the log, and whether the group is named: by place, rising.
        self._held: dict[tuple[int, bool], OrderedDict[int, bytes]] = {}
        self._bytes = Counter[int]()  # By number of the log.

    def __len__(self) -> int:
        return len(self._places)

    @property
    def waits_us(self) -> Mapping[str, int]:
        """How long a record that names a rollout waits, by environment."""
        return self._waits_us

    def waits_until(self, environment: str, given: Given) -> int:
        """Log time of the last flush whose groups the record is of."""
        named = bool(given.event.group_id)
        return given.logged_ts + (GROUP_WAIT_US if named else self._waits_us[environment])

    def is_full(self, log: PartitionAddress) -> bool:
        """Whether no more of this log is to be read until some of it was released or taken."""
        number = self._logs.index(log)
        count = sum(len(self._held.get((number, named), ())) for named in (False, True))
        return count >= EARLY_MAX or self._bytes[number] >= EARLY_BYTES_MAX

    def keep(self, log: PartitionAddress, offset: int, given: Given) -> None:
        """The record waits, by rising offset."""
        number = self._logs.index(log)
        place = number << _OFFSET_BITS | offset
        target = target_of(log.environment, given.event)
        data = _HEAD.pack(target, given.logged_ts) + codec.encode(given.event)
        self._places.add(target, place)
        held = self._held.setdefault((number, bool(given.event.group_id)), OrderedDict())
        held[place] = data
        self._bytes[number] += len(data)

    def of(self, target: int) -> list[tuple[int, Given]]:
        """The records of this target, each with what orders it."""
        found = []
        for place in self._places.lasts(target):
            data = self._having(place)[place]
            event = codec.decode_as(Scored, data[_HEAD.size :])
            found.append((place, Given(event, _HEAD.unpack_from(data)[1])))
        return found

    def take(self, target: int) -> list[tuple[int, Given]]:
        """The same, which wait no more."""
        found = self.of(target)
        for place, _ in found:
            self._bytes[place >> _OFFSET_BITS] -= len(self._having(place).pop(place))
            self._places.remove(target, place)
        return found

    def least_until(self, environment: str) -> int | None:
        """The log time up to which the first one waits that ends to; None without any."""
        firsts = [self._until(key) for key in self._of(environment)]
        return min(firsts, default=None)

    def release(self, environment: str, passed_ts: int) -> int:
        """Forgets those that waited up to before ``passed_ts``; returns how many."""
        released = 0
        for key in self._of(environment):
            while (held := self._held[key]) and self._until(key) < passed_ts:
                place, data = held.popitem(last=False)
                self._bytes[key[0]] -= len(data)
                self._places.remove(_HEAD.unpack_from(data)[0], place)
                released += 1
        return released

    def _of(self, environment: str) -> list[tuple[int, bool]]:
        """The keys with records of the environment."""
        held = self._held.items()
        return [key for key, of in held if of and self._logs[key[0]].environment == environment]

    def _until(self, key: tuple[int, bool]) -> int:
        """Up to when the oldest waits."""
        logged_ts: int = _HEAD.unpack_from(next(iter(self._held[key].values())))[1]
        number, named = key
        environment = self._logs[number].environment
        return logged_ts + (GROUP_WAIT_US if named else self._waits_us[environment])

    def _having(self, place: int) -> OrderedDict[int, bytes]:
        both = [self._held.get((place >> _OFFSET_BITS, named)) for named in (False, True)]
        return next(held for held in both if held is not None and place in held)
