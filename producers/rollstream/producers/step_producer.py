"""``StepProducer``: single steps of trajectories, from writers that hold no trajectory open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol


class Step(NamedTuple):
    """One step of a trajectory: what the policy saw, and what it answered.

    Attributes:
        prompt_ids: token ids of the whole context that the policy saw.
        response_ids: token ids that it sampled.
        reward: of this step; None: it has none, and the trajectory's return is the sum of others'.
        trajectory_uid: unique among all; with ``step_index`` it makes a retry harmless.
        prompt_uid: of the prompt whose trajectories make one group.
        step_index: from 0, without gaps.
        policy_version: of the weights that sampled.
        weight_step: optimizer steps behind them; −1: not known, and no bound on lag holds.
        is_last: whether the trajectory ends with it.
        n_rollouts: trajectories of this prompt; counts with the first step of the group that says
            it; None: the environment's ``target_group_size``.
        logprobs: of ``response_ids``, under the policy that sampled.
        metadata: whatever JSON can hold.
    """

    prompt_ids: Any
    response_ids: Any
    reward: float | None
    trajectory_uid: str
    prompt_uid: str
    step_index: int
    policy_version: str
    weight_step: int
    is_last: bool = False
    n_rollouts: int | None = None
    logprobs: Any = None
    metadata: Mapping[str, Any] | None = None
    policy_epoch: int = 0
    lineage: str = ""
    example_id: str = ""


class StepWriter(Protocol):
    """What ``StepProducer`` and, awaited, ``AsyncStepProducer`` do. Neither ever waits for readers.

    Where ``max_open_prompts`` prompts that this writer began have not ended, a step that begins
    another raises ``BufferFull``, and nothing is dropped; so does a full send buffer, at once.
    """

    def submit_step(self, step: Step, *, environment: str) -> None:
        """Publishes a step; a repeated one counts once. ``InvalidRollout`` names what is wrong."""

    def submit_steps(self, steps: Iterable[Step], *, environment: str) -> None:
        """All of them, or, where one is invalid, none: the error names its index."""

    def complete_trajectory(
        self, trajectory_uid: str, *, environment: str, prompt_uid: str = ""
    ) -> None:
        """The trajectory has ended with the newest step that was submitted.

        Args:
            prompt_uid: may be left out where this writer has submitted its steps.

        Raises:
            InvalidRollout: this writer does not know the trajectory and no prompt is named.
        """
