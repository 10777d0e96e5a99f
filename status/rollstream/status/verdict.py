"""Which stages are stuck, in the order in which data flows, and why. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from rollstream.folds.choosing import choosing_of
from rollstream.folds.remedies import describe_waiting, why_dropped, why_waiting
from rollstream.runtime.config.sections import RollstreamConfig, SamplerConfig
from rollstream.schemas.choosing import Choosing
from rollstream.schemas.reasons import DropReason
from rollstream.status.alarms import Alarm
from rollstream.status.figures import (
    AdmissionFigures,
    Figures,
    PartitionFigures,
    SamplerFigures,
)
from rollstream.streams.troubles import CLOCK, wrong_clock

QUIET_S = 60.0  # A stage that has work and did nothing for this long counts as stuck.
NAMED_MAX = 8  # Partitions that one sentence names.
ERROR, WARNING = "error", "warning"
BELONGS = " belongs to "  # In the words of a `Difference` whose root is another deployment's.
LEFT_SHARE_MIN = 0.25  # Of the retention: with less left, what waits is an error.


class Verdict(NamedTuple):
    """A stage that is stuck; the likely reason, with what to do.

    Attributes:
        alarm: the same for programs.
        level: ``WARNING`` where a partition is put aside and its rollouts are kept for long enough,
            or something fails while it is sealed; else ``ERROR``.
    """

    stage: str
    reason: str
    alarm: Alarm
    level: str = ERROR


def stuck_stages(figures: Figures, config: RollstreamConfig) -> tuple[Verdict, ...]:
    """Every stage that is stuck, in the order topics, store, env workers, sealers, sampler,
    verifiers, trainer.

    A stage that only waits for one before it is not stuck. Of a run that is over only what was
    lost is named.
    """
    if figures.missing_topics:
        missing = ", ".join(figures.missing_topics)
        told = f"{missing} missing; run `rollstream topics create`"
        return (Verdict("topics", told, Alarm.MISSING_TOPICS),)
    verdicts = [
        Verdict("store", one, Alarm.FOREIGN_ROOT if BELONGS in one else Alarm.OTHER_ROOT)
        for one in figures.other_root
    ]
    if not any(partition.ingest_end for partition in figures.partitions):
        kafka = config.kafka
        verdicts.append(
            Verdict(
                "env workers",
                "nothing was ever published; start the env workers. If they run, give their "
                f"producers namespace={kafka.namespace!r} and generation={kafka.generation}",
                Alarm.NEVER_PUBLISHED,
            )
        )
    for name in sorted(config.environments):
        partitions = [p for p in figures.partitions if p.environment == name]
        verdicts += _sealing(name, partitions, figures, config)
    for sampler in figures.samplers:
        if sampler.lost:
            verdicts.append(Verdict("sampler", sampler.lost, Alarm.DECISIONS_LOST))
        if sampler.aside:
            told = f"{sampler.name} decides nothing, since its log cannot be read: {sampler.aside}"
            verdicts.append(Verdict("sampler", told, Alarm.DECISIONS_UNREADABLE))
            continue
        section = config.samplers[sampler.name]
        choosing = choosing_of(section, config.environments)
        found = (
            _wrong_clock(sampler),
            _unacked(sampler, section),
            _sampling(sampler, figures, choosing),
        )
        verdicts += filter(None, found)
    verdicts += filter(None, (_untold(one, figures, config) for one in figures.admission))
    if not figures.over:
        verdicts += map(_scores_aside, figures.scores_aside.items())
    return tuple(verdicts)


def _sealing(
    name: str, partitions: Sequence[PartitionFigures], figures: Figures, config: RollstreamConfig
) -> Iterator[Verdict]:
    """What is wrong with the sealing of one environment, a sentence for each reason."""
    for one in partitions:
        if one.aside or (one.put_aside and not figures.over):
            yield _aside(one, config.kafka.retention_hours)
    if not figures.over:
        mine = [one for one in partitions if not one.put_aside]
        for trouble, those in _by_text(mine, attrgetter("trouble")):
            told = f"nothing of {_names(those)} is sealed; {_owners(those)} says why: {trouble}"
            yield Verdict("sealers", told, Alarm.SEALS_NOTHING)
        for trouble, those in _by_text(mine, attrgetter("beside")):
            if trouble.startswith(CLOCK):
                told = f"{_owners(those)} seals {_names(those)}, and {trouble}"
                yield Verdict("sealers", told, Alarm.WRONG_CLOCK, WARNING)
                continue
            told = f"{_names(those)} is sealed; {_owners(those)} says what else fails: {trouble}"
            yield Verdict("sealers", told, Alarm.FAILS_BESIDE, WARNING)
    lost = [p for p in partitions if p.lost]
    if lost:
        yield Verdict(
            "sealers",
            f"retention deleted {sum(p.lost for p in lost)} records of {_names(lost)} before they "
            "were settled; run `rollstream audit`, and raise kafka.retention_hours",
            Alarm.RECORDS_LOST,
        )
    waiting = [p for p in partitions if p.backlog and not p.put_aside]
    settled = sum(p.recent_settled for p in partitions)
    unreadable = sum(p.recent_unreadable for p in partitions)
    share_max = config.environments[name].max_unreadable_share
    if unreadable > share_max * settled:
        yield Verdict(
            "sealers",
            f"{unreadable} of {settled} entries of {name} that were settled within the last minute "
            f"could not be read, more than max_unreadable_share ({share_max:g}) allows; "
            "`rollstream deadletters list` says why",
            Alarm.UNREADABLE_SHARE,
        )
    if figures.over:
        return
    left = [p for p in waiting if p.held is False]
    if left:
        why, alarm = _why_left(name, left, figures)
        yield Verdict("sealers", f"{_wait(left)}, and {why}", alarm)
    allowed_s = config.environments[name].expire_after_s + QUIET_S
    late = [p for p in waiting if p.held is not False and (p.oldest_age_s or 0.0) > allowed_s]
    if late:
        told = (
            f"{_wait(late)}, longer than any group may; their sealer ({_owners(late) or 'none'}) "
            "runs and settles nothing: its log says why"
        )
        yield Verdict("sealers", told, Alarm.SETTLES_NOTHING)


def _by_text(
    partitions: Iterable[PartitionFigures], text: Callable[[PartitionFigures], str]
) -> Iterable[tuple[str, list[PartitionFigures]]]:
    """Each text that is not empty, with the partitions that have it."""
    found: dict[str, list[PartitionFigures]] = {}
    for one in partitions:
        found.setdefault(text(one), []).append(one)
    found.pop("", None)
    return found.items()


def _owners(partitions: Iterable[PartitionFigures]) -> str:
    return ", ".join(sorted({one.owner for one in partitions if one.owner}))


def _aside(partition: PartitionFigures, retention_hours: float) -> Verdict:
    """Why a partition is put aside, what waits there, and for how long it is kept."""
    waits, level = "", WARNING
    if partition.oldest_age_s is not None:
        left_h = retention_hours - partition.oldest_age_s / 3600
        waits = (
            f" {partition.backlog} records wait, and retention deletes the oldest in "
            f"{_hours(left_h)} (kafka.retention_hours {retention_hours:g})."
        )
        if left_h < LEFT_SHARE_MIN * retention_hours:
            level = ERROR
            waits += " Act now, or raise kafka.retention_hours, or these rollouts are lost."
    behind = ", and nothing that was sealed behind it is served" if partition.aside else ""
    told = "" if partition.aside else f"{partition.owner} says why: "
    return Verdict(
        "sealers",
        f"{_names([partition])} is put aside, and all other partitions go on: nothing is sealed "
        f"there{behind}.{waits} {told}{partition.put_aside}. Then run `rollstream seal --retry`, "
        "or start its sealer again where that was upgraded",
        Alarm.PUT_ASIDE,
        level,
    )


def _scores_aside(log: tuple[str, str]) -> Verdict:
    where, why = log
    told = (
        f"the scores of {where} are read no further: groups of its environment that lack a score "
        f"wait, and all others are served: {why}"
    )
    return Verdict("sampler", told, Alarm.PUT_ASIDE)


def _hours(hours: float) -> str:
    """A time that is left."""
    left_h = max(0.0, hours)
    return f"{left_h:.0f} hours" if left_h >= 2 else f"{left_h * 60:.0f} minutes"


def _why_left(name: str, left: Sequence[PartitionFigures], figures: Figures) -> tuple[str, Alarm]:
    """Why no running sealer has these partitions, and what to do."""
    count = figures.sealers.get(name, 0)
    if count:
        return (
            f"none of the {count} sealers of {name} has them; do all name as many partitions in "
            "their configuration? Restart them",
            Alarm.HELD_BY_NO_SEALER,
        )
    others = sorted(other for other, sealers in figures.sealers.items() if sealers)
    if others:
        return (
            f"the sealers that run seal {', '.join(others)} only; restart one with a configuration "
            f"that has [environments.{name}]",
            Alarm.UNKNOWN_TO_SEALERS,
        )
    owners = _owners(left)
    if owners:
        return f"no sealer runs: {owners} ended or died; run `rollstream seal`", Alarm.NO_SEALER
    return "no sealer ever claimed them; run `rollstream seal`", Alarm.NO_SEALER


def _wait(partitions: Sequence[PartitionFigures]) -> str:
    records = sum(p.backlog for p in partitions)
    oldest_s = max((p.oldest_age_s or 0.0) for p in partitions)
    return f"{records} records of {_names(partitions)} wait, the oldest for {oldest_s:.0f} s"


def _untold(
    admission: AdmissionFigures, figures: Figures, config: RollstreamConfig
) -> Verdict | None:
    """Whether producers wait while no sampler says how many groups they may begin."""
    started = [
        one for one in figures.samplers if admission.environment in one.environments and one.owner
    ]
    over = bool(started) and all(one.over for one in started)
    if admission.told_by or not admission.waiting or over:
        return None
    sections = config.samplers.items()
    of = {name: one for name, one in sections if admission.environment in one.environments}
    idle = " or ".join(sorted({f"{one.admission_idle_s:g} s" for one in of.values()}))
    return Verdict(
        "sampler",
        f"{admission.waiting} of {admission.producers} producers of {admission.environment} wait "
        f"to begin groups, and no sampler says how many they may ({', '.join(sorted(of))}): each "
        "is away, or its trainer published no policy lately; see that a trainer runs and calls "
        f"publish_policy. Until then each producer may begin its share once in {idle} "
        "(admission_idle_s)",
        Alarm.NO_SHARES,
    )


def _wrong_clock(sampler: SamplerFigures) -> Verdict | None:
    trouble = wrong_clock(sampler.clock_ahead_s)
    if sampler.over or not trouble:
        return None
    told = f"{sampler.owner} decides for {sampler.name}, and {trouble}"
    return Verdict("sampler", told, Alarm.WRONG_CLOCK, WARNING)


def _unacked(sampler: SamplerFigures, config: SamplerConfig) -> Verdict | None:
    """Whether a batch is with a trainer for longer than it should."""
    age_s = sampler.unacked_age_s
    if sampler.over or age_s is None or age_s <= config.ack_timeout_s:
        return None
    return Verdict(
        "trainer",
        f"the batch of step {sampler.unacked_step} of {sampler.name} was served {age_s:.0f} s ago "
        f"and is neither acked nor released (ack_timeout_s {config.ack_timeout_s:g}); it is given "
        "to nobody else: see that the trainer runs and calls ack(batch), or resume a new one",
        Alarm.NOT_ACKED,
    )


def _sampling(sampler: SamplerFigures, figures: Figures, choosing: Choosing) -> Verdict | None:
    name = sampler.name
    if sampler.over or not sampler.owner:
        return None  # One that was never started is not behind: nobody may want it yet.
    if sampler.open_batches >= choosing.max_open_batches:
        return Verdict(
            "trainer",
            f"{sampler.open_batches} batches of {name} are open, as many as max_open_batches "
            "allows; call checkpointed(step) after saving",
            Alarm.OPEN_BATCHES,
        )
    if (sampler.decision_age_s or 0.0) <= QUIET_S:
        return None
    # What exceeds the capacity goes unasked; the rest is dropped only where a trainer asks.
    dropped = _unwanted(sampler)
    asked = any(reason != DropReason.CAPACITY for reason in dropped)
    if _upstream_explains(sampler, figures):
        return None
    if sampler.ready >= max(1, sampler.wanted) and not asked:
        return Verdict(
            "trainer",
            f"{sampler.ready} groups are ready for {name} and none was served for "
            f"{sampler.decision_age_s:.0f} s; is the trainer still running, or does it ask for "
            "more than that?",
            Alarm.NOT_SERVED,
        )
    if dropped or sampler.waiting_since:
        return _unserved(sampler, choosing)
    ages = [
        partition.published_age_s
        for partition in figures.partitions
        if partition.environment in sampler.environments and partition.published_age_s is not None
    ]
    if ages and min(ages) > QUIET_S and sampler.unacked:
        return Verdict(
            "trainer",
            f"a batch of {name} was served and is not acked, nothing was decided for "
            f"{sampler.decision_age_s:.0f} s and nothing published for {min(ages):.0f} s; is the "
            "trainer still running?",
            Alarm.TRAINER_SILENT,
        )
    if ages and min(ages) > QUIET_S and not _all_wait(sampler, figures):
        return Verdict(
            "env workers",
            f"nothing was published to {', '.join(sampler.environments)} for {min(ages):.0f} s "
            f"and {name} has {_ready(sampler)}{_waiting(sampler, choosing)}; are the env workers "
            "still running?",
            Alarm.NOTHING_PUBLISHED,
        )
    return None


def _ready(sampler: SamplerFigures) -> str:
    if not sampler.ready:
        return "no group ready"
    return f"{sampler.ready} groups ready, of {sampler.wanted} that its newest batch had"


def _upstream_explains(sampler: SamplerFigures, figures: Figures) -> bool:
    """Whether sealers of its environments are hindered, or gone while rollouts wait: then nobody
    behind them is to blame."""
    mine = [one for one in figures.partitions if one.environment in sampler.environments]
    hindered = any(one.trouble or one.aside or (one.backlog and one.held is False) for one in mine)
    return hindered and sampler.ready < max(1, sampler.wanted)


def _all_wait(sampler: SamplerFigures, figures: Figures) -> bool:
    """Whether every producer of its environments waits to be admitted, and so for another."""
    admitted = [one for one in figures.admission if one.environment in sampler.environments]
    producers = sum(one.producers for one in admitted)
    return 0 < producers == sum(one.waiting for one in admitted)


def _unwanted(sampler: SamplerFigures) -> dict[DropReason, int]:
    """The groups that were dropped since, but for those that the trainer dropped itself."""
    dropped = sampler.dropped_since.items()
    return {reason: count for reason, count in dropped if reason != DropReason.BY_TRAINER}


_OVER = ("sampler", Alarm.OVER_CAPACITY)
_UNSERVABLE = ("env workers", Alarm.UNSERVABLE)
_UNSCORED = ("verifiers", Alarm.UNSCORED)


def _unserved(sampler: SamplerFigures, choosing: Choosing) -> Verdict:
    """Names the commonest reason why no group that came could be served."""
    ends = [
        (
            count,
            f"were dropped as {reason}",
            *(_OVER if reason == DropReason.CAPACITY else _UNSERVABLE),
            why_dropped(reason, sampler.name, choosing, sampler.policy_epoch),
        )
        for reason, count in _unwanted(sampler).items()
    ]
    ends += [
        (
            count,
            "wait",
            *(_UNSCORED if why == "reward" else _UNSERVABLE),
            why_waiting(why, sampler.name, choosing),
        )
        for why, count in sampler.waiting_since.items()
    ]
    count, end, stage, alarm, remedy = max(ends)
    return Verdict(
        stage,
        f"{sampler.name} served nothing for {sampler.decision_age_s:.0f} s; of "
        f"{sum(one[0] for one in ends)} groups {count} {end}: {remedy}",
        alarm,
    )


def _waiting(sampler: SamplerFigures, choosing: Choosing) -> str:
    waiting = describe_waiting(sampler.waiting, sampler.name, choosing)
    return f" ({'; '.join(waiting)})" if waiting else ""


def _names(partitions: Iterable[PartitionFigures]) -> str:
    names = [f"{p.environment}[{p.partition}]" for p in partitions]
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
