"""``Examples``: what a loss is computed from, as columns; ``RLExample``: one of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rollstream.sampler.shaping.advantages import Advantage
from rollstream.sampler.shaping.batch import Batch


class RLExample(NamedTuple):
    """One sequence to train on; the arrays are views, each with a value for every position.

    Attributes:
        tokens: int32 [pos], prompt first.
        loss_mask: bool [pos]; True at the tokens that the loss counts.
        advantage: float32 [pos]; 0 where ``loss_mask`` is False.
        generator_log_probs: float32 [pos], under the policy that sampled; 0 where ``loss_mask`` is
            False; NaN where it is True and the rollout was published without any.
    """

    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    advantage: NDArray[np.float32]
    generator_log_probs: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class Examples:
    """Sequences to train on, one after the other; the same batch and arguments give the same bytes.

    Example ``i`` is ``tokens[offsets[i]:offsets[i + 1]]``; n is the number of examples and total
    the number of tokens.

    Attributes:
        tokens: int32 [total].
        offsets: int64 [n + 1].
        loss_mask: bool [total], advantages: float32 [total], generator_log_probs: float32 [total];
            as in ``RLExample``.
        token_arrays: name to [total, …]: what else the batch has for each token, among it
            ``actor_logprobs``, ``ref_logprobs``, ``token_rewards`` and ``token_weight_steps`` where
            it was asked for them.
        rows: int64 [n], the row of the batch that each was made of; of turns that were merged into
            one sequence, the last of their rows.
        trajectories: int32 [n], the index of its trajectory in the batch.
        weight_steps: int64 [n]; optimizer steps behind the weights that sampled; -1: not known.
        policy_versions: [n].
    """

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]
    loss_mask: NDArray[np.bool_]
    advantages: NDArray[np.float32]
    generator_log_probs: NDArray[np.float32]
    token_arrays: Mapping[str, NDArray[Any]]
    rows: NDArray[np.int64]
    trajectories: NDArray[np.int32]
    weight_steps: NDArray[np.int64]
    policy_versions: tuple[str, ...]

    @classmethod
    def of(
        cls,
        batch: Batch,
        advantages: Advantage | NDArray[np.float32] = "rloo",
        *,
        rows: Sequence[int] | NDArray[np.int64] | None = None,
        merge_turns: bool = False,
    ) -> Self:
        """The examples of a batch, in the order of ``rows``; None: all rows, in the batch's order.

        Args:
            advantages: how they are computed from the groups' returns; or float32 [trajectories],
                as ``advantages_of`` returns them or somebody else computed them.
            merge_turns: makes one example of turns of a trajectory whose prompts extend one
                another, so that no token is there twice; what does not extend stays apart.

        Raises:
            InvalidRequest: a row is none of the batch's, the name of an advantage is unknown, or an
                array of them has another shape.
        """
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> RLExample:
        """One example; its arrays are views."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[RLExample]:
        return map(self.__getitem__, range(len(self)))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each example, int64 [n]."""
        return np.diff(self.offsets)
