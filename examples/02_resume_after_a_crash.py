"""A trainer dies between two checkpoints; its successor gets the very same batches again.

The first trainer does the steps 0 to 3, saved its weights after step 1, and is gone. What it did
after that is lost with its weights, so the steps 2 and 3 must be done again, and what env workers
sample from now on says so: it carries the new policy's epoch.

    python examples/02_resume_after_a_crash.py
"""

from __future__ import annotations

from rollstream.consumers import InlineExecutor, Sealer, create_deployment
from rollstream.producers import RolloutProducer
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Fenced, Sampler
from rollstream.store import MemoryBlobs
from rollstream.streams.memory import MemoryBroker

GROUPS = 10
GROUPS_A_STEP = 2
CONFIG = RollstreamConfig.model_validate(
    {
        "kafka": {"bootstrap": "in-memory:0"},
        "store": {"root": "file:///in-memory"},
        "environments": {"math": {"partitions": 1, "flush_interval_s": 0.0}},
        # One thread plays all parts: nobody would seal, or train, while a dispatch waits.
        "samplers": {"trainer-a": {"environments": ["math"], "admission": False}},
    }
)


def publish_and_seal(
    problems: range, broker: MemoryBroker, store: MemoryBlobs, clock: ManualClock
) -> None:
    """Groups of two, as env workers with the newest weights and a sealer would leave them."""
    with RolloutProducer(environment="math", broker=broker, clock=clock) as producer:
        policy = producer.policy()
        for number in problems:
            with producer.dispatch(example_id=f"problem-{number}", group_size=2) as group:
                for reward in (0.0, 1.0):
                    group.publish(
                        policy=policy,
                        prompt_tokens=[1, 2, 3],
                        output_tokens=[number, int(reward)],
                        logprobs=[-0.5, -0.7],
                        reward=reward,
                    )
    with Sealer(
        CONFIG, broker=broker, store=store, clock=clock, workers=InlineExecutor()
    ) as sealer:
        while sealer.stats().groups < len(problems):
            sealer.step(Deadline(1.0, clock))


def main() -> None:
    clock = ManualClock()
    broker = MemoryBroker(clock=clock)
    store = MemoryBlobs()
    create_deployment(CONFIG, broker=broker, store=store, clock=clock)

    first = Sampler("trainer-a", config=CONFIG, broker=broker, store=store, clock=clock)
    begin = first.resume(None)
    first.publish_policy(begin, policy_version="step-0")
    publish_and_seal(range(GROUPS), broker, store, clock)
    served = {}
    for step in range(begin, 4):
        served[step] = first.next_batch(step, GROUPS_A_STEP)
        first.ack(served[step])
        if step == 1:
            first.checkpointed(step)
    # The crash: nobody closes `first`. It might even still be running on a machine that is cut off.

    with Sampler("trainer-a", config=CONFIG, broker=broker, store=store, clock=clock) as successor:
        # The weights that we have hold the steps 0 and 1. "release" instead of "replay" would give
        # the groups of the steps 2 and 3 back, to be chosen anew.
        begin = successor.resume(1, later="replay")
        print(f"resumed at step {begin}")
        successor.publish_policy(begin, policy_version=f"step-{begin}")
        publish_and_seal(range(GROUPS, GROUPS + 2), broker, store, clock)
        for step in range(begin, 6):
            batch = successor.next_batch(step, GROUPS_A_STEP)
            before = served.get(step)
            if before is None:
                print(f"step {step}: new")
            else:
                same = (batch.uids, batch.tokens.tobytes()) == (
                    before.uids,
                    before.tokens.tobytes(),
                )
                print(f"step {step}: {'the same bytes as before the crash' if same else 'DIFFERS'}")
            successor.ack(batch)
        successor.checkpointed(step)

        try:
            first.next_batch(step, GROUPS_A_STEP)
        except Fenced as fenced:
            print(f"the first trainer, come back: Fenced: {fenced}")
        trained = successor.progress().trained["math"]
        print(f"{len(trained)} problems trained on, each {max(trained.values())} time")


if __name__ == "__main__":
    main()
