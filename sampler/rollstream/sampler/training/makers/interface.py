"""``BatchMaker``: which rollouts are trained on at a step, and with which advantages. Pure."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollstream.sampler.arguments import array, indices
from rollstream.sampler.errors import InvalidRequest
from rollstream.sampler.training.examples.advantages import as_float32
from rollstream.schemas.digest import combined
from rollstream.schemas.events import ServedScore

NOT_CHOSEN = "not_chosen"
"""Why trajectories are filtered for which a maker names no reason."""


class NotAskedFor(Mapping[str, Any]):
    """Stands for metadata that the batch does not have."""

    def _refuse(self, *_: Any) -> Any:
        raise InvalidRequest(
            "metadata of a rollout was not asked for; give TrainingBatches(…, "
            "columns=['metadata']), or next_batch(…, columns=['metadata'])"
        )

    __getitem__ = __iter__ = __len__ = _refuse

    def __repr__(self) -> str:
        return "<metadata that was not asked for>"


class Rollout(NamedTuple):
    """A trajectory as a maker sees it, without its tokens.

    Attributes:
        trajectory: its index in the batch.
        group: index of its group in the batch.
        environment: of its rollouts.
        example_id: of its rollouts.
        weight_step: of its newest segment; -1: not known.
        policy_version: of its newest segment.
        reward: its return: the sum of what its segments earned.
        tokens: of all its segments, prompts included.
        used: whether an earlier step trained on it or left it out. It is here since advantages of
            its group need it; no batch may have it again.
        carried: whether an earlier step had its group.
        policy_epoch: of its newest segment; weights of a later one are newer, whatever their step.
        output_tokens: of all its segments, without prompts.
        stop_reason: of its newest segment; ``"length"``: it ran into its limit.
        reward_components: name to value, the sum over its segments.
        scores: the late scores of its rewards, each with scorer, version and flags; empty: it has
            the rewards that it was published with.
        metadata: of its newest segment, if ``columns`` asked for ``metadata``; else reading it
            raises ``InvalidRequest``.
    """

    trajectory: int
    group: int
    environment: str
    example_id: str
    weight_step: int
    policy_version: str
    reward: float
    tokens: int
    used: bool = False
    carried: bool = False
    policy_epoch: int = 0
    output_tokens: int = 0
    stop_reason: str = ""
    reward_components: Mapping[str, float] = MappingProxyType({})
    scores: tuple[ServedScore, ...] = ()
    metadata: Mapping[str, Any] = MappingProxyType({})

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of its scores."""
        return tuple(flag for score in self.scores for flag in score.flags)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class MadeBatch:
    """The trajectories that a step trains on.

    Each trajectory that was added and is not ``used`` is either trained on, kept or filtered.

    Attributes:
        trajectories: int32 [n], indices in the batch, in the order of training.
        advantages: float32 [n], one each.
        kept: int32 [k], indices of trajectories that a later step may train on: they are carried.
        filtered: reason to the number of trajectories that nobody will train on.
        filtered_groups: int32 [g], indices of groups of which nothing is trained on or kept.
    """

    trajectories: NDArray[np.int32]
    advantages: NDArray[np.float32]
    kept: NDArray[np.int32]
    filtered: Mapping[str, int] = field(default_factory=dict)
    filtered_groups: NDArray[np.int32]

    def __repr__(self) -> str:
        """One line."""
        return (
            f"{type(self).__name__}(trained {len(self.trajectories):,}, kept {len(self.kept):,}, "
            f"filtered {sum(self.filtered.values()):,})"
        )

    def digest(self) -> bytes:
        """xxh3-128 over all of it, the same on every machine."""
        arrays = (
            self.trajectories.astype("<i4"),
            self.advantages.astype("<f4"),
            self.kept.astype("<i4"),
            self.filtered_groups.astype("<i4"),
        )
        sizes = [len(array) for array in arrays]
        told = json.dumps([sizes, dict(self.filtered)], sort_keys=True)
        return combined([told.encode(), *(array.tobytes() for array in arrays)])

    @staticmethod
    def of(
        rollouts: Sequence[Rollout],
        advantages: ArrayLike,
        *,
        trained: Sequence[int] | NDArray[np.int64],
        kept: Sequence[int] | NDArray[np.int64] = (),
        filtered: Mapping[str, int] | None = None,
    ) -> MadeBatch:
        """Returns the batch that trains on these rollouts, by their indices in the list.

        Args:
            rollouts: that were added.
            advantages: [rollouts], of each in the list.
            trained: indices, in the order of training.
            kept: indices of those that a later step may train on.
            filtered: reason to the number of the others; the rest count as ``not_chosen``.

        Raises:
            InvalidRequest: an index is of no rollout in the list, there is not one advantage for
                each, or one that is trained on is no finite number.
        """
        at, stay = indices("trained", trained, len(rollouts)), indices("kept", kept, len(rollouts))
        of_rollouts = array(advantages)
        if of_rollouts.shape != (len(rollouts),) or of_rollouts.dtype.kind not in "fiu":
            raise InvalidRequest(
                f"advantages are {of_rollouts.dtype} {list(of_rollouts.shape)}; give a number for "
                f"each of the {len(rollouts)} rollouts in the list"
            )
        trajectories, groups = (
            np.array([rollout[column] for rollout in rollouts], np.int32) for column in (0, 1)
        )
        reasons = {reason: count for reason, count in (filtered or {}).items() if count}
        unused = sum(not rollout.used for rollout in rollouts)
        if others := unused - len(at) - len(stay) - sum(reasons.values()):
            reasons[NOT_CHOSEN] = reasons.get(NOT_CHOSEN, 0) + others
        return MadeBatch(
            trajectories=trajectories[at],
            advantages=as_float32("advantages", of_rollouts[at]),
            kept=trajectories[stay],
            filtered=reasons,
            filtered_groups=np.setdiff1d(groups, groups[np.concatenate((at, stay))]),
        )


