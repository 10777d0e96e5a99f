"""How often something became of the groups of each example. Pure."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise
from operator import itemgetter
from typing import Any, NamedTuple, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from rollstream.folds.group.known import Key

PARTS = 1_024  # Of an environment: so many examples at most are packed anew while a decision waits.
RECENT_MAX = 32  # Examples of a part that are not packed, and an eighth of those that are.
_COUNT_BITS = 32
_COUNT_MAX = (1 << _COUNT_BITS) - 1
_Counts = dict[str, int]  # By example, those of all kinds in one integer.
_hash = xxhash.xxh3_64_intdigest


class _Packed(NamedTuple):
    """Examples with their counts.

    Attributes:
        names: of all, in UTF-8, without anything between.
        lengths: of each name.
        of: of each example the index of its counts.
        counts: the distinct ones.
    """

    names: bytes
    lengths: array[int]
    of: array[int]
    counts: tuple[int, ...]

    @classmethod
    def pack(cls, counts: _Counts) -> Self:
        names = [name.encode() for name in counts]
        distinct = {count: index for index, count in enumerate(dict.fromkeys(counts.values()))}
        of = array("I", map(distinct.__getitem__, counts.values()))
        return cls(b"".join(names), array("I", map(len, names)), of, tuple(distinct))

    def with_others(self, counts: _Counts) -> Self:
        """With these besides, of which it has none."""
        more, numbers = self.pack(counts), {count: at for at, count in enumerate(self.counts)}
        renumbered = [numbers.setdefault(count, len(numbers)) for count in more.counts]
        of = self.of + array("I", map(renumbered.__getitem__, more.of))
        names, lengths = self.names + more.names, self.lengths + more.lengths
        return type(self)(names, lengths, of, tuple(numbers))

    def unpack(self) -> _Counts:
        bounds = pairwise(accumulate(self.lengths, initial=0))
        names = [self.names[start:end].decode() for start, end in bounds]
        return dict(zip(names, map(self.counts.__getitem__, self.of), strict=True))


_EMPTY = _Packed.pack({})


class _Examples:
    """Of an environment, by part. A copy shares with its original what neither changed since."""

    _hashes: dict[int, NDArray[np.uint64]] | None = None  # Of packed names, once it packs more.

    def __init__(self) -> None:
        self._packed: dict[int, _Packed] = {}
        self._recent: dict[int, _Counts] = {}  # What comes on top of those that are packed.
        self._own = set[int]()  # Whose recent ones are shared with no copy.

    def __copy__(self) -> _Examples:
        copy = _Examples()
        copy._packed, copy._recent = self._packed.copy(), self._recent.copy()
        self._own.clear()
        return copy

    def __getstate__(self) -> dict[str, Any]:
        """For a snapshot: without what is made again from the rest."""
        return {name: value for name, value in vars(self).items() if name != "_hashes"}

    def add(self, name: str, count: int) -> None:
        at = _hash(name.encode()) % PARTS
        if at not in self._own:
            self._own.add(at)
            self._recent[at] = dict(self._recent.get(at, ()))
        recent = self._recent[at]
        recent[name] = recent.get(name, 0) + count
        if len(recent) > RECENT_MAX:
            packed = self._packed.get(at, _EMPTY)
            if len(recent) > RECENT_MAX + len(packed.of) // 8:
                self._packed[at] = self._pack(at, packed, recent)
                self._recent[at] = {}

    def _pack(self, at: int, packed: _Packed, recent: _Counts) -> _Packed:
        """The packed examples of a part with the recent ones; new ones cost no look at the others,
        as long as none of them has come before."""
        if self._hashes is None:
            self._hashes = {}
        known, new = self._hashes.get(at), _hashed(recent)
        if known is None:
            known = _hashed(packed.unpack())
        every = np.sort(np.concatenate((known, new)))
        if (every[1:] == every[:-1]).any():
            self._hashes[at] = np.unique(every)
            return _Packed.pack(_added(packed, recent))
        self._hashes[at] = every
        return packed.with_others(recent)

    def parts(self) -> Iterator[_Counts]:
        for at, recent in self._recent.items():  # Each part has some, or had.
            yield _added(self._packed.get(at, _EMPTY), recent)


def _hashed(counts: _Counts) -> NDArray[np.uint64]:
    return np.fromiter((_hash(name.encode()) for name in counts), np.uint64, len(counts))


def _added(packed: _Packed, recent: _Counts) -> _Counts:
    counts = packed.unpack()
    for name, count in recent.items():
        counts[name] = counts.get(name, 0) + count
    return counts


class ExampleCounts:
    """Counts by kind and key, such as groups by outcome; they may become known in any order.

    An example takes about 35 bytes besides its name where an environment has many of them, and 120
    where it has less than 30,000. A copy takes the time of the environments, not of the examples.

    Args:
        kinds: known ones, the most frequent first; others are added as they come.
    """

    def __init__(self, kinds: Sequence[str] = ()) -> None:
        self._by_example = True
        self._kinds = {kind: _COUNT_BITS * place for place, kind in enumerate(kinds)}
        self._environments: dict[str, _Examples] = {}
        self._totals = Counter[str]()

    def __copy__(self) -> ExampleCounts:
        copy = ExampleCounts()
        copy._by_example, copy._kinds = self._by_example, self._kinds.copy()
        copy._environments = {name: of.__copy__() for name, of in self._environments.items()}
        copy._totals = self._totals.copy()
        return copy

    def count_as_one(self) -> None:
        """From now on, and what was counted: all examples of an environment are one, ""."""
        self._by_example = False
        before, self._environments = self._environments, {}
        for environment, examples in before.items():
            for part in examples.parts():
                self._of(environment).add("", sum(part.values()))

    def add(self, kind: str, key: Key, count: int = 1) -> None:
        """So many more of ``key`` became this."""
        name = key.example_id if self._by_example else ""
        self._of(key.environment).add(name, count << self._shift(kind))
        self._totals[kind] += count

    def add_all(self, environment: str, ended: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        """``add`` for examples of one environment, each with the kinds of one of its groups."""
        if not ended:
            return
        examples = self._of(environment)
        distinct = dict.fromkeys(map(itemgetter(1), ended))  # Most have the same.
        counts = {kinds: sum(1 << self._shift(kind) for kind in kinds) for kinds in distinct}
        for named, kinds in ended:
            examples.add(named if self._by_example else "", counts[kinds])
        self._totals.update(chain.from_iterable(map(itemgetter(1), ended)))

    def by_kind(self) -> dict[str, dict[str, dict[str, int]]]:
        """Kind to environment to example id to how many, of those that have any. It costs less than
        a microsecond an example."""
        found: dict[str, dict[str, dict[str, int]]] = {}
        for environment, examples in self._environments.items():
            unpacked: dict[int, list[tuple[dict[str, int], int]]] = {}
            for part in examples.parts():
                for name, packed in part.items():
                    if packed not in unpacked:
                        unpacked[packed] = [
                            (found.setdefault(kind, {}).setdefault(environment, {}), count)
                            for kind, count in self._unpacked(packed).items()
                        ]
                    for of_kind, count in unpacked[packed]:
                        of_kind[name] = count
        return found

    def totals(self) -> dict[str, int]:
        """How many by kind."""
        return dict(sorted(self._totals.items()))

    def sorted_items(self) -> list[tuple[str, list[tuple[str, dict[str, int]]]]]:
        """For a digest."""
        found = []
        for environment, examples in sorted(self._environments.items()):
            counts = chain.from_iterable(part.items() for part in examples.parts())
            found.append((environment, [(name, self._unpacked(n)) for name, n in sorted(counts)]))
        return found

    def _of(self, environment: str) -> _Examples:
        examples = self._environments.get(environment)
        if examples is None:
            examples = self._environments[environment] = _Examples()
        return examples

    def _shift(self, kind: str) -> int:
        shift = self._kinds.get(kind)
        if shift is None:
            shift = self._kinds[kind] = _COUNT_BITS * len(self._kinds)
        return shift

    def _unpacked(self, counts: int) -> dict[str, int]:
        """By kind, those that are not 0, sorted."""
        found = ((kind, counts >> shift & _COUNT_MAX) for kind, shift in self._kinds.items())
        return {kind: count for kind, count in sorted(found) if count}
