"""What is over the limits of a partition, while its files are retired one after the other. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple, Self

NOTHING_SEALED_US = -1  # Before any log time.


class RetentionLimits(NamedTuple):
    """What is kept; None: no limit. The fields are those of a request.

    Attributes:
        older_than_us: of log time, since the groups were sealed.
        keep_groups: of the environment.
        keep_groups_per_policy: of each policy version of the environment.
    """

    older_than_us: int | None = None
    keep_groups: int | None = None
    keep_groups_per_policy: int | None = None

    def of_partition(self, partitions: int) -> RetentionLimits:
        """The same for one of so many partitions: an equal share of each cap, rounded up, since
        owners do not know one another's files."""
        caps = (None if cap is None else -(-cap // partitions) for cap in self[1:])
        return RetentionLimits(self.older_than_us, *caps)


@dataclass(slots=True)
class OverLimits:
    """What is over the limits of a partition. Each file that is retired leaves less.

    Attributes:
        sealed_until_us: groups that were sealed later are not too old; log time in microseconds.
        groups: how many are over the cap; 0 or less: none.
        of_policies: the same, by policy version; of those that are over it.
    """

    sealed_until_us: int = NOTHING_SEALED_US
    groups: int = 0
    of_policies: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, limits: RetentionLimits, now_us: int, counts: Counter[str]) -> Self:
        """What is over the limits of a partition at this log time, by the groups that it has of
        each policy version."""
        age, cap, cap_per_policy = limits
        over = {} if cap_per_policy is None else {v: n - cap_per_policy for v, n in counts.items()}
        return cls(
            NOTHING_SEALED_US if age is None else now_us - age,
            0 if cap is None else counts.total() - cap,
            {version: groups for version, groups in over.items() if groups > 0},
        )

    def end_at(self, sealed_ts: int) -> bool:
        """Whether nothing that was sealed then or later is over a limit."""
        return sealed_ts > self.sealed_until_us and self.groups <= 0 and not self.of_policies

    def has(self, sealed_ts: int, version: str) -> bool:
        """Whether the groups of this policy version that were sealed then are over a limit."""
        return sealed_ts <= self.sealed_until_us or self.groups > 0 or version in self.of_policies

    def retire(self, version: str, groups: int) -> None:
        """A file with so many groups of this policy version is retired."""
        self.groups -= groups
        left = self.of_policies.pop(version, 0) - groups
        if left > 0:
            self.of_policies[version] = left
