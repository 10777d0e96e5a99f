"""What is written to ``admission.<env>``, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from harness.decider import Decider
from harness.groups import GroupSpec
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.config.sections import SamplerConfig
from rollstream.sampler.decide.admission.capacity import Quota
from rollstream.sampler.decide.admission.granting import (
    OLDER_S,
    REPEAT_S,
    VALID_S,
    Granting,
    Observed,
    Told,
)
from rollstream.sampler.decide.admission.records import Written
from rollstream.sampler.decide.trainer.commands import Finish, PublishPolicy, Resume
from rollstream.sampler.engine.outbox.admission import ShareGranter
from rollstream.sampler.engine.outbox.announcing import Announcer, Kind, Make
from rollstream.schemas.codec import decode_as
from rollstream.schemas.events import (
    Claimed,
    ProducerInFlight,
    ProducerShare,
    SharesGranted,
    SharesValid,
)
from rollstream.schemas.ids import READS_ITS_SHARE

SECOND_US = 1_000_000
LOG_US = 1_000 * SECOND_US
NEW = f"new{READS_ITS_SHARE}"
KINDS: tuple[Kind, ...] = ("shares", "validity")


class World(Decider):
    """A sampler's state and what is due of it; ``seconds`` pass by all clocks alike."""

    def __init__(self, **config: Any) -> None:
        self.config = {"environments": ("math",), "groups_per_step": 2, "lineage": "main", **config}
        super().__init__(**self.config)
        self.seconds = 0.0
        self.lacking: set[str] = set()
        self.restart(claimed_at=0)

    def restart(self, claimed_at: int) -> None:
        self.granting = Granting("trainer-a", SamplerConfig(**self.config))
        claim = Claimed(owner="o", nonce="n")
        self.state.apply(claimed_at, LOG_US, claim)

    def publish(self, step: int = 0) -> None:
        self.log_us = LOG_US + round(self.seconds * SECOND_US)
        self.do(PublishPolicy(step=step, policy_version=f"v{step}"))

    def produce(self, *figures: tuple[str, int, int, int]) -> None:
        now_us = LOG_US + round(self.seconds * SECOND_US)
        self.report(*(ProducerInFlight(*one, now_us) for one in figures), now_us=now_us)

    def look(self) -> dict[str, Told]:
        """What is to be written, by environment."""
        told = self.granting.changes(self.observe(), self.seconds, self.lacking)
        return {one.environment: one for one in told}

    def changes(self) -> list[tuple[str, SharesGranted]]:
        """The records of the first generation, which are for all of these producers."""
        return [(name, told.older) for name, told in self.look().items() if told.older is not None]

    def shares(self) -> dict[str, int | None]:
        """The shares of single producers that are to be written."""
        return {one.producer_id: one.total for one in self.look()["math"].shares}

    def observe(self, requests: Sequence[Sequence[Quota]] = ()) -> Observed:
        self.now_us = LOG_US + round(self.seconds * SECOND_US)
        return self.granting.observe(self.state, lambda: self.reported, self.now_us, requests)

    def totals(self) -> dict[str, int]:
        ((_, record),) = self.changes()
        return dict(zip(record.producer_ids, record.totals.tolist(), strict=True))


@pytest.mark.proves("F5")
def test_a_sampler_that_never_published_a_policy_limits_nobody() -> None:
    world = World()
    world.produce(("a", 0, 0, 1))
    assert world.changes() == []
    assert not world.granting.leave(world.observe())


def test_a_record_is_written_when_a_total_changes() -> None:
    world = World(groups_per_step=4, admission_idle_s=100.0)
    world.publish()
    world.produce(("a", 3, 3, 2), ("b", 5, 1, 0))
    ((environment, record),) = world.changes()
    assert environment == "math"
    assert (record.sampler, record.lineage, record.epoch) == ("trainer-a", "main", 0)
    assert dict(zip(record.producer_ids, record.totals.tolist(), strict=True)) == {"a": 7, "b": 9}
    assert (record.capacity, record.valid_s) == (8, VALID_S)
    assert (record.idle_s, record.idle_groups) == (100.0, 6)
    world.seconds = 20.0
    world.produce(("a", 7, 7, 0), ("b", 5, 1, 0))
    assert world.changes() == []  # It began what it had been granted.


class Announced(Announcer):
    """What is written, by hand."""

    def __init__(self) -> None:
        self.made: dict[Kind, Make] = {}
        self.repeated_s: dict[Kind, float] = {}
        self.shares: dict[str, ProducerShare] = {}

    def put(self, environment: str, kind: Kind, make: Make, *, every_s: float = 0.0) -> None:
        assert environment == "math"
        self.made[kind], self.repeated_s[kind] = make, every_s

    def put_shares(self, environment: str, shares: Mapping[str, bytes | None]) -> None:
        self.shares |= {
            name: decode_as(ProducerShare, value) for name, value in shares.items() if value
        }

    def shares_written(self, environment: str) -> dict[str, int]:
        return {}

    def lacks(self, environment: str) -> bool:
        return False


