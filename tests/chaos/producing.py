"""``python -m chaos.producing``: an env worker that publishes at a pace and writes down what was
confirmed. Its successor goes on behind that, so it sends again, under the same uids, what was not.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event

import numpy as np

from chaos.settings import ENVIRONMENT, GROUP_SIZE, LATE_EVERY, OUTPUT_TOKENS, PROMPT_TOKENS
from rollstream.producers import (
    BrokerUnavailable,
    DeliveryFailed,
    FlushTimedOut,
    FollowedPolicy,
    NoPolicy,
    RolloutProducer,
)
from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.shutdown import stop_on_signals

BURST_S = 0.05  # What is published between two flushes.
BEHIND_S = 10.0  # No more than this is caught up on after a pause.
WAIT_S = 2.0  # Then it looks whether it is to stop.
AT_ONCE_S = 1.0  # Of it, between two flushes.


def uid_of(name: str, number: int) -> str:
    """Of a worker's rollout."""
    return f"{name}.{number}"


def confirmed(journal: Path) -> int:
    """All rollouts below this number are in the log."""
    lines = journal.read_text().split() if journal.exists() else []
    return int(lines[-1]) if lines else 0


class Worker:
    """Publishes rollouts 0, 1, 2, … in groups."""

    def __init__(self, producer: RolloutProducer, name: str) -> None:
        self._producer = producer
        self._name = name
        self._tokens = np.arange(PROMPT_TOKENS + OUTPUT_TOKENS, dtype=np.int32)
        self._logprobs = np.full(OUTPUT_TOKENS, -0.5, np.float32)

    def wait_for_policy(self, stopping: Event) -> None:
        """Returns once the trainer has published one, which is then known at once."""
        while not stopping.is_set():
            with suppress(NoPolicy, BrokerUnavailable):
                self._producer.policy(timeout_s=WAIT_S)
                return

    def publish(self, start: int, stop: int) -> None:
        """Returns once all of them are in the log."""
        policy = self._producer.policy()
        todo: Sequence[int] = range(start, stop)
        while todo:
            failed: set[str] = set()
            for number in todo:
                self._publish_one(number, policy, failed)
            while True:
                try:
                    self._producer.flush()
                    break
                except FlushTimedOut:
                    continue
                except DeliveryFailed as error:
                    failed |= set(error.uids)
            todo = [n for n in todo if uid_of(self._name, n) in failed]

    def _publish_one(self, number: int, policy: FollowedPolicy, failed: set[str]) -> None:
        tokens = self._tokens + number % 1_000
        late = number // GROUP_SIZE % LATE_EVERY == 0
        while True:
            try:
                self._producer.publish(
                    rollout_uid=uid_of(self._name, number),
                    group_uid=f"{self._name}.g{number // GROUP_SIZE}",
                    group_size=GROUP_SIZE,
                    example_id=f"ex-{number // GROUP_SIZE % 500}",
                    prompt_tokens=tokens[:PROMPT_TOKENS],
                    output_tokens=tokens[PROMPT_TOKENS:],
                    logprobs=self._logprobs,
                    reward=None if late else float(number % GROUP_SIZE),
                    policy=policy,
                )
                return
            except DeliveryFailed as error:
                failed |= set(error.uids)


def run(worker: Worker, journal: Path, rate: float, stopping: Event, clock: Clock) -> None:
    """Until it is told to stop, at this rate."""
    worker.wait_for_policy(stopping)
    done = confirmed(journal)
    with journal.open("a", buffering=1) as file:
        begun_s, sent = clock.monotonic_s(), 0
        while not stopping.is_set():
            due = (clock.monotonic_s() - begun_s) * rate - sent
            if due > BEHIND_S * rate:
                sent += round(due - BEHIND_S * rate)
            count = min(max(GROUP_SIZE, int(due)), int(AT_ONCE_S * rate))
            worker.publish(done, done + count)
            done, sent = done + count, sent + count
            file.write(f"{done}\n")
            ahead_s = sent / rate - (clock.monotonic_s() - begun_s)
            clock.wait(stopping, max(BURST_S, ahead_s))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "name", "journal"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rate", type=float, required=True)
    args = parser.parse_args()
    stopping = stop_on_signals()
    with RolloutProducer(args.bootstrap, environment=ENVIRONMENT, replica_id=args.name) as producer:
        run(Worker(producer, args.name), Path(args.journal), args.rate, stopping, SystemClock())


if __name__ == "__main__":
    main()
