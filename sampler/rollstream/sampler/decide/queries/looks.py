"""What is read and never decided: statistics, served batches, rows. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.state import NOTHING, SamplerState
from rollstream.sampler.batch.assembled import AssembledBatch
from rollstream.sampler.batch.share import Share
from rollstream.sampler.decide.batches.held_batches import (
    batch_of,
    check_unchanged,
    is_recorded,
)
from rollstream.sampler.decide.batches.next_batch import BatchCommand
from rollstream.sampler.decide.command import (
    FromStore,
    Look,
    Now,
    ResultContext,
    Unread,
)
from rollstream.sampler.decide.ratio import inserts
from rollstream.sampler.errors import InvalidRequest
from rollstream.schemas.events import SamplerEvent
from rollstream.schemas.ids import MIXED_POLICY
from rollstream.schemas.order import Policy, policy_lag
from rollstream.schemas.reasons import DropReason
from rollstream.schemas.records import RolloutGroup


@dataclass(frozen=True, slots=True)
class SamplerStats:
    """Figures of a sampler. They come from the logs, unless it says that they are of the process
    that answered.

    Attributes:
        pid: of the process that answered.
        name: of the sampler, ``[samplers.<name>]``.
        owner: who decides, or did last, as host and process id; empty: nobody ever did.
        epoch: offset of that owner's claim in the decision log; -1: there is none.
        trainer_epoch: counts calls of ``resume``; 0 before the first.
        ready: groups that may be served, by environment.
        waiting: sealed groups that cannot be served now; groups of split ``eval`` are not among
            them.
        capacity: groups that admission still lets begin, by environment, without what waiting calls
            lack. A ``SamplerView`` does not know what was in flight when a resume went back.
        producers: how many live, by environment.
        producers_waiting: how many of them wait to begin groups.
        inserts: groups that became ready in the trainer epoch in effect.
        uses: slots of batches that were decided in it.
        outcomes: groups by what became of them, in all, as ``Progress`` names it.
        open_batches: served and not final.
        overdue: steps that are neither acked nor released ``ack_timeout_s`` after they were served.
        over_step_delay: rollouts of final batches and of dropped groups that were left out by
            ``max_rollout_step_delay``.
        over_timestamp_delay: the same by ``max_rollout_timestamp_delay``.
        next_step: the step that was not served yet.
        newest_policy_step: -1: none was published.
        calls_waiting: calls that wait for groups, in the process that answered.
        groups_read: by the process that answered, without those that its cache had.
        cached_bytes: in that cache.
        ready_by_policy_version: ready groups by ``policy_version`` (``mixed``: of several).
        policy_lag_histogram: ready groups by the steps from their oldest policy to the weights that
            the next batch updates (below 0: ahead); without unknown steps and other lineages.
        ingest_per_s: rollout segments that ended, in a group or with a reason, over the last
            minute, by the log time of the flushes' records.
        seal_per_s: groups that were sealed, likewise.
        seal_time_ms_p50: from the first rollout of a group, by its worker's clock, to its flush, of
            the newest 512 groups a partition. ``Sealer.stats()`` has the time since it was logged.
            None, here and below: there was none.
        seal_time_ms_p99: likewise.
        sample_latency_ms_p50: of the newest 512 calls for batches in the process that answered,
            waiting for groups included.
        sample_latency_ms_p99: likewise.
        ack_latency_ms_p50: from a batch's decision to its ack, of the newest 512.
        ack_latency_ms_p99: likewise.
        duplicates: rollout segments that came once more.
        evictions: groups that were dropped beyond ``capacity_groups`` or ``capacity``.
        generator_queue_len: groups that were dispatched and have not ended.
        verifier_latency_ms: median of the log time from the seal to the last awaited score, of the
            newest 512 such groups.
        scores_early: records of scores that wait for their group.
        scores_unused: scores of no use, by the reason. ``not_taken``: their group was sealed and
            takes none, or has ended. ``no_group``: none was sealed in time.
        scores_behind: environments whose scores are read no further for now, since too many wait
            for their group, or were not read to their end since.
        aside: logs that are read no more, each with the reason. A start reads them again.
    """

    pid: int
    name: str
    owner: str
    epoch: int
    trainer_epoch: int
    ready: Mapping[str, int]
    waiting: int
    capacity: Mapping[str, int]
    producers: Mapping[str, int]
    producers_waiting: Mapping[str, int]
    inserts: int
    uses: int
    outcomes: Mapping[str, int]
    open_batches: int
    overdue: tuple[int, ...]
    over_step_delay: int
    over_timestamp_delay: int
    next_step: int
    newest_policy_step: int
    calls_waiting: int
    groups_read: int
    cached_bytes: int
    ready_by_policy_version: Mapping[str, int]
    policy_lag_histogram: Mapping[int, int]
    ingest_per_s: float
    seal_per_s: float
    seal_time_ms_p50: float | None
    seal_time_ms_p99: float | None
    sample_latency_ms_p50: float | None
    sample_latency_ms_p99: float | None
    ack_latency_ms_p50: float | None
    ack_latency_ms_p99: float | None
    duplicates: int
    evictions: int
    generator_queue_len: int
    verifier_latency_ms: float | None = None
    scores_early: int = 0
    scores_unused: Mapping[str, int] = field(default_factory=dict)
    scores_behind: tuple[str, ...] = ()
    aside: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """A served batch, without its rows.

    Attributes:
        step: of the batch.
        batch_id: of the decision, or of its newest replacement.
        request: what was asked for, as canonical JSON; of a shaped batch with ``shaping``.
        trainer_epoch: in which it was decided; counts calls of ``resume``.
        served_ts: when it was decided, microseconds since 1970, UTC.
        policy_step: the newest policy of the branch when it was decided; -1: none was published.
        groups: in it, by environment.
        replacements: how often groups of it were replaced.
        status: ``trained`` or ``failed``; None: not acked in the trainer epoch in effect.
        skipped: slots whose groups were not trained on, by the ack.
        filtered: slots whose whole groups a batch maker or ready packs left out, by the ack.
        final: whether the trainer's checkpoint holds it.
    """

    step: int
    batch_id: str
    request: str
    trainer_epoch: int
    served_ts: int
    policy_step: int
    groups: Mapping[str, int]
    replacements: int
    status: str | None
    skipped: tuple[int, ...]
    filtered: tuple[int, ...]
    final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AskStats(Look[SamplerStats]):
    """Statistics."""

    def result(self, state: SamplerState, context: ResultContext) -> Unread[SamplerStats]:
        newest = state.newest_policy()
        capacity = context.capacity()
        timeout_s = context.config.samplers[state.name].ack_timeout_s
        left = Counter(outcome for _, outcome in state.left())
        figures: dict[str, Any] = {
            "pid": context.pid,
            "name": state.name,
            "owner": state.owner,
            "epoch": state.claimed_at,
            "trainer_epoch": state.trainer_epoch,
            "ready": state.ready.counts(),
            "waiting": len(state.waiting),
            "capacity": {name: groups for name, (groups, _) in capacity.items()},
            "producers": {name: len(living) for name, (_, living) in capacity.items()},
            "producers_waiting": {
                name: sum(one.waiting > 0 for one in living)
                for name, (_, living) in capacity.items()
            },
            "inserts": inserts(state),
            "uses": state.uses.lately,
            "outcomes": dict(sorted((Counter(state.outcomes.totals()) + left).items())),
            "open_batches": len(state.open_batches()),
            "overdue": tuple(
                batch.event.step
                for batch in state.open_batches()
                if batch.overdue(context.now_us, timeout_s)
            ),
            "over_step_delay": state.over_step_delay,
            "over_timestamp_delay": state.over_timestamp_delay,
            "next_step": state.next_step,
            "newest_policy_step": NOTHING if newest is None else newest.step,
            "calls_waiting": context.calls_waiting,
            "groups_read": context.groups_read,
            "cached_bytes": context.cached_bytes,
            **_of_a_replay_buffer(state, context),
        }
        of_times = _of_times(state, context)
        of_policies = _of_policies(state)
        return Unread(
            object(), lambda: SamplerStats(**figures, **of_times(), **of_policies()), "computed"
        )


def _of_a_replay_buffer(state: SamplerState, context: ResultContext) -> dict[str, Any]:
    """Counts that every replay buffer has."""
    ingest_per_s, seal_per_s = state.pace.rates(context.now_us)
    return {
        "ingest_per_s": ingest_per_s,
        "seal_per_s": seal_per_s,
        "duplicates": state.pace.duplicates,
        "evictions": state.outcomes.totals().get(DropReason.CAPACITY.value, 0),
        "generator_queue_len": state.dispatched.count_open(),
        "scores_early": state.late.early,
        "scores_unused": dict(sorted((+state.late.unused).items())),
        "scores_behind": tuple(state.late.environments_behind()),
        "aside": dict(state.aside),
    }


def _of_policies(state: SamplerState) -> Callable[[], dict[str, Any]]:
    """How ready groups spread over policies, to be made without the state."""
    ready, reference = state.ready, state.reference(state.clock(state.next_step))
    counted = []
    for policies in ready.distinct_policies():
        version = MIXED_POLICY if len(policies) > 1 else ready.version_of(policies)
        counted.append((policies, ready.count_of(policies), version))

    def made() -> dict[str, Any]:
        versions, lags = Counter[str](), Counter[int]()
        for policies, count, version in counted:
            versions[version] += count
            known = [lag for one in policies if (lag := policy_lag(reference, one)) is not None]
            if len(known) == len(policies):
                lags[max(known)] += count
        return {
            "ready_by_policy_version": dict(sorted(versions.items())),
            "policy_lag_histogram": dict(sorted(lags.items())),
        }

    return made


def _of_times(state: SamplerState, context: ResultContext) -> Callable[[], dict[str, Any]]:
    """Percentiles, to be made without the state."""
    times = {
        "seal_time": state.pace.seal_times_ms(),
        "sample_latency": context.sample_times_ms(),
        "ack_latency": state.pace.ack_times_ms[:],
    }
    verifier = state.late.latencies_ms[:]

    def made() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, times_ms in times.items():
            found[f"{name}_ms_p50"], found[f"{name}_ms_p99"] = _percentiles(times_ms, 50, 99)
        (found["verifier_latency_ms"],) = _percentiles(verifier, 50)
        return found

    return made


def _percentiles(times_ms: Sequence[float], *percents: int) -> list[float | None]:
    if not len(times_ms):
        return [None] * len(percents)
    found: list[float | None] = np.percentile(times_ms, percents).tolist()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadGroup(FromStore[RolloutGroup]):
    """A group of a served batch, which the caller has with this digest, with all fields of its
    rollouts."""

    claims: ClassVar[bool] = False
    step: int
    digest: bytes
    slot: int

    def _decide(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        if not is_recorded(self.step, state):
            self.check(batch_of(self.step, state))
        return []

    def check(self, served: ServedBatch) -> None:
        """``RequestDiffers`` unless the batch has this digest, ``InvalidRequest`` unless it has
        this slot."""
        slots = len(check_unchanged(served, self.digest).all_groups)
        if not 0 <= self.slot < slots:
            raise InvalidRequest(f"slot {self.slot} is not one of the batch's {slots}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBatch(BatchCommand):
    """The batch of a step as it was decided, or last replaced."""

    claims: ClassVar[bool] = False

    def _decide(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        if not is_recorded(self.step, state):
            batch_of(self.step, state)
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRecorded(FromStore[AssembledBatch | Share | None]):
    """``ReadBatch``; None where the step was not served."""

    claims: ClassVar[bool] = False
    step: int
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AskWithoutFiles(AskRecorded):
    """The same of a batch that is held, where the files of the groups in these slots are lost: of
    their rows it has what the seal logs have, and no tokens. None where policies differ within one
    of them: the file alone has their versions."""

    lost: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPolicy(Look[Policy | None]):
    """The newest policy of the epoch in effect."""

    def result(self, state: SamplerState, context: ResultContext) -> Policy | None:
        return state.newest_policy()


@dataclass(frozen=True, slots=True, kw_only=True)
class AskEnvironments(Look[tuple[str, ...]]):
    """Names of the environments that it serves."""

    def result(self, state: SamplerState, context: ResultContext) -> tuple[str, ...]:
        return tuple(context.config.samplers[state.name].environments)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskBatches(Look[tuple[BatchSummary, ...]]):
    """The newest ``last`` (1 or more) of the batches that are held."""

    last: int

    def result(self, state: SamplerState, context: ResultContext) -> tuple[BatchSummary, ...]:
        newest = sorted(state.batches)[-self.last :]
        return tuple(_summary_of(state.batches[step]) for step in newest)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskBatch(Look[BatchSummary | None]):
    """The batch of a step; None where none is held."""

    step: int

    def result(self, state: SamplerState, context: ResultContext) -> BatchSummary | None:
        batch = state.batches.get(self.step)
        return None if batch is None else _summary_of(batch)


def _summary_of(batch: ServedBatch) -> BatchSummary:
    event = batch.event
    return BatchSummary(
        step=event.step,
        batch_id=batch.batch_id,
        request=event.request,
        trainer_epoch=event.trainer_epoch,
        served_ts=event.now_ts,
        policy_step=event.policy_step,
        groups=dict(Counter(group.environment for group in batch.groups)),
        replacements=batch.replacements,
        status=batch.status,
        skipped=batch.skipped,
        filtered=batch.filtered,
        final=batch.final,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush(FromStore[None]):
    """All that was sealed is known, and every decision stands in a file."""

    claims: ClassVar[bool] = False
    to_the_ends: ClassVar[bool] = True