@pytest.mark.proves("F5")
def test_a_repetition_has_a_number_of_its_own_so_that_readers_count_from_it() -> None:
    world, announced = World(), Announced()
    world.publish()
    world.produce(("a", 0, 0, 1))
    ShareGranter(world.granting, announced, world.observe, ManualClock()).look()
    assert announced.shares["a"].total == 6
    for kind in KINDS:
        first, again = announced.made[kind](), announced.made[kind]()
        assert isinstance(first, SharesGranted | SharesValid)
        assert isinstance(again, SharesGranted | SharesValid)
        assert again == replace(first, number=again.number)
        assert again.number > first.number
        assert announced.repeated_s[kind] == REPEAT_S
        assert first.valid_s >= 2 * REPEAT_S  # One repetition may be lost.


@pytest.mark.proves("F5")
def test_a_restart_gives_nobody_less_or_more_than_what_is_open_then() -> None:
    world = World(groups_per_step=4)
    world.publish()
    world.produce(("a", 0, 0, 1), ("b", 0, 0, 1))
    before = world.totals()
    world.restart(claimed_at=9)
    assert world.totals() == before
    world.produce(("a", 4, 4, 1), ("b", 6, 3, 0))
    world.restart(claimed_at=11)
    totals = world.totals()
    assert sum(totals.values()) == 4 + 6 + (12 - 4 - 3)


@pytest.mark.proves("F5")
def test_a_sampler_whose_trainer_waits_takes_part_however_long_it_published_nothing() -> None:
    world = World(admission_idle_s=60.0)
    world.publish()
    world.produce(("a", 0, 0, 1))
    world.seconds = 61.0
    world.produce(("a", 0, 0, 1))
    assert world.observe([[(("math",), 2)]]).valid_s == VALID_S
    assert world.observe().valid_s == 0.0


@pytest.mark.proves("F5")
def test_a_sampler_that_no_longer_takes_part_says_so_once_until_it_does_again() -> None:
    world = World(admission_idle_s=60.0)
    world.publish()
    world.produce(("a", 0, 0, 1))
    assert world.totals() == {"a": 6}
    world.seconds = 61.0
    world.produce(("a", 0, 0, 1))
    ((_, left),) = world.changes()
    assert (left.valid_s, left.idle_groups) == (0.0, 6)
    assert world.changes() == []
    world.restart(claimed_at=20)
    ((_, left),) = (
        world.changes()
    )  # Whoever reads the topic anew must not take an older record's word.
    assert (left.epoch, left.valid_s) == (20, 0.0)


@pytest.mark.proves("F5")
def test_one_whose_run_is_over_frees_the_workers_until_it_goes_on() -> None:
    world = World()
    world.publish()
    world.produce(("a", 0, 0, 1))
    assert world.totals() == {"a": 6}
    world.do(Finish())
    ((environment, out),) = world.changes()
    assert (environment, out.valid_s < 0) == ("math", True)
    assert world.changes() == []
    (closed,) = world.granting.leave(world.observe())
    assert closed.valid.valid_s < 0  # It stays so.
    world.do(Resume(checkpointed_step=None))
    world.publish()
    assert world.totals() == {"a": 6}


@pytest.mark.proves("F5")
def test_one_without_admission_says_so_whatever_was_granted_under_its_name() -> None:
    world = World(environments=("math", "code"))
    world.publish()
    world.config = {"environments": ("math", "code"), "admission": False}
    world.restart(claimed_at=9)
    records = dict(world.changes())
    assert {name: one.valid_s < 0 for name, one in records.items()} == {"math": True, "code": True}
    world.produce(("a", 0, 0, 1))
    assert world.changes() == []


def test_one_that_is_closed_leaves_with_a_record_that_ends_the_last_one() -> None:
    world = World()
    world.publish()
    world.produce(("a", 0, 0, 1))
    ((_, record),) = world.changes()
    (left,) = world.granting.leave(world.observe())
    assert (left.environment, left.valid.valid_s, left.valid.epoch) == ("math", 0.0, record.epoch)
    assert left.older is not None
    assert (left.older.valid_s, left.older.epoch) == (0.0, record.epoch)


