"""How many more groups may be begun: what counts against it, and what a waiting request opens."""

from __future__ import annotations

from typing import Any

import pytest

from harness.decider import LOGS, Decider
from harness.groups import GroupSpec
from rollstream.runtime.config.sections import SamplerConfig
from rollstream.sampler.decide.admission.capacity import Load, Loads, takes_part
from rollstream.sampler.decide.batches.next_batch import NextBatch
from rollstream.sampler.decide.queries.looks import AskStats
from rollstream.sampler.decide.trainer.commands import Ack, Finish, PublishPolicy, Resume
from rollstream.sampler.errors import NotEnoughGroups
from rollstream.schemas.events import ProducerInFlight

SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US


class World(Decider):
    """A decider whose capacity is asked for; one environment unless others are named."""

    def __init__(self, **config: Any) -> None:
        self.config = SamplerConfig(**{"environments": ("math",), **config})
        super().__init__(**{"environments": ("math",), **config})
        self.loads = Loads(self.config)

    def ready(self, count: int, environment: str = "math", **spec: Any) -> None:
        log = LOGS[0] if environment == "code" else LOGS[1]
        start = sum(len(getattr(event, "groups", ())) for _, _, event in self.sealed)
        specs = (GroupSpec(example_id=f"ex-{start + i}", **spec) for i in range(count))
        self.seal(*specs, log=log)

    def begun(self, count: int, producer: str = "a", environment: str = "math") -> None:
        log = LOGS[0] if environment == "code" else LOGS[1]
        self.report(ProducerInFlight(producer, count, count, 0, self.log_us), log=log)

    def ack(self, step: int) -> None:
        self.do(Ack(step=step, batch_id=self.state.batches[step].batch_id))

    def load(self, *waiting: NextBatch, environment: str = "math") -> Load:
        shortages = [one.shortage(self.state) for one in waiting]
        quotas = [one.quotas for one in shortages if one is not None]
        return self.loads.now(self.state, self.reported, self.now_us, quotas)[environment]

    def open(self, *waiting: NextBatch, environment: str = "math") -> int:
        return self.load(*waiting, environment=environment).open


@pytest.mark.proves("F5")
def test_each_group_counts_once_whether_begun_ready_or_served_and_not_acked() -> None:
    world = World(groups_per_step=4)
    assert world.open() == 12  # Two steps ahead, and the one that is trained on.
    world.begun(5)
    assert world.open() == 7
    world.begun(0)
    world.ready(5)
    assert world.open() == 7
    world.serve(0, 4)
    assert world.open() == 7
    world.ack(0)
    assert world.open() == 11


def test_a_step_has_as_many_groups_as_the_largest_of_the_last_requests() -> None:
    world = World()
    assert world.load().step == 64
    world.ready(20)
    assert world.load(NextBatch(step=0, num_groups=100)).step == 100
    for step, groups in enumerate((6, *[2] * 7)):
        world.serve(step, groups)
        world.ack(step)
    assert (world.load().step, world.load().most) == (6, 18)
    world.ready(2)
    world.serve(8, 2)
    assert world.load().step == 2


@pytest.mark.proves("F5")
@pytest.mark.parametrize("target", [0, 2])
@pytest.mark.parametrize("num_groups", [4, 6])
def test_the_most_that_can_ever_be_open_is_known_once_steps_are_of_one_size(
    target: int, num_groups: int
) -> None:
    world = World(target_policy_lag=target)
    world.ready(9 * num_groups)
    for step in range(8):  # Those to come may be larger than the first ones of a run.
        assert world.load(NextBatch(step=step, num_groups=num_groups)).ever == 0
        world.serve(step, num_groups)
        world.ack(step)
    assert world.load().ever == (target + 1) * num_groups
    assert world.load(NextBatch(step=8, num_groups=num_groups + 1)).ever == 0


def test_of_several_environments_one_may_have_all_that_can_be_open() -> None:
    world = World(groups_per_step=8, environments=["math", "code"])
    assert world.load().ever == world.load(environment="code").ever == 24


def test_what_can_be_open_at_one_time_is_what_the_narrowest_limit_leaves() -> None:
    assert World(groups_per_step=8, capacity=12).load().ever == 12
    ratio = {"max_samples": -1, "samples_per_insert": 1, "error_buffer": (0, 11)}
    assert World(groups_per_step=8, **ratio).load().ever == 11
    twice = World(groups_per_step=8, max_samples=2)
    assert twice.load().ever == twice.open() == 12


