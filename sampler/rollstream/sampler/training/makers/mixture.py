"""``StableMixtureBatchMaker``: makers by environment, in stable shares. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from rollstream.sampler import arguments
from rollstream.sampler.arguments import at_least
from rollstream.sampler.errors import InvalidRequest
from rollstream.sampler.training.makers.interface import BatchMaker, MadeBatch, Rollout
from rollstream.sampler.training.makers.made import check_made
from rollstream.sampler.training.makers.rollouts import a_maker


@dataclass(frozen=True, slots=True, eq=False, kw_only=True, repr=False)
class MixedBatch(MadeBatch):
    """The batch that a mixture made.

    Attributes:
        parts: by environment, the batch that its maker made.
        lacking: by environment, how many trajectories it lacks of its share.
    """

    parts: Mapping[str, MadeBatch]
    lacking: Mapping[str, int]


class StableMixtureBatchMaker(BatchMaker):
    """Mixes the makers of several environments in stable shares.

    Over all steps, the number of an environment's trajectories stays within one of its exact share,
    if ``batch_size`` stays the same. If an environment has less than its share, the others fill the
    step in the ratio of their shares. The missing part is in the metadata, and is not made up
    later. Trajectories of the environments take turns in the batch.

    Args:
        makers: by environment, one for each that the sampler serves. If an environment of the
            sampler has none, ``TrainingBatches`` warns or raises.
        shares: by environment, above 0; only their ratio counts.
    """

    def __init__(self, makers: Mapping[str, BatchMaker], shares: Mapping[str, float]) -> None:
        found = arguments.shares("shares", shares)
        if not isinstance(makers, Mapping):
            raise InvalidRequest(
                f"makers is {makers!r:.200}; give a mapping of environments to makers, for example "
                "{'math': GrpoBatchMaker(), 'code': RlooBatchMaker()}"
            )
        makers = {arguments.text("a name in makers", name): makers[name] for name in makers}
        if found.keys() != makers.keys():
            raise InvalidRequest(
                f"makers are for {sorted(makers)} and shares for {sorted(found)}; give one of both "
                "for each environment"
            )
        for environment, maker in makers.items():
            a_maker(f"the maker for {environment}", maker)
        if len({id(maker) for maker in makers.values()}) < len(makers):
            raise InvalidRequest(
                f"makers has one object for several of {sorted(makers)}; make one for each, since "
                "a maker has the rollouts of its own environment alone"
            )
        for environment, share in found.items():
            if not share:
                raise InvalidRequest(
                    f"shares gives {environment} {share}; give a number above 0, or leave it out"
                )
        self._makers = dict(sorted(makers.items()))
        written = {name: Fraction(str(found[name])) for name in self._makers}  # 0.7 is 7/10.
        self._shares = {name: one / sum(written.values()) for name, one in written.items()}

    @property
    def settings(self) -> Mapping[str, object]:
        """The maker's name, version and arguments, and those of its makers."""
        return {
            "maker": "stable_mixture",
            "version": 1,
            "shares": {name: str(share) for name, share in self._shares.items()},
            "makers": {name: maker.settings for name, maker in self._makers.items()},
        }

    @property
    def mix(self) -> Mapping[str, float]:
        """The shares, which add up to 1."""
        return {name: float(share) for name, share in self._shares.items()}

    def begin(self, step: int) -> None:
        """Forgets the rollouts of the step before, in every maker."""
        super().begin(step)
        for maker in self._makers.values():
            maker.begin(step)

    def add_rollout(self, rollout: Rollout) -> None:
        """Gives the rollout to its environment's maker.

        Raises:
            InvalidRequest: its environment has no maker.
        """
        maker = self._makers.get(rollout.environment)
        if maker is None:
            raise InvalidRequest(
                f"environment {rollout.environment!r} has no maker; makers are for "
                f"{sorted(self._makers)}. Give it one, or ask for a mix without it"
            )
        super().add_rollout(rollout)
        maker.add_rollout(rollout)

    def check_batch_size(self, size: int) -> None:
        """Raises ``InvalidRequest`` if an environment's share is below one trajectory a step."""
        smallest = min(self._shares, key=lambda name: self._shares[name])
        if 0 < self._shares[smallest] * size < 1:
            raise InvalidRequest(
                f"batch_size {size} gives {smallest}, whose share is "
                f"{float(self._shares[smallest]):.3g}, less than one trajectory a step; give at "
                f"least {-(-1 // self._shares[smallest])}, or a larger share"
            )

    def create_batch(self, batch_size: int) -> MixedBatch:
        """Returns the batch of the step; see ``BatchMaker.create_batch``. It raises as
        ``check_batch_size`` does.
        """
        size = at_least("batch_size", batch_size, 0)
        self.check_batch_size(size)
        due = self._due(size)
        parts = {name: self._part(name, due[name]) for name in self._makers}
        if any(len(part.trajectories) < due[name] for name, part in parts.items()):
            there = {name: len(self._part(name, size).trajectories) for name in self._makers}
            sizes = self._filled(due, there, size)
            parts = {name: self._part(name, sizes[name]) for name in self._makers}
        trained = {name: len(part.trajectories) for name, part in parts.items()}
        made = list(parts.values())
        filtered = sum((Counter(part.filtered) for part in made), Counter[str]())
        # By how much of its part lies before it, each trajectory finds its turn.
        turns = np.concatenate([(np.arange(n) + 0.5) / n for n in trained.values()])
        order = np.argsort(turns, kind="stable")
        return MixedBatch(
            trajectories=np.concatenate([part.trajectories for part in made])[order],
            advantages=np.concatenate([part.advantages for part in made])[order],
            kept=np.concatenate([part.kept for part in made]),
            filtered=dict(filtered),
            filtered_groups=np.concatenate([part.filtered_groups for part in made]),
            parts=parts,
            lacking={name: max(due[name] - trained[name], 0) for name in parts},
        )

    def get_batch_metadata(self, batch: MadeBatch) -> Mapping[str, float]:
        """Returns the figures of the interface, the same of each environment as
        ``<environment>/…``, and ``<environment>/lacking``: how many trajectories it lacks of its
        share.
        """
        metadata = dict(super().get_batch_metadata(batch))
        if isinstance(batch, MixedBatch):
            for name, part in batch.parts.items():
                metadata[f"{name}/lacking"] = float(batch.lacking[name])
                of_part = self._makers[name].get_batch_metadata(part)
                metadata |= {f"{name}/{key}": value for key, value in of_part.items()}
        return metadata

    def _part(self, environment: str, size: int) -> MadeBatch:
        """What its maker makes for an environment, of this size at most."""
        maker = self._makers[environment]
        rollouts = [rollout for rollout in self.rollouts if rollout.environment == environment]
        return check_made(maker, rollouts, maker.create_batch(size), size)

    def _due(self, size: int) -> dict[str, int]:
        """What each environment is to have of this step."""
        before, after = (_apportioned(self._shares, n * size) for n in (self.step, self.step + 1))
        return {name: after[name] - before[name] for name in self._shares}

    def _filled(
        self, due: Mapping[str, int], there: Mapping[str, int], size: int
    ) -> dict[str, int]:
        """What each environment has of this step: what is due and there, and of the others what is
        lacking."""
        sizes = {name: min(due[name], there[name]) for name in due}
        while missing := size - sum(sizes.values()):
            more = {name: self._shares[name] for name in due if sizes[name] < there[name]}
            if not more:
                break
            for name, number in _apportioned(more, missing).items():
                sizes[name] = min(sizes[name] + number, there[name])
        return sizes


def _apportioned(shares: Mapping[str, Fraction], total: int) -> dict[str, int]:
    """So many in these shares, each within one of exact: by largest remainder (Hamilton), of equal
    ones that of the first."""
    exact = {name: share * total / sum(shares.values()) for name, share in shares.items()}
    numbers = {name: int(number) for name, number in exact.items()}
    by_remainder = sorted(exact, key=lambda name: numbers[name] - exact[name])
    for name in by_remainder[: total - sum(numbers.values())]:
        numbers[name] += 1
    return numbers
