"""The public methods that look at groups and decide nothing, for trainers and views alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import SupportsFloat, SupportsIndex

from rollstream.sampler.arguments import (
    group_ids,
    number,
    shares,
    texts,
    version_given,
    whole_number,
)
from rollstream.sampler.deciding.choose import Asked, Grouping
from rollstream.sampler.deciding.command import Command, R
from rollstream.sampler.deciding.evaluation import PASSING, AskEvaluations, Evaluation
from rollstream.sampler.deciding.queries import AskBatch, BatchSummary, Flush
from rollstream.sampler.deciding.requests import check_chosen_by
from rollstream.sampler.deciding.sampling import GROUPS_MAX, GroupSummary, ReadGroups, SampleGroups
from rollstream.sampler.errors import InvalidRequest
from rollstream.schemas.choosing import Recency
from rollstream.schemas.other_names import refuses
from rollstream.schemas.records import RolloutGroup
from rollstream.streams.folds.sampler.eligible import Accept


class LooksAtGroups(ABC):
    """A sampler as seen by who decides nothing. Nothing here claims, writes or fences."""

    @abstractmethod
    def _ask(self, command: Command[R]) -> R: ...

    def batch_summary(self, step: SupportsIndex) -> BatchSummary | None:
        """The batch of ``step`` without its rows; None: none is held, as of a step that was not
        served, or that has more than 512 final ones after it."""
        return self._ask(AskBatch(step=whole_number("step", step)))

    @refuses(rng_seed="seed")
    def sample_groups(
        self,
        num_groups: SupportsIndex,
        *,
        seed: SupportsIndex | None = None,
        start_offset: SupportsIndex = 0,
        recency_weighting: Recency | None = None,
        alpha: SupportsFloat | None = None,
        on_policy_fraction: SupportsFloat | None = None,
        prefer_policy_versions: Iterable[str] | None = None,
        max_policy_lag: SupportsIndex | None = None,
        recent_n_versions: SupportsIndex | None = None,
        grouping: Grouping = "mixed",
        policy_version: str | None = None,
        accept: Accept | None = None,
        mix: Mapping[str, float] | None = None,
    ) -> tuple[GroupSummary, ...]:
        """The groups that ``next_batch`` would have, in the order of its slots: what it records is
        what this returns for the same state, arguments and, where rollouts have a limit of age,
        time. Decides nothing, and returns the same until something is sealed or decided.

        Args:
            num_groups: how many.
            seed: of the draws of ``recency`` linear or exp, and of ``reward_weighting`` spread.
                With both at their default, ``uniform``, nothing is drawn, and it changes nothing.
                This and the settings below are those of ``[samplers.<name>]`` where they are None.
            start_offset: examples that are passed over before the first; they come last. Groups,
                where ``recency`` draws them or ``order`` is ready. A multiple of ``num_groups``
                shows what would come later.
            recency_weighting: ``uniform``, ``linear`` or ``exp``; the configuration's ``recency``.
            alpha: power of its weights.
            on_policy_fraction: least share of the newest policy: of the newest that was published,
                or where none was, of the newest that is ready.
            prefer_policy_versions: published versions whose groups come first.
            max_policy_lag: groups of older or unknown weights are left out; negative: none is.
            recent_n_versions: groups of versions before so many that were published last are left
                out. Before the first was published each step counts as a version.
            grouping: ``strict`` leaves out groups that several policies sampled.
            policy_version: only groups that this published version alone sampled; None: any.
            accept: as in ``next_batch``, and so ``mix``.

        Raises:
            NotEnoughGroups: so many are not there now; nothing is waited for.
            InvalidRequest: an argument is none that could be satisfied, or names a version that was
                never published.
        """
        asked = Asked(
            num_groups=whole_number("num_groups", num_groups),
            step=0,
            mix=None if mix is None else shares("mix", mix),
            accept=accept,
            grouping=grouping,
            start_offset=whole_number("start_offset", start_offset),
            seed=None if seed is None else whole_number("seed", seed),
            policy_version=version_given(policy_version),
        )
        check_chosen_by(asked)
        whole = {"max_policy_lag": max_policy_lag, "recent_n_versions": recent_n_versions}
        real = {"alpha": alpha, "on_policy_fraction": on_policy_fraction}
        settings: dict[str, object] = {
            **{name: whole_number(name, one) for name, one in whole.items() if one is not None},
            **{name: number(name, one) for name, one in real.items() if one is not None},
        }
        if recency_weighting is not None:
            settings["recency"] = recency_weighting
        if prefer_policy_versions is not None:
            versions = texts("prefer_policy_versions", prefer_policy_versions)
            settings["prefer_policy_versions"] = versions
        return self._ask(SampleGroups(asked=asked, settings=settings))

    def get_groups(self, groups: Iterable[str]) -> tuple[RolloutGroup, ...]:
        """Groups with all fields of their rollouts, in the order of the ids: those that are ready,
        that wait, or that are in a batch which is held. Read from the store.

        Args:
            groups: their ids, up to 1,024, as files, batches and ``sample_groups`` have them.

        Raises:
            InvalidRequest: an id is none, or of no group that the sampler holds.
            BlobMissing, CorruptFile: a group's file is missing or damaged.
        """
        ids = group_ids("groups", groups)
        if len(ids) > GROUPS_MAX:
            raise InvalidRequest(
                f"groups has {len(ids)} ids; ask for up to {GROUPS_MAX} at a time, since their "
                "rows are in memory together"
            )
        return self._ask(ReadGroups(group_ids=ids))

    def evaluations(self, *, passing: SupportsFloat = PASSING) -> tuple[Evaluation, ...]:
        """What rollouts of split ``eval`` earned, by environment and policy, oldest policies first;
        of every group that was sealed in the sampler's environments, also after its files were
        retired. They are never served, so nothing of it changes what is trained on.

        Args:
            passing: the least return with which a trajectory counts as passed.

        Raises:
            InvalidRequest: ``passing`` is no finite number.
        """
        return self._ask(AskEvaluations(passing=number("passing", passing)))

    def flush(self) -> None:
        """Returns once everything that was sealed before is known, so that ``stats`` and
        ``sample_groups`` see it, and every decision that this sampler made stands in a file under
        ``batches/``. No decision waits for it: each is in the log before its call returns.

        Raises:
            StoreAway: the files were not written within ``kafka.timeout_s``.
        """
        return self._ask(Flush())
