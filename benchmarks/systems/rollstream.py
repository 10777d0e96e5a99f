"""Rollstream end to end: ``RolloutProducer``, ``rollstream seal``, ``SamplerClient`` over Ray."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.scenarios import GROUPS_PER_BATCH, Scenario
from benchmarks.systems.interface import START_TIMEOUT_S, STOP_TIMEOUT_S, Services, Source
from benchmarks.workload import ENVIRONMENT, Rollout, Workload
from rollstream.producers import Group, RolloutProducer, RunOver

# A step takes some 50 ms here, and what was begun is known up to a second later.
_ADMISSION = f"groups_per_step = {GROUPS_PER_BATCH}\ntarget_policy_lag = 32\n"


class RollstreamPublisher:
    """Publishes rollouts that name their group."""

    def __init__(self, bootstrap: str, number: int, group_size: int) -> None:
        self._producer = RolloutProducer(
            bootstrap, environment=ENVIRONMENT, replica_id=f"replica-{number}"
        )
        self._group_size = group_size

    def publish(self, rollout: Rollout) -> None:
        self._producer.publish(
            example_id=rollout.example_id,
            group_uid=rollout.group_uid,
            group_size=self._group_size,
            **_member(rollout),
        )

    def idle(self) -> None:
        """The producer sends by itself."""

    def close(self) -> None:
        self._producer.flush(STOP_TIMEOUT_S)
        self._producer.close()


class GroupPublisher(RollstreamPublisher):
    """Publishes groups in ``dispatch`` blocks; the members of one come one after another.

    Args:
        admission: whether blocks begin when the sampler admits them, and ask for the policy.
    """

    def __init__(self, bootstrap: str, number: int, group_size: int, admission: bool) -> None:
        super().__init__(bootstrap, number, group_size)
        self._admission = admission
        if admission:
            self._producer.policy(timeout_s=START_TIMEOUT_S)  # Before it nothing is limited.
        self._block = ExitStack()
        self._group: Group | None = None
        self._published = 0

    def publish(self, rollout: Rollout) -> None:
        if self._group is None:
            try:
                self._group = self._begin(rollout)
            except RunOver:  # It waited; nobody limits it any more.
                self._group = self._begin(rollout)
            if self._admission:
                self._producer.policy()
        self._group.publish(**_member(rollout))
        self._published += 1
        if self._published % self._group_size == 0:
            self._block.close()
            self._group = None

    def _begin(self, rollout: Rollout) -> Group:
        block = self._producer.dispatch(
            example_id=rollout.example_id,
            group_uid=rollout.group_uid,
            group_size=self._group_size,
        )
        return self._block.enter_context(block)


def _member(rollout: Rollout) -> dict[str, Any]:
    """What ``publish`` is given of a member of any group."""
    member = {
        "rollout_uid": rollout.uid,
        "policy_version": rollout.policy_version,
        "weight_step": rollout.weight_step,
        "prompt_tokens": rollout.prompt,
        "output_tokens": rollout.output,
        "logprobs": rollout.logprobs,
        "reward": rollout.reward,
        "stop_reason": "stop",
    }
    return {**member, "token_arrays": rollout.token_arrays} if rollout.token_arrays else member


@dataclass(frozen=True)
class Rollstream:
    """Without a bound on lag, since rollouts name their weights in advance.

    Attributes:
        admission: whether its trainer publishes policies, so that workers begin what is admitted.
    """

    name: str = "rollstream"
    admission: bool = False

    def missing(self) -> str | None:
        return None

    def services(self, folder: Path, scenario: Scenario) -> AbstractContextManager[Services]:
        interval_s = scenario.flush_interval_s
        part = _part("services")
        services: AbstractContextManager[Services] = part.services(
            folder,
            environment="" if interval_s is None else f"flush_interval_s = {interval_s}\n",
            sampler=part.ANY_LAG + (_ADMISSION if self.admission else ""),
        )
        return services

    def publisher(self, address: str, number: int, workload: Workload) -> RollstreamPublisher:
        bootstrap, _, _ = address.partition(" ")
        scenario = workload.scenario
        if scenario.in_groups:
            return GroupPublisher(bootstrap, number, scenario.group_size, self.admission)
        return RollstreamPublisher(bootstrap, number, scenario.group_size)

    def source(self, address: str, workload: Workload) -> Source:
        _, _, config = address.partition(" ")
        part = _part("source")
        source: Source = part.RollstreamSource(Path(config), workload.scenario, self.admission)
        return source


Admitted = partial(Rollstream, name="admitted", admission=True)


def _part(name: str) -> Any:
    """Loads a part where it runs: an env replica has no Ray, pyarrow or pydantic in memory."""
    return import_module(f"benchmarks.systems.rollstream_{name}")
