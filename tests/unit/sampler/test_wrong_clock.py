"""A sampler decides by the brokers' clock, whatever its machine's clock says; so do workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.command_line import CONFIG
from harness.published_run import Run
from harness.wrong_clock import HOUR_US, WrongClock
from rollstream.producers import RolloutProducer
from rollstream.sampler import NotEnoughGroups, Sampler

pytestmark = pytest.mark.proves("F24")
HOUR_S, AGE_S = 3_600.0, 600.0
LIMITS = (
    f"max_rollout_timestamp_delay = {AGE_S}\nscore_timeout_s = {AGE_S}\nack_timeout_s = {AGE_S}\n"
    "seed = 7\nadmission = false\n"
)
CLOCKS = {"right": (0, 0), "ahead": (HOUR_US, HOUR_US), "behind": (-HOUR_US, -HOUR_US)}
CLOCKS |= {"jumps ahead": (0, HOUR_US), "jumps back": (HOUR_US, -HOUR_US)}


class OneMachine(Run):
    """The sampler's machine has a clock of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, CONFIG + LIMITS)
        self.clock = WrongClock(self.line.clock, 0)

    def sampler(self, name: str = "trainer-a") -> Sampler:
        return Sampler(name, config=self.line.config, clock=self.clock, **self.parts)

    def told(self) -> list[str]:
        """Of the clock, by ``status``."""
        found = self.read("status", "--check", exit_code=2 if self.clock.ahead_us else 0)
        return [f"{one['stage']}: {one['reason']}" for one in found["stuck"]]


@pytest.fixture
def run(tmp_path: Path) -> OneMachine:
    return OneMachine(tmp_path)


@pytest.mark.parametrize(("ahead_us", "later_us"), CLOCKS.values(), ids=list(CLOCKS))
def test_a_sampler_with_a_wrong_clock_decides_as_one_with_a_right_clock(
    run: OneMachine, ahead_us: int, later_us: int
) -> None:
    run.clock.ahead_us = ahead_us
    run.publish("old", "served", "late")
    run.publish("unscored", rewards=(0.0, None))
    run.seal(4)
    with run.sampler() as sampler:
        sampler.publish_policy(0, policy_version="step-0")
        first = sampler.next_batch(0, 1)
        run.clock.ahead_us = later_us
        run.line.clock.advance(AGE_S - 60)
        assert sampler.progress().dropped == {}, "before its time"
        assert not sampler.stats().overdue
        run.publish("young", weight_step=0)
        run.seal(1)
        second = sampler.next_batch(1, 1)
        run.line.clock.advance(120)
        begun_s = run.line.clock.monotonic_s()
        with pytest.raises(NotEnoughGroups):
            sampler.next_batch(2, 2, timeout_s=30.0)
        assert 30.0 <= run.line.clock.monotonic_s() - begun_s < 40.0
        third = sampler.next_batch(2, 1)
        assert sampler.stats().overdue == (0,)
        dropped = sampler.progress().dropped["math"]
    assert set(third.example_ids) == {"young"}
    assert len({*first.example_ids, *second.example_ids}) == 2
    (left,) = {"old", "served", "late"} - {*first.example_ids, *second.example_ids}
    assert dropped == {left: {"too_old": 1}, "unscored": {"unscored": 1}}
    run.line.clock.advance(1.0)
    assert run.read("replay", "--step", "2", "--sampler", "trainer-a")


def test_status_names_the_machine_and_no_longer_once_its_clock_is_right(run: OneMachine) -> None:
    run.clock.ahead_us = -HOUR_US
    run.publish("a", "b", "c")
    run.seal(3)
    with run.sampler() as sampler:
        sampler.next_batch(0, 1)
        (told,) = run.told()
        assert told.startswith("sampler: ")
        assert "decides for trainer-a, and its machine's clock is about 3600 s behind" in told
        run.clock.ahead_us = 0
        sampler.next_batch(1, 1)
        assert run.told() == []
        run.clock.ahead_us = HOUR_US
        sampler.next_batch(2, 1)
        assert "about 3600 s ahead of the brokers'" in run.told()[0]
    run.clock.ahead_us = 0
    with run.sampler() as successor:
        successor.publish_policy(0, policy_version="step-0")
        assert run.told() == []


def test_status_names_no_clock_that_is_almost_right_again(run: OneMachine) -> None:
    run.publish("a", "b", "c")
    run.seal(3)
    with run.sampler() as sampler:
        sampler.next_batch(0, 1)
        run.clock.ahead_us = 31_000_000
        run.line.clock.advance(1.0)
        sampler.next_batch(1, 1)
        assert "about 30 s ahead of the brokers'" in run.told()[0]
        run.clock.ahead_us = 2_000_000
        run.line.clock.advance(1.0)
        sampler.next_batch(2, 1)
        assert run.read("status", "--check", exit_code=0)["stuck"] == []


def test_a_broker_whose_clock_was_ahead_for_one_event_makes_no_later_group_old(
    run: OneMachine,
) -> None:
    run.publish("first")
    run.seal(1)
    brokers = run.line.logs.clock = WrongClock(run.line.clock, 0)
    with run.sampler() as sampler:
        sampler.publish_policy(0, policy_version="step-0")
        brokers.ahead_us = HOUR_US
        sampler.next_batch(0, 1)
        brokers.ahead_us = 0
        run.line.clock.advance(5.0)
        run.publish("fresh", weight_step=0)
        run.seal(1)
        assert set(sampler.next_batch(1, 1).example_ids) == {"fresh"}


@pytest.mark.parametrize("ahead_us", [HOUR_US, -HOUR_US], ids=["ahead", "behind"])
def test_a_worker_with_a_wrong_clock_makes_only_its_own_rollouts_look_older(
    run: OneMachine, ahead_us: int
) -> None:
    run.publish("right")
    clock = WrongClock(run.line.clock, ahead_us)
    with RolloutProducer(environment="math", broker=run.line.broker(), clock=clock) as producer:
        for member in range(2):
            producer.publish(
                example_id="wrong",
                group_uid="of a wrong clock",
                group_size=2,
                prompt_tokens=[1],
                output_tokens=[2],
                logprobs=[-0.5],
                reward=float(member),
                policy_version="step-0",
                weight_step=0,
            )
    run.seal(2)
    with run.sampler() as sampler:
        sampler.publish_policy(0, policy_version="step-0")
        if ahead_us > 0:
            assert set(sampler.next_batch(0, 2).example_ids) == {"right", "wrong"}
        else:
            assert set(sampler.next_batch(0, 1).example_ids) == {"right"}
            assert sampler.progress().dropped == {"math": {"wrong": {"too_old": 1}}}
