"""Groups that a program has in hand, and deployments that they are imported into."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from harness.beside_readers import BesideReaders
from harness.kill_points import Armed
from harness.retention import RetentionWorld
from harness.sealing import Crash
from rollstream.consumers import ImportReport, Sealer, write_rollout_groups
from rollstream.consumers.sealing import STEPS
from rollstream.schemas.records import RolloutGroup, RolloutRecord
from rollstream.streams.broker import Broker

SECONDS = 30.0


def rollout(uid: str, **fields: Any) -> RolloutRecord:
    """A rollout of three tokens."""
    given: dict[str, Any] = {
        "environment": "math",
        "example_id": "ex-1",
        "policy_version": "step-0",
        "weight_step": 0,
        "created_ts": 1_700_000_000_000_000,
        "reward": 0.5,
        "prompt_tokens": np.array([1, 2], np.int32),
        "output_tokens": np.array([3, 4, 5], np.int32),
        "logprobs": np.full(3, -0.5, np.float32),
        **fields,
    }
    return RolloutRecord(rollout_uid=uid, **given)


def group(name: str, members: int = 2, **fields: Any) -> RolloutGroup:
    """A group whose rollouts are ``NAME-0``, ``NAME-1``, and of the example ``ex-NAME``."""
    fields = {"example_id": f"ex-{name}", **fields}
    of = [rollout(f"{name}-{index}", **fields) for index in range(members)]
    return RolloutGroup.of("", of, 0)


class ImportWorld(RetentionWorld):
    """Sealers take turns while a program waits for the answer to its import."""

    def put_in(
        self, groups: Iterable[RolloutGroup], *sealers: Sealer, timeout_s: float = 60.0, **more: Any
    ) -> ImportReport:
        def turn() -> None:
            for sealer in sealers:
                self.run(sealer, seconds=0.1)
            self.run(seconds=0.1)

        given: dict[str, Any] = {
            "config": self.config,
            "store": self.blobs,
            "clock": self.clock,
            "timeout_s": timeout_s,
            "broker": BesideReaders(self.logs, turn),
            **more,
        }
        return write_rollout_groups(self.config.store.root, groups, **given)

    def put_in_while_dying(
        self, groups: Iterable[RolloutGroup], arm: Callable[[Broker], Armed]
    ) -> tuple[ImportReport, int]:
        """The same, while the first sealer is built from what ``arm`` makes of its broker, and all
        later ones are whole; how many died, too."""
        alive: list[tuple[Sealer, Broker]] = []
        died = 0

        def turn() -> None:
            nonlocal died
            try:
                if not alive:
                    own = self.new_broker()
                    armed = Armed(own, self.blobs, STEPS) if died else arm(own)
                    sealer = self.sealer(broker=armed.broker, store=armed.blobs, steps=armed.steps)
                    alive.append((sealer, own))
                self.run(alive[0][0], seconds=0.1)
            except Crash:
                died += 1
                alive.pop()[1].close()  # What the group's session time-out does.

        broker = BesideReaders(self.logs, turn)
        report = self.put_in(groups, broker=broker)
        for _ in range(300):
            turn()
        for sealer, _ in alive:
            sealer.close()
        return report, died

    def staged(self) -> list[str]:
        """The files under ``staging/``."""
        return [blob.path for blob in self.blobs.list("staging/")]