class BatchMaker(ABC):
    """Chooses the trajectories of a step and their advantages. Subclass it for a choice of your
    own.

    A maker does no I/O, knows no clock, and draws from its seed and the step alone. So the same
    rollouts in the same order give the same batch.

    A step calls ``begin(step)``, ``add_rollout`` for each trajectory of the batch (carried ones
    last), then ``create_batch``. Keep nothing in the maker from step to step. Trajectories in
    ``MadeBatch.kept`` are recorded, and come again as rollouts of the next step, after a crash too.

    Your maker has ``create_batch``, and ``settings`` if it has arguments.
    docs/guides/batch_makers.md shows one. ``make_batch`` with a batch in hand checks its result.

    Attributes:
        step: that was begun.
        rollouts: that were added since.
    """

    step: int
    rollouts: list[Rollout]

    @property
    def settings(self) -> Mapping[str, object]:
        """The maker's name, version and arguments, as JSON can hold them; by default the class's
        name.

        They are recorded with each step, so a repeated call with other settings is refused.
        """
        return {"maker": type(self).__qualname__}

    @property
    def mix(self) -> Mapping[str, float] | None:
        """The shares by environment with which ``TrainingBatches`` asks for groups; None: it has no
        wish.
        """
        return None

    @abstractmethod
    def create_batch(self, batch_size: int) -> MadeBatch:
        """Returns at most ``batch_size`` trajectories, or none if there is nothing to train on.

        It may be asked again for the same step, also for another size.
        """

    def __repr__(self) -> str:
        """One line."""
        settings = [f"{name}={value!r}" for name, value in self.settings.items() if name != "maker"]
        return f"{type(self).__name__}({', '.join(settings)})"

    def begin(self, step: int) -> None:
        """Begins a step, and forgets the rollouts of the step before."""
        self.step, self.rollouts = step, []

    def add_rollout(self, rollout: Rollout) -> None:
        """Adds a rollout to choose from."""
        self.rollouts.append(rollout)

    def get_batch_metadata(self, batch: MadeBatch) -> Mapping[str, float]:
        """Returns a flat dict for any logger.

        Numbers of trajectories: ``trained``, ``kept`` and ``filtered/<reason>``;
        ``filtered_groups``; and ``advantage/mean``, ``std``, ``min`` and ``max`` of what is trained
        on.
        """
        metadata = {
            "trained": float(len(batch.trajectories)),
            "kept": float(len(batch.kept)),
            "filtered_groups": float(len(batch.filtered_groups)),
        }
        metadata |= {f"filtered/{reason}": float(n) for reason, n in batch.filtered.items()}
        if len(batch.advantages):
            for name in ("mean", "std", "min", "max"):
                metadata[f"advantage/{name}"] = float(getattr(batch.advantages, name)())
        return metadata
