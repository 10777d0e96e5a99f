"""The public methods that look at groups and decide nothing, for trainers and views alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import SupportsFloat, SupportsIndex

from rollstream.folds.group.eligible import Accept
from rollstream.sampler.api.asking import Asks
from rollstream.sampler.arguments import (
    group_ids,
    number,
    shares,
    texts,
    version_given,
    whole_number,
)
from rollstream.sampler.decide.choosing.choose import Asked, Grouping
from rollstream.sampler.decide.choosing.requests import check_chosen_by
from rollstream.sampler.decide.queries.evaluation import PASSING, AskEvaluations, Evaluation
from rollstream.sampler.decide.queries.looks import (
    AskBatch,
    AskStats,
    BatchSummary,
    Flush,
    SamplerStats,
)
from rollstream.sampler.decide.queries.progress import AskProgress, Progress
from rollstream.sampler.decide.queries.sampling import (
    GROUPS_MAX,
    GroupSummary,
    ReadGroups,
    SampleGroups,
)
from rollstream.sampler.errors import InvalidRequest
from rollstream.schemas.choosing import Recency
from rollstream.schemas.other_names import refuses
from rollstream.schemas.records import RolloutGroup


class LooksAtGroups(Asks):
    """Methods that look at groups. They claim and write nothing, and fence nobody."""

    def stats(self) -> SamplerStats:
        """Returns figures of the sampler: who decides, what is ready, what waits, what was served.
        Claims nothing.
        """
        return self._ask(AskStats())

    def progress(self) -> Progress:
        """Returns what became of examples: what a data loader needs to resume. Claims nothing."""
        return self._ask(AskProgress())

    def batch_summary(self, step: SupportsIndex) -> BatchSummary | None:
        """Returns the batch of ``step`` without its rows; None: the step was not served, or more
        than 512 final steps came after it.
        """
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
        """Returns the groups that ``next_batch`` would serve, in the order of its slots.

        It decides nothing and does not wait. ``next_batch`` records the same groups for the same
        state, arguments and, with a limit of age in seconds, time. Settings that are None are those
        of ``[samplers.<name>]``.

        Args:
            num_groups: how many.
            seed: of the draws of ``recency`` linear or exp, and of ``reward_weighting`` spread. It
                changes nothing if both are ``uniform``, the default.
            start_offset: how many examples are passed over at first; they come last. Groups, if
                ``recency`` draws or ``order`` is ready. A multiple of ``num_groups`` shows what
                comes later.
            recency_weighting: ``uniform``, ``linear`` or ``exp``; the configuration's ``recency``.
            alpha: power of its weights.
            on_policy_fraction: least share of the newest published policy, or if none was
                published, of the newest that is ready.
            prefer_policy_versions: published versions whose groups come first.
            max_policy_lag: groups of older or unknown weights are left out; negative: none is.
            recent_n_versions: groups older than the last so many published versions are left out.
            grouping: ``strict`` leaves out groups that several policies sampled.
            policy_version: only groups that this published version alone sampled; None: any.
            accept: as in ``next_batch``.
            mix: as in ``next_batch``.

        Raises:
            NotEnoughGroups: so many are not there now.
            InvalidRequest: an argument makes no sense, or names a version that was never published.
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
        """Returns groups with all fields of their rollouts, in the order of the ids.

        They may be ready, may wait, or may be in a batch that is held. They are read from the
        store.

        Args:
            groups: their ids, up to 1,024, as files, batches and ``sample_groups`` have them.

        Raises:
            InvalidRequest: an id is malformed, or the sampler holds no such group.
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
        """Returns what rollouts with ``split="eval"`` earned, by environment and policy, oldest
        first.

        It counts every such group that was sealed, even after its files were deleted. Late scores
        count as in batches. Such groups are never trained on.

        Args:
            passing: the least return with which a trajectory counts as passed.

        Raises:
            InvalidRequest: ``passing`` is no finite number.
        """
        return self._ask(AskEvaluations(passing=number("passing", passing)))

    def flush(self) -> None:
        """Returns once everything that was sealed before is known, and every decision stands in a
        file.

        ``stats`` and ``sample_groups`` then see it. The files are under ``batches/``. No decision
        needs this: each is in the log before its call returns.

        Raises:
            StoreAway: the files were not written within ``kafka.timeout_s``.
        """
        return self._ask(Flush())