def test_a_step_of_ready_packs_that_asks_for_little_does_not_say_what_can_ever_be_open() -> None:
    packs = {"schedule": {"b_ratio": 1.0}, "pack_length": 64}
    world = World(ready_packs=packs)
    world.ready(1)
    world.serve(0, 1)
    assert world.load().ever == 0
    assert World(ready_packs=packs, groups_per_step=8).load().ever == 24


@pytest.mark.parametrize(
    ("limits", "steps", "by"),
    [
        ({}, 3, "target_policy_lag"),
        ({"target_policy_lag": 0}, 1, "target_policy_lag"),
        ({"max_policy_lag": 1}, 2, "max_policy_lag"),
        ({"max_policy_lag": -1}, 3, "target_policy_lag"),
        ({"max_policy_lag": 30}, 3, "target_policy_lag"),
        ({"max_rollout_step_delay": 0, "max_policy_lag": 5}, 1, "max_rollout_step_delay"),
        ({"capacity": 12}, 1.2, "capacity"),
        ({"capacity_groups": 25}, 2.5, "capacity_groups"),
        (
            {"max_samples": -1, "samples_per_insert": 1, "error_buffer": (0, 11)},
            3,
            "samples_per_insert",
        ),
    ],
)
def test_capacity_aims_at_the_target_and_never_exceeds_what_may_be_served_or_be_ready(
    limits: dict[str, Any], steps: float, by: str
) -> None:
    load = World(groups_per_step=10, **limits).load()
    assert (load.most, load.limit) == (10 * steps, by)


@pytest.mark.proves("F5")
def test_what_cannot_be_served_does_not_count_as_ready() -> None:
    world = World(groups_per_step=4, max_policy_lag=4)
    world.ready(2, split="eval")
    world.ready(2, lineage="other")
    world.ready(2, weight_step=-1)
    request = NextBatch(step=0, num_groups=4)
    world.decide(request)
    assert world.open(request) == 12


@pytest.mark.proves("F5")
def test_what_waits_for_a_score_counts_until_it_is_dropped() -> None:
    world = World(groups_per_step=4, score_timeout_s=3600.0)
    world.ready(5, rewards=(None, 1.0))
    assert world.open() == 7
    request = NextBatch(step=0, num_groups=8)
    assert world.open(request) == 8  # A request that waits is not held back by them.

    world = World(groups_per_step=4, score_timeout_s=1e-6)
    world.ready(5, rewards=(None, 1.0))
    world.do(Resume(checkpointed_step=None))  # Time goes on.
    world.decide(request)
    assert world.open() == 12


@pytest.mark.proves("F5")
def test_what_a_resume_left_behind_gives_its_capacity_back_once_a_batch_is_asked_for() -> None:
    world = World(groups_per_step=4)
    world.ready(12, weight_step=3)
    world.do(PublishPolicy(step=0, policy_version="v0"))
    world.do(Resume(checkpointed_step=None))
    world.do(PublishPolicy(step=0, policy_version="v0"))
    assert world.open() == 0
    request = NextBatch(step=0, num_groups=4)
    world.decide(request)
    assert world.open(request) == 12


@pytest.mark.proves("F5")
def test_what_is_in_flight_by_weights_that_a_resume_left_behind_holds_no_capacity() -> None:
    world = World(groups_per_step=4)
    world.ready(8)
    for step in (0, 1):
        world.do(PublishPolicy(step=step, policy_version=f"v{step}"))
        world.serve(step, 4)
        world.ack(step)
    world.do(PublishPolicy(step=2, policy_version="v2"))
    world.begun(10)
    assert world.open() == 2
    world.do(Resume(checkpointed_step=1))  # Weights 2: all that is in flight is on the branch.
    assert world.open() == 2
    world.do(Resume(checkpointed_step=0, later="release"))
    ready = len(world.state.ready)
    assert world.open() == 12 - ready
    world.report(ProducerInFlight("a", 13, 11, 0, world.log_us))  # Three more, and two have ended.
    assert world.open() == 12 - ready - 3


@pytest.mark.proves("F5")
def test_ready_is_counted_in_uses_that_are_left() -> None:
    world = World(groups_per_step=4, max_samples=4)
    assert world.load().most == 12
    world.ready(4)
    assert world.open() == 0  # Sixteen uses are more than three steps take.
    for step in range(2):
        world.serve(step, 4)
        assert world.open() == 4  # Further groups, since a batch has none twice.
        world.ack(step)
    assert world.open() == 1  # Eight uses are left: one more group has the other four.


def test_without_a_limit_of_uses_a_group_counts_until_its_first() -> None:
    world = World(groups_per_step=4, max_samples=-1)
    world.ready(12)
    assert world.open() == 0
    world.serve(0, 4)
    assert world.open() == 0
    world.ack(0)
    assert world.open() == 4


