"""The trainer's side of Rollstream, the loop that its users write."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import ray

from benchmarks.scenarios import Scenario
from benchmarks.systems.interface import TAKE_TIMEOUT_S, Packed, Taken
from benchmarks.systems.ray_cluster import DAEMONS
from rollstream.sampler import Batch, SamplerClient

SAMPLER = "trainer"
CHECKPOINT_EVERY = 16  # Steps.


class RollstreamSource:
    """Publishes a policy a step where workers wait for ``admission``."""

    def __init__(self, config: Path, scenario: Scenario, admission: bool) -> None:
        self._scenario = scenario
        self._client = SamplerClient.attach(SAMPLER, config=config)
        self._step = self._client.resume(None)
        self._admission = admission
        self._publish_policy()
        self._newest: Batch | None = None
        # Requests the next batch while this one is trained on.
        self._ahead = ThreadPoolExecutor(1)
        self._coming: Future[Batch] | None = None

    def take(self) -> Taken:
        """Acknowledges the batch before, which has been trained on."""
        if self._newest is not None:
            self._client.ack(self._newest)
            if self._step % CHECKPOINT_EVERY == 0:
                self._client.checkpointed(self._step - 1)
            self._publish_policy()
        batch = (self._coming or self._ask()).result()
        self._newest = batch
        self._step += 1
        self._coming = self._ask()
        packed = Packed(
            tokens=batch.tokens,
            offsets=batch.offsets,
            prompt_lengths=batch.prompt_lengths,
            loss_mask=batch.loss_mask,
            logprobs=batch.logprobs,
            rewards=batch.rewards,
            group_index=batch.group_index,
            token_arrays=batch.token_arrays,
        )
        return Taken(batch.uids, packed)

    def _ask(self) -> Future[Batch]:
        step = self._step
        return self._ahead.submit(
            self._client.next_batch,
            step,
            self._scenario.groups_per_batch,
            timeout_s=TAKE_TIMEOUT_S,
            columns=self._scenario.columns,
        )

    def _publish_policy(self) -> None:
        if self._admission:
            self._client.publish_policy(self._step, policy_version=f"step-{self._step}")

    def pids(self) -> Mapping[str, int]:
        actor = self._client.stats().pid
        # The Ray that it runs in is another process's child.
        siblings = [p for raylet in psutil.Process(actor).parents()[:2] for p in raylet.children()]
        daemons = {p.name(): p.pid for p in siblings if p.name() in DAEMONS}
        return {"sampler": actor, **daemons}

    def close(self) -> None:
        self._client.close()  # Ends the pending request, too.
        self._ahead.shutdown()
        ray.shutdown()