def test_a_record_is_written_when_another_setting_limits_what_is_granted() -> None:
    world = World(max_samples=-1, samples_per_insert=1, error_buffer=(0, 4))
    world.publish()
    world.produce(("a", 4, 4, 1))
    ((_, first),) = world.changes()
    assert (first.limit, first.capacity) == ("samples_per_insert", 0)
    world.produce(("a", 4, 0, 1))
    world.seal(*(GroupSpec(example_id=f"ex-{i}", lineage="main") for i in range(6)))
    ((_, second),) = world.changes()
    assert (second.limit, second.capacity) == ("target_policy_lag", 0)
    assert second.totals.tolist() == first.totals.tolist() == [4]
    assert world.changes() == []


@pytest.mark.proves("F5")
def test_what_holds_for_all_is_new_only_where_a_setting_limits_or_the_claim_is_another() -> None:
    world = World(groups_per_step=4)
    world.publish()
    world.produce(("a", 0, 0, 1))
    assert world.look()["math"].at_once
    world.produce(("a", 3, 3, 0))
    told = world.look()["math"]
    assert (told.at_once, told.valid.capacity) == (False, 9)
    world.restart(claimed_at=9)
    told = world.look()["math"]
    assert (told.at_once, told.valid.epoch) == (True, 9)


@pytest.mark.proves("F5")
def test_the_first_generation_names_those_who_read_it_alone() -> None:
    world = World(groups_per_step=4)
    world.publish()
    world.produce(("a", 0, 0, 1), (NEW, 0, 0, 1))
    assert world.totals() == {"a": 6}
    world.produce(("a", 0, 0, 1), (NEW, 6, 6, 1))
    assert world.changes() == []


@pytest.mark.proves("F5")
def test_the_first_generation_names_all_where_there_is_no_second_one() -> None:
    world = World(groups_per_step=4, admission_idle_s=9 * OLDER_S)
    world.lacking = {"math"}
    world.publish()
    world.produce((NEW, 0, 0, 1))
    assert world.totals() == {NEW: 12}
    world.seconds = 2 * OLDER_S
    world.produce((f"later{READS_ITS_SHARE}", 0, 0, 1))
    assert set(world.totals()) == {f"later{READS_ITS_SHARE}"}


@pytest.mark.proves("F5")
def test_the_first_generation_ends_a_day_after_one_who_reads_it_asked_and_begins_again() -> None:
    world = World(groups_per_step=4, admission_idle_s=9 * OLDER_S)
    world.publish()
    world.produce(("a", 0, 0, 1))
    assert world.totals() == {"a": 12}
    world.seconds = OLDER_S - 1
    world.produce((NEW, 0, 0, 1))
    assert world.totals() == {}
    world.seconds = OLDER_S
    assert world.look()["math"].older_ends
    world.seconds += 1
    world.produce((NEW, 5, 5, 1))
    assert (world.look()["math"].older_ends, world.changes()) == (False, [])
    world.produce(("a", 3, 0, 1))
    assert set(world.totals()) == {"a"}


@pytest.mark.proves("F5")
def test_a_new_owner_writes_what_nobody_did_and_removes_the_shares_of_the_dead() -> None:
    world = World(groups_per_step=4, admission_idle_s=9 * OLDER_S)
    world.publish()
    world.granting.adopt("math", {"a": 6, "dead": 9})
    world.produce(("a", 0, 0, 1), ("b", 0, 0, 1))
    assert world.shares() == {"b": 6, "dead": None, "a": 6}
    assert world.shares() == {}


@pytest.mark.parametrize(("requests", "spare"), [([], 2), ([[(("math",), 30)]], 0)])
def test_a_fleet_keeps_spare_groups_unless_a_request_lacks_them(
    requests: Sequence[Sequence[Quota]], spare: int
) -> None:
    world = World(groups_per_step=10)
    world.publish()
    world.produce(*((f"p{number:02}{READS_ITS_SHARE}", 0, 0, 0) for number in range(16)))
    seen = world.observe(requests)
    (told,) = world.granting.changes(seen, 0.0)
    assert sum(one.total or 0 for one in told.shares) == seen.loads["math"].open - spare


@pytest.mark.proves("F5")
@pytest.mark.parametrize("fleet", [40, 400])
def test_what_is_written_grows_with_what_changes_and_not_with_the_fleet(fleet: int) -> None:
    world = World(groups_per_step=fleet)
    world.publish()
    figures = {f"p{number:03}{READS_ITS_SHARE}": (0, 0, 0) for number in range(fleet)}
    world.produce(*((name, *one) for name, one in figures.items()))
    assert len(world.shares()) == fleet
    gone, *begins = figures
    del figures[gone]
    world.seconds = 9.0  # It is silent. What it had is shared anew, and nobody waits for that.
    world.produce(*((name, 1, 1, 0) if name in begins[:2] else (name, 0, 0, 0) for name in figures))
    told = world.look()["math"]
    assert told.shares == [Written(gone, None, 0)]
    assert (told.at_once, told.older) == (False, None)
