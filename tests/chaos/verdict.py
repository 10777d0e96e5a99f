"""What the logs and files of a run say, when everything has come to its end."""

from __future__ import annotations

import os
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from chaos.producing import confirmed, uid_of
from chaos.scored import first_scores, late_groups, score_problems
from chaos.settings import BATCH_GROUPS, ENVIRONMENT, SAMPLER
from chaos.training import Given as GivenBatch
from chaos.training import Journal
from harness.history import segments_not_once
from harness.serving_history import groups_of, serving_problems
from rollstream.consumers import audit
from rollstream.folds.choosing import choosing_of
from rollstream.folds.group.scored import Given
from rollstream.folds.state import FINAL_BATCHES_KEPT, SamplerState
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Sampler
from rollstream.sampler.errors import UnknownStep
from rollstream.sampler.history import check_from_files, replay_step
from rollstream.schemas.events import Scored
from rollstream.schemas.ids import PartitionAddress
from rollstream.streams.broker import TopicPartition
from rollstream.streams.folds.refs import GroupRef
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.owned.follow import ConfirmedEvent, Follower
from rollstream.streams.topics.layout import Layout

READ_S = 600.0
_Logs = dict[TopicPartition, PartitionAddress]
REPLAYED_MAX = 3  # Steps that are decided once more: each reads the logs twice.
OLD_MAX = 64  # Steps that a sampler does not hold and reads from the logs, some 0.2 s each.


@dataclass
class Verdict:
    """What was found.

    Attributes:
        rollouts: whose producers know that they are in the log.
        steps: that were given to the trainer, and not released by a rewind.
        late: groups that were served, or could be, with late scores.
        scored_again: records of scores that say something else than the first one of their group.
        differing: steps whose bytes differed when they were asked again, or in the files.
        problems: everything else that does not hold.
    """

    rollouts: int = 0
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    steps: int = 0
    given_again: int = 0
    late: int = 0
    scored_again: int = 0
    differing: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not (self.lost or self.twice or self.differing or self.problems)


def verdict(config: RollstreamConfig, folder: Path) -> Verdict:
    """Reads everything once more."""
    found = Verdict()
    report = audit(config, digests=True, timeout_s=READ_S)
    found.problems += report.problems
    pending = report.environment(ENVIRONMENT).pending
    if pending:
        found.problems.append(f"{pending} rollouts are still pending")
    with KafkaBroker(config.kafka.bootstrap, config.kafka.client) as broker:
        sealed = _rollouts(config, broker, folder, found)
        _decisions(config, broker, sealed, found)
    _steps(config, Journal(folder / "trainer.journal"), found)
    return found


def _rollouts(
    config: RollstreamConfig, broker: KafkaBroker, folder: Path, found: Verdict
) -> list[ConfirmedEvent]:
    sealed = _read(broker, *_logs(config)[0])
    uids = [
        uid_of(journal.stem, number)
        for journal in sorted(folder.glob("producer-*.journal"))
        for number in range(confirmed(journal))
    ]
    found.rollouts = len(uids)
    found.lost, found.twice = segments_not_once(sealed, uids)
    return sealed


def _decisions(
    config: RollstreamConfig,
    broker: KafkaBroker,
    sealed: list[ConfirmedEvent],
    found: Verdict,
) -> None:
    layout = Layout.of(config.kafka)
    logs, score_logs = _logs(config)
    choosing = choosing_of(config.samplers[SAMPLER], config.environments)
    state = SamplerState(SAMPLER, choosing, list(logs.values()))
    decisions = _read(broker, layout.sampler_log(SAMPLER))
    for decision in decisions:
        state.apply(decision.offset, decision.timestamp_us, decision.event)
    scores = _read(broker, *score_logs, scores=True)
    for one in scores:
        assert isinstance(one.event, Scored), one
        given = Given(one.event, one.timestamp_us)
        state.apply_scores(score_logs[one.where], one.offset, given)
    late, (first, found.scored_again) = late_groups(sealed, logs), first_scores(scores)
    found.late = len(late)
    found.problems += score_problems(late, first, decisions)
    refs: list[GroupRef] = []
    for event in sealed:
        state.apply_groups(logs[event.where], event.offset, event.event)
        refs += groups_of(logs[event.where], event.offset, event.event)
    found.problems += serving_problems((one.event for one in decisions), refs, state)


def _steps(config: RollstreamConfig, journal: Journal, found: Verdict) -> None:
    """Every step once more from the files, and from a sampler that begins from the logs the newest
    and some older ones; a few are also decided once more."""
    rising = sorted(journal.given)
    old, new = rising[:-FINAL_BATCHES_KEPT], rising[-FINAL_BATCHES_KEPT:]
    dice = random.Random(0)
    with Sampler(SAMPLER, config=config) as sampler:
        held = []
        for step in (*dice.sample(old, min(OLD_MAX, len(old))), *new):
            given = journal.given[step]
            try:
                again = GivenBatch.of(sampler.next_batch(step, BATCH_GROUPS, timeout_s=READ_S))
            except UnknownStep:
                continue  # Final for so long that only the files have it.
            held.append(step)
            if again != given:
                journal.differing.append(step)
    steps, digests = list(journal.given), [given.digest for given in journal.given.values()]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        same = pool.map(partial(_same_in_files, config), steps, digests, chunksize=16)
        journal.differing += [
            step for step, is_same in zip(steps, same, strict=True) if not is_same
        ]
    for step in dice.sample(held, min(REPLAYED_MAX, len(held))):
        if not all(one.same for one in replay_step(SAMPLER, step, config=config)):
            found.problems.append(f"step {step} is decided otherwise now")
    found.steps, found.given_again = len(journal.given), journal.given_again + len(held)
    found.differing = sorted(set(journal.differing))


def _same_in_files(config: RollstreamConfig, step: int, digest: str) -> bool:
    files = check_from_files(SAMPLER, step, config=config)
    return files.same and files.found.hex() == digest


def unscored(config: RollstreamConfig) -> int:
    """Sealed groups that no verifier has scored yet."""
    with KafkaBroker(config.kafka.bootstrap, config.kafka.client) as broker:
        logs, score_logs = _logs(config)
        late = late_groups(_read(broker, *logs), logs)
        first, _ = first_scores(_read(broker, *score_logs, scores=True))
    return sum(group.group_id not in first for group in late.values())


def _logs(config: RollstreamConfig) -> tuple[_Logs, _Logs]:
    """The seal logs and the logs of scores."""
    layout = Layout.of(config.kafka)
    addresses = layout.addresses({ENVIRONMENT: config.environments[ENVIRONMENT].partitions})
    return (
        {layout.groups_log(address): address for address in addresses},
        {layout.scores_log(address): address for address in addresses},
    )


def _read(broker: KafkaBroker, *logs: TopicPartition, scores: bool = False) -> list[ConfirmedEvent]:
    follower = Follower(broker, dict.fromkeys(logs, 0), logs if scores else ())
    try:
        return list(follower.read_to_end(Deadline(READ_S)))
    finally:
        follower.close()