@pytest.mark.proves("F5")
def test_an_environment_that_a_mix_lacks_is_open_however_much_of_others_is_ready() -> None:
    world = World(environments=("math", "code"), groups_per_step=8)
    world.ready(100, "math")
    world.ready(12, "code", weight_step=-1, rewards=(None, 1.0))
    request = NextBatch(step=0, num_groups=8, mix={"math": 0.25, "code": 0.75})
    world.decide(request)
    assert world.open(request, environment="math") == 0
    assert world.open(request, environment="code") >= 6


def test_a_request_opens_what_it_lacks_less_what_is_begun_so_that_waiting_opens_it_once() -> None:
    world = World(groups_per_step=2, target_policy_lag=0)
    request = NextBatch(step=0, num_groups=9)
    assert world.open(request) == 9
    world.begun(7)
    assert world.open(request) == 2
    world.begun(9)
    assert world.open(request) == 0


def test_a_request_opens_no_more_once_too_many_groups_wait_for_a_score() -> None:
    world = World(groups_per_step=4)
    asked = NextBatch(step=0, num_groups=4)
    world.ready(12, rewards=(None, None))
    assert world.open() == 0
    assert world.open(asked) == 4, "what the request lacks"
    world.ready(3, rewards=(None, None))
    assert world.open(asked) == 1
    world.begun(1)
    assert world.open(asked) == 0
    world.begun(0)
    world.ready(5, rewards=(None, None))
    assert world.open(asked) == 0, "nobody scores"


def test_a_request_that_can_use_none_of_what_is_ready_opens_all_that_it_wants() -> None:
    world = World(groups_per_step=4, on_policy_fraction=1.0, max_policy_lag=8)
    world.ready(12)
    world.do(PublishPolicy(step=0, policy_version="v0"))
    world.serve(0, 4)
    world.do(PublishPolicy(step=1, policy_version="v1"))
    request = NextBatch(step=1, num_groups=4)
    assert isinstance(world.choose(request), NotEnoughGroups)
    assert world.open() == 0
    assert world.open(request) == 4


def test_environments_share_a_step_by_the_newest_mix_else_by_what_batches_had() -> None:
    world = World(environments=("math", "code"), groups_per_step=8)
    assert world.load().step == world.load(environment="code").step == 4
    world.ready(40, "math")
    world.ready(2, "code")
    world.serve(0, 8, mix={"math": 1.0})
    assert (world.load().step, world.load(environment="code").step) == (8, 0)
    world.serve(1, 8)
    assert 8 <= world.load().step + world.load(environment="code").step <= 9  # Each rounded up.
    assert world.load(environment="code").step >= 2


@pytest.mark.proves("F5")
def test_only_a_sampler_that_published_lately_takes_part_in_log_time() -> None:
    world = World()

    def part() -> bool:
        return takes_part(world.state, world.config, world.now_us)

    assert not part()
    world.log_us = world.now_us = HOUR_US
    world.do(PublishPolicy(step=0, policy_version="v0"))
    assert part()
    world.now_us += 599 * SECOND_US
    assert part()
    world.now_us += 2 * SECOND_US
    assert not part()
    world.now_us = HOUR_US
    world.do(Finish())
    assert not part()


def test_stats_has_what_is_open_and_who_waits_for_it() -> None:
    world = World(groups_per_step=4)
    world.log_us = world.now_us = HOUR_US
    world.do(PublishPolicy(step=0, policy_version="v0"))
    world.report(
        ProducerInFlight("a", 9, 2, 3, HOUR_US),
        ProducerInFlight("b", 5, 1, 0, HOUR_US),
        ProducerInFlight("silent", 5, 1, 1, HOUR_US - 60 * SECOND_US),
    )
    stats = world.do(AskStats())
    assert stats.capacity == {"math": 64 * 3 - 3}
    assert (stats.producers, stats.producers_waiting) == ({"math": 2}, {"math": 1})


@pytest.mark.proves("F5")
def test_a_producer_that_is_silent_for_8_s_of_log_time_gives_its_groups_back() -> None:
    world = World(groups_per_step=4)
    world.log_us = world.now_us = HOUR_US
    world.do(PublishPolicy(step=0, policy_version="v0"))
    world.begun(9)
    assert world.open() == 3
    world.now_us += 7 * SECOND_US
    assert world.open() == 3
    world.now_us += 2 * SECOND_US
    assert world.open() == 3, "no sealer told of anybody since"
    living = ProducerInFlight("living", 0, 0, 1, world.now_us)
    world.report(living, now_us=world.now_us)
    assert world.open() == 12
    assert [one.producer_id for one in world.load().producers] == ["living"]
