"""From a step to what it was trained on and where that came from; and back from a rollout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import SupportsIndex

from rollstream.runtime.clock import Clock
from rollstream.runtime.config.load import configured
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.arguments import text
from rollstream.sampler.errors import InvalidRequest, UnknownRollout
from rollstream.sampler.history.decisions import asked_step, connected
from rollstream.sampler.history.recorded import Decided, RecordedInLogs, decided_about
from rollstream.sampler.history.uses import Drop, Use
from rollstream.streams.broker import Broker
from rollstream.streams.topics.layout import Layout
from rollstream.streams.tracing import GroupOrigin, TracedEntry, origins_of, trace

TIMEOUT_S = 600.0  # Logs are read whole.


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedGroup:
    """A group in a batch: what became of it there, and where it came from."""

    use: Use
    origin: GroupOrigin


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepLineage:
    """What a batch was made of.

    Attributes:
        trainer_epoch: in which the batch was decided.
        groups: by slot, replacements in the places of those that they replaced.
        replaced: groups that gave way to others, in the order in which they did.
    """

    sampler: str
    step: int
    trainer_epoch: int
    groups: tuple[UsedGroup, ...]
    replaced: tuple[UsedGroup, ...]

    def __repr__(self) -> str:
        return (
            f"StepLineage({self.sampler!r}, step {self.step}, trainer epoch {self.trainer_epoch}: "
            f"{len(self.groups):,} groups, {len(self.replaced):,} replaced)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerLineage:
    """What one sampler did with the groups of a rollout.

    Attributes:
        uses: the batches that had one, in the order of decisions; ``left_out`` where a batch had
            the group without this rollout, which was too old. Those that are ``carried`` follow the
            one that the group was new in; the rollout was trained on in one of all these at most,
            whose state is ``trained``.
        drops: why groups of it are never served.
    """

    sampler: str
    uses: tuple[Use, ...]
    drops: tuple[Drop, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RolloutLineage:
    """Where a rollout is, and which steps trained on it.

    Attributes:
        entries: of the ingest logs: each segment, repetitions too.
        samplers: those that serve an environment in which it was sealed.
        since_ts: log time from which on seal logs were read, microseconds: an older entry of the
            same uid is not named. 0: they were read whole.
    """

    rollout_uid: str
    entries: tuple[TracedEntry, ...]
    samplers: tuple[SamplerLineage, ...]
    since_ts: int

    def __repr__(self) -> str:
        states = ", ".join(entry.state for entry in self.entries)
        uses = sum(len(sampler.uses) for sampler in self.samplers)
        return f"RolloutLineage({self.rollout_uid!r}: {states}; in {uses:,} batches)"


def lineage_of_step(
    name: str,
    step: SupportsIndex,
    *,
    config: RollstreamConfig | Path | str,
    trainer_epoch: SupportsIndex | None = None,
    broker: Broker | None = None,
    clock: Clock | None = None,
    timeout_s: float = TIMEOUT_S,
) -> StepLineage:
    """The groups of a served batch, with file, rows, offsets and env replicas, from the logs alone.

    Args:
        name: of the sampler, whether or not it is configured any more.
        config: the configuration, or the path of its file.
        trainer_epoch: in which the step was decided; None: the newest decision of it.
        broker: instead of the configured one; the caller closes it.
        clock: instead of the system's.
        timeout_s: for all of it.

    Raises:
        UnknownStep: the log has no such batch. UnknownSampler: there is no decision log of that
            name. BrokerUnavailable: not read within ``timeout_s``.
    """
    at, epoch = asked_step(step, trainer_epoch)
    kafka = configured(config).kafka
    deadline = Deadline(timeout_s, clock)
    with connected(kafka, broker) as used:
        recorded = RecordedInLogs(used, Layout.of(kafka), deadline)
        uses = recorded.of_step(name, at, epoch)
        origins = origins_of(used, Layout.of(kafka), {use.group for use in uses}, deadline)
    found = [UsedGroup(use=use, origin=origins[use.group]) for use in uses]
    held = [one for one in found if not one.use.replaced]
    return StepLineage(
        sampler=name,
        step=at,
        trainer_epoch=uses[0].trainer_epoch,
        groups=tuple(sorted(held, key=lambda one: one.use.slot)),
        replaced=tuple(one for one in found if one.use.replaced),
    )


def lineage_of_rollout(
    uid: str,
    *,
    config: RollstreamConfig | Path | str,
    sampler: str | None = None,
    since_hours: float | None = None,
    broker: Broker | None = None,
    clock: Clock | None = None,
    timeout_s: float = TIMEOUT_S,
) -> tuple[RolloutLineage, ...]:
    """Where every segment of a rollout is (pending, in which file and row, settled for which
    reason, a dead letter), which batches had it, and why it is never served; from the logs alone.
    One, or as many as the uid names, by their uids.

    Args:
        uid: of a rollout; or that which writers of steps gave a trajectory, in one prompt or
            several.
        config: the configuration, or the path of its file: its environments are searched.
        sampler: only this one; None: every configured one.
        since_hours: how long ago the first of it was published at most, so that only newer records
            are read; None: seal logs are read back to a day before its oldest entry that is found,
            and whole if there is none (``RolloutLineage.since_ts``).
        broker: instead of the configured one; the caller closes it.
        clock: instead of the system's.
        timeout_s: for all of it.

    Raises:
        UnknownRollout: no log has it, or has it any more. UnknownSampler: there is no decision log
            of that name. InvalidRequest: the uid is empty. BrokerUnavailable: not read within
            ``timeout_s``.
    """
    if not text("uid", uid):
        raise InvalidRequest("uid is empty; give the uid that the producer published")
    loaded = configured(config)
    layout, deadline = Layout.of(loaded.kafka), Deadline(timeout_s, clock)
    environments = {name: one.partitions for name, one in loaded.environments.items()}
    with connected(loaded.kafka, broker) as used:
        since_us = None
        if since_hours is not None:
            since_us = deadline.clock.now_us() - round(since_hours * 3600e6)
        found = trace(used, layout, environments, uid, deadline, since_us=since_us)
        entries = found.entries
        if not entries:
            raise UnknownRollout(
                f"no rollout {uid!r} in the logs of {', '.join(sorted(environments))}: it was "
                "never published, was published earlier than `since_hours` ago, is still in its "
                "producer's buffer, or was settled without a uid on record; `rollstream "
                "deadletters list` has what could not be read"
            )
        ids = {entry.group.ref: entry.group.group_id for entry in entries if entry.group}
        recorded = RecordedInLogs(used, layout, deadline)
        decided = decided_about(ids, recorded, sampler, loaded.samplers)
    by_uid: dict[str, list[TracedEntry]] = {}
    for entry in entries:
        by_uid.setdefault(entry.rollout_uid, []).append(entry)
    return tuple(_lineage(one, by_uid[one], decided, found.since_us) for one in sorted(by_uid))


def _lineage(
    uid: str, entries: Sequence[TracedEntry], decided: Decided, since_us: int
) -> RolloutLineage:
    """Of one rollout, by what samplers decided about its groups, and others."""
    groups = [entry.group for entry in entries if entry.group is not None]
    rows_of = {group.ref: [row.index for row in group.segments] for group in groups}
    samplers = []
    for name, (uses, drops) in decided.items():
        of_rows = [use.of_rows(rows_of[use.group]) for use in uses if use.group in rows_of]
        samplers.append(
            SamplerLineage(
                sampler=name,
                uses=tuple(use for use in of_rows if use is not None),
                drops=tuple(drop for ref, drop in drops.items() if ref in rows_of),
            )
        )
    return RolloutLineage(
        rollout_uid=uid, entries=tuple(entries), samplers=tuple(samplers), since_ts=since_us
    )
