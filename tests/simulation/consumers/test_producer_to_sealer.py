"""What producers publish is what the sealer understands."""

from __future__ import annotations

import pytest

from harness.sealing import SealWorld
from rollstream.producers import RolloutProducer
from rollstream.streams.topics.layout import Layout


@pytest.mark.proves("A17")
def test_a_published_trajectory_is_a_member_of_its_group() -> None:
    with SealWorld() as world:
        assert world.layout == Layout()
        with (
            RolloutProducer(broker=world.new_broker(), environment="math") as producer,
            producer.dispatch(example_id="ex-1", group_size=2) as group,
        ):
            for _ in range(2):
                with group.trajectory() as turns:
                    for number in range(3):
                        turns.turn(
                            policy_version="step-0",
                            weight_step=0,
                            prompt_tokens=[number],
                            output_tokens=[1, 2],
                            logprobs=[-0.5, -0.5],
                            reward=1.0,
                        )
        sealer = world.sealer()
        world.run(sealer)
        stats = sealer.stats()
        assert (stats.groups, stats.segments) == (1, 6)
        assert dict(stats.environments["math"].settled) == {"dispatched": 1}
