"""An env worker as a process of its own: ``python -m harness.producer_process``.

It publishes groups of two under uids that follow from their number, so a successor sends the same.
"""

from __future__ import annotations

import argparse

from harness.faults import Append, Fate, FaultyBroker, write_now
from harness.kill_points import kill_process
from rollstream.producers import RolloutProducer
from rollstream.producers.engine import engine
from rollstream.streams.broker import Broker
from rollstream.streams.kafka import KafkaBroker

LINGER_S = 60.0


def uids_of(groups: int) -> list[str]:
    """Every uid that a worker with so many groups publishes."""
    return [f"g{number}-{member}" for number in range(groups) for member in range(2)]


def dying_at(inner: Broker, record: int, *, written: bool) -> Broker:
    """Kill -9 at this record, counted from 1: after it is ``written``, and before its report; or
    when those before it are in the log, and it is not."""
    faulty = FaultyBroker(inner)
    left = record

    def decide(append: Append) -> Fate:
        nonlocal left
        left -= 1
        if left or written:
            write_now(inner, append)
        if not left:
            kill_process()
        return Fate.DROP  # It is in the log already, and nobody ever says so.

    faulty.decide = decide
    return faulty


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--environment", required=True)
    parser.add_argument("--groups", type=int, required=True)
    parser.add_argument("--die-at", type=int, default=0)
    parser.add_argument("--written", action="store_true")
    args = parser.parse_args()
    broker: Broker = KafkaBroker(args.bootstrap)
    engine.LINGER_S = LINGER_S  # However slowly it publishes, the flush sends a record a partition.
    if args.die_at:
        broker = dying_at(broker, args.die_at, written=args.written)
    with RolloutProducer(
        broker=broker, environment=args.environment, namespace=args.namespace
    ) as producer:
        for uid in uids_of(args.groups):
            number = uid.split("-")[0]
            producer.publish(
                rollout_uid=uid,
                group_uid=number,
                group_size=2,
                example_id=f"ex-{number}",
                policy_version="step-0",
                weight_step=0,
                prompt_tokens=[1, 2],
                output_tokens=[3, 4],
                logprobs=[-0.1, -0.2],
                reward=1.0,
            )


if __name__ == "__main__":
    main()
