"""A process that opens clients and forks, and whose children open others under the same name.

``python -m harness.forked_clients CONFIG``: a line for the child of each kind is printed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollstream.producers import (
    AsyncRolloutProducer,
    AsyncStepProducer,
    RolloutProducer,
    ScoreProducer,
    Step,
    StepProducer,
)
from rollstream.runtime.config.load import load_config
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.sampler import Sampler, SamplerView
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.topics.layout import Layout

ENDS_WITHIN_S = 30.0  # A child takes none of it, unless it hangs.
ROLLOUT: dict[str, Any] = {
    "example_id": "ex",
    "policy_version": "v",
    "weight_step": 0,
    "output_tokens": [1],
    "logprobs": [-0.1],
    "reward": 1.0,
}
STEP = Step([1], [2], 1.0, "trajectory", "prompt", 0, "v", 0)


def open_sync(config: RollstreamConfig) -> object:
    producer = RolloutProducer(
        config.kafka.bootstrap, environment="math", namespace=config.kafka.namespace
    )
    with producer.admit():
        producer.publish(**ROLLOUT)
    producer.flush()
    return producer


def open_async(config: RollstreamConfig) -> object:
    async def publish() -> AsyncRolloutProducer:
        producer = AsyncRolloutProducer(
            config.kafka.bootstrap, environment="math", namespace=config.kafka.namespace
        )
        await producer.publish(**ROLLOUT)
        return producer

    return asyncio.run(publish())


def open_scores(config: RollstreamConfig) -> object:
    scores = ScoreProducer(
        config.kafka.bootstrap, environment="math", scorer="tests", namespace=config.kafka.namespace
    )
    scores.publish(rollout_uid="u", reward=1.0)
    scores.flush()
    return scores


def open_steps(config: RollstreamConfig) -> object:
    steps = StepProducer(config.kafka.bootstrap, namespace=config.kafka.namespace)
    steps.submit_step(STEP, environment="math")
    steps.flush()
    return steps


def open_async_steps(config: RollstreamConfig) -> object:
    async def submit() -> AsyncStepProducer:
        steps = AsyncStepProducer(config.kafka.bootstrap, namespace=config.kafka.namespace)
        await steps.submit_step(STEP, environment="math")
        return steps

    return asyncio.run(submit())


def open_sampler(config: RollstreamConfig) -> object:
    sampler = Sampler("trainer-a", config=config)
    sampler.resume(None)
    return sampler


def open_view(config: RollstreamConfig) -> object:
    view = SamplerView("trainer-a", config=config)
    view.stats()
    return view


KINDS: dict[str, Callable[[RollstreamConfig], object]] = {
    "producer": open_sync,
    "async_producer": open_async,
    "scores": open_scores,
    "steps": open_steps,
    "async_steps": open_async_steps,
    "sampler": open_sampler,
    "view": open_view,
}


def ended(child: int) -> str:
    """How the child ended; one that hangs is killed."""
    deadline = time.monotonic() + ENDS_WITHIN_S
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return f"exit-{os.waitstatus_to_exitcode(status)}"
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"


def main() -> None:
    config = load_config(Path(sys.argv[1]))
    broker = KafkaBroker(config.kafka.bootstrap)
    writer = broker.writer()
    writer.append(Layout(config.kafka.namespace).admission("math"), b"", partition=0)
    assert writer.flush(ENDS_WITHIN_S) == 0
    for kind, open_client in KINDS.items():
        client: object = open_client(config)
        child = os.fork()
        if not child:
            broker.close()
            client = None  # Nothing in the child needs the parent's any more.
            client = open_client(config)
            sys.exit()
        sys.stdout.write(f"{kind}: {ended(child)}\n")
        sys.stdout.flush()
        del client


if __name__ == "__main__":
    main()
