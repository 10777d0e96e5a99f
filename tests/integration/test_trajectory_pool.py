"""From ``StepProducer`` to ``TrajectoryPool``, with a sealer and readers that are killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.pool_reader import PoolReader
from harness.whole_way import Deployment
from rollstream.producers import BufferFull, Step, StepProducer

ENVIRONMENT = "math"


def step(prompt: str, trajectory: str, index: int, *, last: bool = False, n: int = 2) -> Step:
    return Step(
        prompt_ids=list(range(index + 1)),
        response_ids=[7] * 8,
        reward=float(index),
        trajectory_uid=f"{prompt}/{trajectory}",
        prompt_uid=prompt,
        step_index=index,
        policy_version="step-0",
        weight_step=0,
        is_last=last,
        n_rollouts=n,
    )


@contextmanager
def sealing(deployment: Deployment) -> Iterator[subprocess.Popen[bytes]]:
    """``rollstream seal`` as a process, killed at the end."""
    entry = [sys.executable, "-m", "rollstream.console.entry", "seal"]
    with (deployment.config.parent / "sealer.log").open("ab") as log:
        command = [*entry, "--config", str(deployment.config)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@contextmanager
def reading(deployment: Deployment) -> Iterator[PoolReader]:
    reader = PoolReader(deployment.config, deployment.sampler)
    try:
        yield reader
    finally:
        reader.kill()


@pytest.fixture
def deployment(kafka_bootstrap: str, tmp_path: Path) -> Deployment:
    made = Deployment(kafka_bootstrap, tmp_path)
    with made.config.open("a", encoding="utf-8") as config:
        config.write('order = "ready"\nmax_policy_lag = -1\noff_branch = "keep"\n')
    made.run("topics", "create")
    return made


def writer(deployment: Deployment, max_open_prompts: int = 64) -> StepProducer:
    return StepProducer(
        deployment.bootstrap, namespace=deployment.namespace, max_open_prompts=max_open_prompts
    )


@pytest.mark.broker
@pytest.mark.proves("B2", "B3", "B7", "I6")
def test_finished_prompts_outlive_kills_of_sealer_sampler_and_reader(
    deployment: Deployment,
) -> None:
    with writer(deployment) as one, writer(deployment) as other:
        # Nobody reads yet; the steps of a trajectory come by two writers, in any order.
        one.submit_steps([step("p0", "a", 0), step("p0", "a", 2)], environment=ENVIRONMENT)
        other.submit_steps([step("p0", "a", 1), step("p0", "b", 0)], environment=ENVIRONMENT)
        one.flush()
        other.flush()
        with sealing(deployment):
            other.complete_trajectory("p0/a", environment=ENVIRONMENT, steps=3)
            one.complete_trajectory("p0/b", environment=ENVIRONMENT, prompt_uid="p0")
            one.submit_steps([step("slow", "a", 0)], environment=ENVIRONMENT)
            one.flush()
            with reading(deployment) as reader:
                first = reader.fetch()
                assert (first[0], first[1]) == ("p0", 0)
                assert sorted(first[3]) == ["p0/a"] * 3 + ["p0/b"]
                assert reader.fetch(0.0) is None
                for prompt in ("p1", "p2"):
                    last = [step(prompt, trajectory, 0, last=True) for trajectory in "ab"]
                    one.submit_steps(last, environment=ENVIRONMENT)
                    one.flush()
                second = reader.fetch()
                assert second[1] == 1
        # All three are gone. What was fetched and not acknowledged comes again, byte for byte.
        with reading(deployment) as reader:
            assert reader.fetch() == second
        last = [step("slow", "a", 1, last=True), step("slow", "b", 0, last=True)]
        other.submit_steps(last, environment=ENVIRONMENT)
        other.flush()
        with sealing(deployment), reading(deployment) as reader:
            found = [reader.fetch() for _ in range(3)]
            assert found[0] == second
            assert {one[0] for one in found} == {"p1", "p2", "slow"}
            assert found[-1][0] == "slow", "an unfinished prompt blocks none behind it"
            assert reader.fetch(0.0) is None
    audit = json.loads(deployment.run("audit", "--json"))
    assert audit["holds"], audit["problems"]
    assert [one["pending"] for one in audit["partitions"]] == [0, 0]
    settled = Counter[str]()
    for partition in audit["partitions"]:
        settled.update(partition["settled"])
    assert settled == {"ended": 2}


@pytest.mark.broker
@pytest.mark.proves("B4")
def test_a_writer_full_of_unfinished_prompts_loses_none(deployment: Deployment) -> None:
    with writer(deployment, 3) as producer, sealing(deployment):
        prompts = [f"p{number}" for number in range(6)]
        begun = [step(prompt, "a", 0, n=1) for prompt in prompts]
        producer.submit_steps(begun[:3], environment=ENVIRONMENT)
        for refused in begun[3:]:
            with pytest.raises(BufferFull):
                producer.submit_step(refused, environment=ENVIRONMENT)
        for prompt in prompts[:3]:
            producer.complete_trajectory(f"{prompt}/a", environment=ENVIRONMENT)
        for prompt in prompts[3:]:
            last = step(prompt, "a", 0, last=True, n=1)
            producer.submit_step(last, environment=ENVIRONMENT)
        producer.flush()
        with reading(deployment) as reader:
            found = [reader.fetch()[0] for _ in prompts]
    assert sorted(found) == prompts
