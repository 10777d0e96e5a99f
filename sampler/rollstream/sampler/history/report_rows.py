"""What became of rollouts, as counters: by environment, length, lag and step. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from rollstream.folds.group.failure_reasons import count_reason

Kind = Literal[
    "trained",
    "unknown",
    "kept",
    "served",
    "waiting",
    "eval",
    "dropped",
    "unsealed",
    "unfinished",
]
_WITH_REASON = ("dropped", "unsealed", "unfinished")
Bounds = tuple[int, int]
Row = TypeVar("Row")
BELOW_ZERO = -1  # The bucket of a lag from the future of a rewound trainer.
ROWS_MAX = 12  # Of steps, where nobody says how many steps a row has.
FAILED_REASONS_MAX = 256  # Of an environment; what others say is counted under "".
CARRY_LOST_MAX = 256  # The newest: where more files are lost, it is the store that fails.


class Outcome(NamedTuple):
    """What became of a rollout; ``reason`` of those dropped, not sealed or not finished."""

    kind: Kind
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
    """Rollouts by what became of them.

    Attributes:
        trained: in a batch that was acked as trained on, or is final and was not acked otherwise;
            of a shaped batch by the ack's outcomes alone.
        unknown: in a final shaped batch whose ack did not say what became of its rollouts.
        kept: for a later step, by what shapes batches.
        served: in an open batch that is not acked.
        waiting: sealed, and neither served nor dropped.
        eval: never served for training.
        dropped: by reason: a ``DropReason``, what another group took the place of (``filtered``,
            as are rollouts that what shapes a batch left out; ``unreadable``), ``left_out``
            (too old, its group was served without it), ``failed`` and ``skipped`` (by the ack),
            ``retired``, ``stale`` also of those that a step kept, ``not_carried`` (kept, and the
            next step did not carry it), ``unused`` (kept by the last step of a finished run).
        unsealed: rollouts that were settled before sealing, by ``SettleReason``. Their length and
            lag are not known. Reported failures are in ``SamplerReport.failures`` instead.
        unfinished: members of sealed groups that did not end by themselves: ``failed`` (it never
            came), ``aborted``, ``truncated``. The last two are rollouts like any other, and so are
            counted above, too.
    """

    trained: int = 0
    unknown: int = 0
    kept: int = 0
    served: int = 0
    waiting: int = 0
    eval: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    unsealed: Mapping[str, int] = field(default_factory=dict)
    unfinished: Mapping[str, int] = field(default_factory=dict)

    @property
    def dropped_share(self) -> float | None:
        """Of those whose end is known: dropped / (trained + dropped); None: there are none."""
        dropped = sum(self.dropped.values())
        return dropped / (self.trained + dropped) if self.trained + dropped else None

    @classmethod
    def of(cls, counts: Mapping[Outcome, int]) -> ReportRow:
        """The row with these counts."""
        row: dict[str, Any] = {kind: {} for kind in _WITH_REASON}
        for (kind, reason), count in sorted(counts.items()):
            if kind in _WITH_REASON:
                row[kind][reason] = count
            else:
                row[kind] = count
        return cls(**row)


class Cell(NamedTuple):
    """What a rollout is counted by.

    Attributes:
        step: that it was trained or dropped in; else the one that was next when it was sealed.
        length: ``bucket_of`` its output tokens; None: not known.
        lag: ``bucket_of`` the steps between its oldest weights and those that were updated when it
            was trained or dropped, or now; ``BELOW_ZERO``; None: not known.
    """

    environment: str
    step: int
    length: int | None
    lag: int | None
    outcome: Outcome


def bucket_of(number: int) -> int:
    """The bucket of a number, by powers of two: 0, 1, 2 to 3, 4 to 7, and so on."""
    return number.bit_length() if number >= 0 else BELOW_ZERO


def bounds_of(bucket: int) -> Bounds:
    """The first and the last number of a bucket that is not ``BELOW_ZERO``."""
    return (1 << bucket >> 1, (1 << bucket) - 1)


class ReportCounters:
    """Counters of rollouts, whatever their number; as many as there are steps, and buckets.

    Args:
        first: the first step that is counted.
        stop: the first one after it that is not; None: all are.
        environment: that is counted alone; None: all are.

    Attributes:
        carry_lost: by group id, why; the newest last.
        ready: by step.
    """

    def __init__(
        self, *, first: int = 0, stop: int | None = None, environment: str | None = None
    ) -> None:
        self._first, self._stop, self._environment = first, stop, environment
        self._by_environment = defaultdict[str, Counter[Outcome]](Counter)
        self._by_length = defaultdict[int | None, Counter[Outcome]](Counter)
        self._by_lag = defaultdict[int | None, Counter[Outcome]](Counter)
        self._by_step = defaultdict[int, Counter[Outcome]](Counter)
        self._failures: dict[str, Counter[str]] = {}
        self.carry_lost: dict[str, str] = {}
        self.ready: dict[int, int] = {}

    def add(self, cell: Cell, count: int = 1) -> None:
        """So many more rollouts."""
        environment, step, length, lag, outcome = cell
        if self._covers(environment, step):
            self._by_environment[environment][outcome] += count
            self._by_length[length][outcome] += count
            self._by_lag[lag][outcome] += count
            self._by_step[step][outcome] += count

    def add_failures(self, environment: str, step: int, reason: str, members: int) -> None:
        """So many more members failed, as their producer said when this was the next step."""
        if self._covers(environment, step):
            reasons = self._failures.setdefault(environment, Counter())
            count_reason(reasons, reason, members, FAILED_REASONS_MAX)

    def add_carry_lost(self, step: int, lost: Mapping[str, str]) -> None:
        """The step would have carried these groups; a step that is decided again may have the
        same."""
        if self._within(step):
            for group_id, why in lost.items():
                self.carry_lost.pop(group_id, None)
                self.carry_lost[group_id] = why
            for group_id in list(self.carry_lost)[:-CARRY_LOST_MAX]:
                del self.carry_lost[group_id]

    def add_ready(self, step: int, groups: int) -> None:
        """So many groups were left when the step was decided; a later decision of it counts."""
        if self._within(step):
            self.ready[step] = groups

    def failures(self) -> dict[str, dict[str, int]]:
        """By environment, then reason, the most first."""
        return {name: dict(found.most_common()) for name, found in sorted(self._failures.items())}

    def totals(self) -> ReportRow:
        """Of all of them."""
        return ReportRow.of(sum(self._by_environment.values(), Counter[Outcome]()))

    def by_environment(self) -> dict[str, ReportRow]:
        """By name."""
        return _rows(sorted(self._by_environment.items()))

    def by_length(self) -> dict[Bounds | None, ReportRow]:
        """By output tokens, the first and the last number of each row; None, not known, last."""
        return _rows(_bounded(self._by_length))

    def by_lag(self) -> dict[Bounds | None, ReportRow]:
        """By steps, likewise; of those from the future of a rewound trainer (-1, -1)."""
        return _rows(_bounded(self._by_lag))

    def by_steps(self, steps: int | None) -> dict[Bounds, ReportRow]:
        """By the first and the last step of each row, which has so many steps; None: so many of
        1, 2, 5, 10, … that there are at most ``ROWS_MAX`` rows."""
        if not self._by_step:
            return {}
        low, high = min(self._by_step), max(self._by_step)
        size = steps or _size_of(high - low + 1)
        rows: dict[Bounds, Counter[Outcome]] = {}
        for step, counts in sorted(self._by_step.items()):
            first = low + (step - low) // size * size
            rows.setdefault((first, first + size - 1), Counter()).update(counts)
        return _rows(rows.items())

    def _covers(self, environment: str, step: int) -> bool:
        """Whether it is counted."""
        return self._within(step) and self._environment in (None, environment)

    def _within(self, step: int) -> bool:
        return step >= self._first and (self._stop is None or step < self._stop)


def _rows(counted: Iterable[tuple[Row, Counter[Outcome]]]) -> dict[Row, ReportRow]:
    return {row: ReportRow.of(counts) for row, counts in counted}


def _bounded(
    counted: Mapping[int | None, Counter[Outcome]],
) -> Iterable[tuple[Bounds | None, Counter[Outcome]]]:
    known = sorted((bucket, counts) for bucket, counts in counted.items() if bucket is not None)
    for bucket, counts in known:
        yield (BELOW_ZERO, BELOW_ZERO) if bucket == BELOW_ZERO else bounds_of(bucket), counts
    if None in counted:
        yield None, counted[None]


def _size_of(steps: int) -> int:
    """How many steps a row has, of so many."""
    scale = 1
    while True:
        for size in (scale, 2 * scale, 5 * scale):
            if -(-steps // size) <= ROWS_MAX:
                return size
        scale *= 10
