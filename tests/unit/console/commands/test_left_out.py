"""What ``report``, ``lineage`` and ``show`` say of a rollout that its group's batch left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.command_line import CONFIG
from harness.published_run import Run
from rollstream.producers import RolloutProducer


@pytest.mark.proves("F12")
def test_a_rollout_that_a_released_batch_left_out_waits_again(tmp_path: Path) -> None:
    run = Run(tmp_path, f"{CONFIG}max_rollout_step_delay = 1\n")
    clock, broker = run.line.clock, run.line.broker()
    with RolloutProducer(environment="math", broker=broker, clock=clock) as producer:
        for step in (4, 4, 1):
            producer.publish(
                example_id="a",
                group_uid="a",
                group_size=3,
                rollout_uid=f"of step {step}" if step == 1 else "",
                policy_version=f"step-{step}",
                weight_step=step,
                prompt_tokens=[1],
                output_tokens=[2],
                reward=1.0,
            )
    run.seal(1)
    with run.sampler() as sampler:
        sampler.resume(3)
        sampler.ack(sampler.next_batch(4, 1))
        assert told(run) == (["left_out"], ["left_out"], {"waiting": 0, "left_out": 1})
        sampler.resume(3, later="release")
        assert told(run) == (["released"], ["released", "waiting"], {"waiting": 3})
        sampler.ack(sampler.next_batch(4, 1))
        sampler.checkpointed(4)
    released = ["released", "left_out"]
    assert told(run) == (released, released, {"waiting": 0, "left_out": 1})


def told(run: Run) -> tuple[list[str], list[str], dict[str, int]]:
    """The states by ``lineage`` and by ``show``, and what ``report`` counts."""
    uid, of = "of step 1", ("--sampler", "trainer-a")
    (shown,) = run.read("show", uid, *of)
    totals = run.read("report", *of)["totals"]
    counted = {"waiting": totals["waiting"], **totals["dropped"]}
    uses = [use["state"] for use in run.uses(uid, "trainer-a")]
    return uses, [one["state"] for one in shown["became"]], counted
