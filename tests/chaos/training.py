"""``python -m chaos.training``: a trainer that writes down the bytes of each batch, and compares
them when a step is asked again. Its successor goes on from its newest checkpoint.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from threading import Event
from typing import IO, NamedTuple

import xxhash

from chaos.phases import PhasedBlobs, PhasedBroker, Phases, phases_of
from chaos.settings import BATCH_GROUPS, CHECKPOINT_EVERY, SAMPLER
from rollstream.runtime.config.load import load_config
from rollstream.runtime.shutdown import stop_on_signals
from rollstream.sampler import Batch, Fenced, NotEnoughGroups, SamplerClient
from rollstream.sampler.decide.batches.next_batch import PayloadsBy
from rollstream.streams.errors import BrokerUnavailable, ClaimFailed

AGAIN = 0.1  # Of the steps are asked a second time at once.
READS_ITSELF = 0.3  # Of the batches are read by the trainer, from the store.
RELEASED = 0.25  # Of the starts give up what was served beyond the checkpoint.
WAIT_S = 2.0  # Then it looks whether it is to stop.


class Given(NamedTuple):
    """Of a batch: its recorded digest, and that of everything in it."""

    digest: str
    content: str

    @classmethod
    def of(cls, batch: Batch) -> Given:
        content = xxhash.xxh3_128("\n".join(batch.uids).encode())
        for name, array in sorted(batch.arrays().items()):
            content.update(name.encode())
            content.update(array.tobytes())
        return cls(batch.digest.hex(), content.hexdigest())


class Journal:
    """What the trainer was given and saved, over all its lives.

    Attributes:
        given: by step, as it was given first; after a rewind that released them, later steps begin
            anew.
        saved: steps of checkpoints, rising.
        differing: steps whose bytes differed when they were asked again.
        given_again: how often a step was asked again and compared.
    """

    def __init__(self, file: Path) -> None:
        self.given: dict[int, Given] = {}
        self.saved: list[int] = []
        self.differing: list[int] = []
        self.given_again = 0
        for line in file.read_text().splitlines() if file.exists() else []:
            kind, *words = line.split()
            self._apply(kind, words)
        self._file: IO[str] = file.open("a", buffering=1)

    def write(self, kind: str, *words: object) -> None:
        self._file.write(" ".join(map(str, (kind, *words))) + "\n")
        self._apply(kind, list(map(str, words)))

    def compare(self, batch: Batch) -> None:
        """Writes down a batch, or that it is not as it was."""
        self.write("given", batch.step, *Given.of(batch))

    def _apply(self, kind: str, words: list[str]) -> None:
        step = int(words[0])
        match kind:
            case "given":
                given = Given(*words[1:])
                self.given_again += step in self.given
                if self.given.setdefault(step, given) != given:
                    self.differing.append(step)
            case "saved":
                self.saved.append(step)
            case "released":
                self.given = {at: given for at, given in self.given.items() if at <= step}
                self.saved = [at for at in self.saved if at <= step]
            case _:
                raise AssertionError(f"the journal has no {kind!r}")


class Trainer:
    """One life."""

    def __init__(self, client: SamplerClient, journal: Journal, phases: Phases, seed: int) -> None:
        self._client = client
        self._journal = journal
        self._phases = phases
        self._dice = random.Random(seed)

    def resume(self) -> int:
        saved = self._journal.saved
        checkpoint = saved[-1] if saved else None
        if len(saved) > 1 and self._dice.random() < RELEASED:
            checkpoint = self._dice.choice(saved[-3:])
            self._journal.write("released", checkpoint)  # Before: it may be, once it is asked for.
            step = self._client.resume(checkpoint, later="release")
        else:
            step = self._client.resume(checkpoint, later="replay")
        self._publish(step)
        return step

    def train(self, step: int) -> int:
        """One step, if there are groups for it; the next one."""
        with self._phases.of("batch asked"):
            try:
                batch = self._next(step, timeout_s=WAIT_S)
            except (NotEnoughGroups, BrokerUnavailable, ClaimFailed):
                return step  # To be asked again: a broker that is killed takes longer to come back.
        self._journal.compare(batch)
        if self._dice.random() < AGAIN:
            again = max(0, step - self._dice.randrange(3))
            if again in self._journal.given:
                self._journal.compare(self._next(again))
        with self._phases.of("ack"):
            self._client.ack(batch)
        self._publish(step + 1)
        if (step + 1) % CHECKPOINT_EVERY == 0:
            with self._phases.of("checkpoint"):
                self._journal.write("saved", step)
                self._client.checkpointed(step)
        return step + 1

    def _next(self, step: int, timeout_s: float | None = None) -> Batch:
        by: PayloadsBy = "rank" if self._dice.random() < READS_ITSELF else "sampler"
        return self._client.next_batch(step, BATCH_GROUPS, payloads=by, timeout_s=timeout_s)

    def _publish(self, step: int) -> None:
        self._client.publish_policy(step, policy_version=f"step-{step}")


def attach(config_file: Path, phases: Path) -> SamplerClient:
    """A client of the actor, which shows in that file what it is at."""
    config = load_config(config_file)
    kafka = config.kafka
    broker = PhasedBroker(kafka.bootstrap, dict(kafka.client), "decision", phases)
    store = PhasedBlobs(config.store, phases)
    return SamplerClient.attach(SAMPLER, config=config, broker=broker, store=store)


def run(trainer: Trainer, stopping: Event) -> None:
    step = trainer.resume()
    while not stopping.is_set():
        step = trainer.train(step)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("config", "journal", "phases", "actor-phases"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    journal = Journal(args.journal)
    with attach(args.config, args.actor_phases) as client:
        stopping = stop_on_signals()  # After Ray, which sets handlers of its own.
        trainer = Trainer(client, journal, phases_of(args.phases), len(journal.given))
        try:
            run(trainer, stopping)
        except Fenced:
            return  # A successor has begun, which its manager starts only where this one sleeps.


if __name__ == "__main__":
    main()
