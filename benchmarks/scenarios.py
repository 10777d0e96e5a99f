"""The scenarios: what is sent, by how many producers, how fast, and what the trainer asks for.

``256`` to ``lognormal``: response tokens a rollout, as fast as the system takes them. ``wide`` and
``wide-unread``: router arrays with each token. ``workers`` and ``groups``: many slow producers.
``admission``: groups in ``dispatch`` blocks, as fast as the system takes them. ``latency``: one
rollout at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

GROUP_SIZE = 8
GROUPS_PER_BATCH = 64
EXPERTS = "routed_experts"  # The name of the router arrays.


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One row of the report for each system.

    Attributes:
        length: response tokens a rollout: a number, or ``lognormal`` (mean 1024, at most 8192).
        experts: layers and chosen experts of a uint8 router array for each response token.
        columns: the named arrays that the trainer asks for.
        shapes: rollout n has the length and the tokens of shape n modulo this.
        processes: env replicas' processes.
        producers: how many a process has; they take turns.
        group_size: rollouts a group.
        groups_shuffled: members of a group are sent at random among those of this many.
        sent_twice: share of rollouts that are sent twice.
        in_groups: whether a producer sends a group at once, in a ``dispatch`` block.
        per_s: rollouts a second of all processes together; None: as fast as the system takes them.
        groups_per_batch: groups that the trainer asks for at a time.
        ahead_max: most rollouts that were sent and not yet taken. One: each rollout is sent once
            the trainer has the one before and waits, and the time between is measured.
        flush_interval_s: of Rollstream's sealers; None: the default.
        measure_s: seconds of measurement.
        systems: the systems that are measured with it.
    """

    name: str
    length: str = "1024"
    experts: tuple[int, int] | None = None
    columns: tuple[str, ...] = ()
    shapes: int = 1024
    processes: int = 4
    producers: int = 1
    group_size: int = GROUP_SIZE
    groups_shuffled: int = 32
    sent_twice: float = 0.01
    in_groups: bool = False
    per_s: float | None = None
    groups_per_batch: int = GROUPS_PER_BATCH
    ahead_max: int = 4096
    flush_interval_s: float | None = None
    measure_s: float = 6.0
    systems: tuple[str, ...] = ("raw", "rollstream", "ray", "redis")

    @property
    def block(self) -> int:
        """Rollouts that are shuffled together."""
        return self.group_size * self.groups_shuffled

    @property
    def rollouts_per_batch(self) -> int:
        return self.group_size * self.groups_per_batch

    @property
    def one_at_a_time(self) -> bool:
        return self.ahead_max == 1


_ON_KAFKA = ("raw", "rollstream")


def _wide(name: str, columns: tuple[str, ...]) -> Scenario:
    return Scenario(
        name=name,
        experts=(48, 8),
        columns=columns,
        shapes=32,
        processes=2,
        groups_shuffled=4,
        groups_per_batch=4,
        ahead_max=640,  # Bytes are what fills memory: 257 MB, where 4,096 would be 1.6 GB.
        systems=_ON_KAFKA,
    )


def _slow(name: str, in_groups: bool) -> Scenario:
    return Scenario(
        name=name,
        producers=16,
        sent_twice=0.0,
        in_groups=in_groups,
        per_s=640.0,  # Each of the 64 sends every 100 ms, or a group every 800 ms.
        ahead_max=2048,
        measure_s=20.0,
        systems=_ON_KAFKA,
    )


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="256", length="256"),
        Scenario(name="1024"),
        Scenario(name="4096", length="4096"),
        Scenario(name="lognormal", length="lognormal"),
        _wide("wide", (EXPERTS,)),
        _wide("wide-unread", ()),
        _slow("workers", in_groups=False),
        _slow("groups", in_groups=True),
        Scenario(
            name="admission",
            sent_twice=0.0,
            in_groups=True,
            systems=("rollstream", "admitted"),
        ),
        Scenario(
            name="latency",
            processes=1,
            group_size=1,
            groups_shuffled=1,
            sent_twice=0.0,
            groups_per_batch=1,
            ahead_max=1,
            flush_interval_s=0.15,  # As somebody would set it for whom two seconds are long.
            measure_s=50.0,
            systems=_ON_KAFKA,
        ),
    )
}
