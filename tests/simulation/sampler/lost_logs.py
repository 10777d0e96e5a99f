"""Trainers whose sampler's logs are gone, with some of its files: what files say of it is compared
with what the logs said."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from typing import NamedTuple
from unittest import mock

from rollstream.folds import state
from rollstream.runtime.deadline import Deadline
from rollstream.sampler.history import KnownWithoutLogs, known_without_logs
from rollstream.schemas.events import BatchServed, Flushed, Replaced, Resumed
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.layout import batch_in, batches_prefix, snapshot_offset_in
from rollstream.store.manifests import project
from rollstream.streams.broker import TopicPartition
from rollstream.streams.owned.follow import ConfirmedEvent, Follower
from simulation.sampler.snapshots import Snapshots, written_at_once
from simulation.sampler.trainers import FINAL_KEPT, NAME, TURNS, WAIT_S

BY_SNAPSHOT = {"final", "trained", "failed", "served"}


class Decided(NamedTuple):
    """The batch of a step as it is now.

    Attributes:
        offset: of its decision.
        group_ids: after all replacements.
    """

    offset: int
    trainer_epoch: int
    group_ids: tuple[str, ...]


class LostLogs(Snapshots):
    """Trainers, and what is left of their sampler when they end."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, foreign=[])
        self.found: Counter[str] = Counter()

    def run(self) -> None:
        with written_at_once(), mock.patch.object(state, "FINAL_BATCHES_KEPT", FINAL_KEPT):
            for _ in range(self.dice.randrange(TURNS)):
                self.act()
        self.close()
        self._project_manifests()
        self._lose_files()

    def known(self) -> KnownWithoutLogs:
        return known_without_logs(NAME, config=self._config, store=self._store)

    def problems(self, known: KnownWithoutLogs) -> list[str]:
        """What the logs contradict."""
        files = self._files()
        events = self.decisions()
        at = snapshot_offset_in(known.snapshot) or 0
        held, current = decided(one for one in events if one.offset < at), decided(events)
        ready = {group_id for ids in known.ready.values() for group_id in ids}
        steps = {
            step: (one.known, one.trainer_epoch)
            for one in known.steps
            for step in range(one.first, one.last + 1)
        }
        problems = []
        if list(steps) != [*range(len(steps))]:
            problems.append(f"steps {[*steps]} are not all up to the newest, in order")
        for step, batch in current.items():
            epoch = batch.trainer_epoch
            says, in_epoch = steps.get(step, (None, None))
            of_snapshot = step in held and held[step].offset == batch.offset
            in_file = files.get((epoch, step), ())
            older = (in_epoch, step) in files or step in held
            if of_snapshot:
                right = says in BY_SNAPSHOT
            elif in_file:
                right = (says, in_epoch) == ("in_file", epoch)
            else:
                right = says in (None, "in_no_file") or older
            if not right:
                problems.append(f"step {step} of epoch {epoch} is {says}, {in_epoch}")
            used = {*in_file, *(held[step].group_ids if of_snapshot else ())}
            again = ready & used & {*batch.group_ids}
            problems += [f"group {one} of step {step} is ready" for one in sorted(again)]
            self.found[f"{says}"] += 1
        folded, _ = self._refolded()
        left = {folded.sealed(ref).group.group_id for ref in folded.ready.refs()}
        excused = self._perhaps_used(events)
        problems += [f"group {one} is not ready" for one in sorted(left - ready - excused)]
        self.found["ready"] += len(ready)
        return problems

    def _project_manifests(self) -> None:
        """As sealers had before they ended."""
        logs = {
            TopicPartition(self._layout.groups(address.environment), address.partition): address
            for address in self._addresses()
        }
        with closing(Follower(self._plain, dict.fromkeys(logs, 0))) as follower:
            for one in follower.read_to_end(Deadline(WAIT_S)):
                if isinstance(one.event, Flushed):
                    project(self._store, logs[one.where], one.offset, one.event)

    def _addresses(self) -> list[PartitionAddress]:
        environments = self._config.environments.items()
        return self._layout.addresses({name: one.partitions for name, one in environments})

    def _lose_files(self) -> None:
        """Some batch files were never written, or are damaged, and so is the newest snapshot."""
        share = self.dice.choice((0.0, 0.1, 0.4))
        for blob in [*self._store.list(batches_prefix(NAME))]:
            if batch_in(blob.path) is None:
                continue
            if self.dice.random() < share:
                self._store.delete(blob.path)
            elif self.dice.random() < share / 4:
                self._store.replace(blob.path, self._store.read(blob.path)[:-9])
        for path in self.paths():
            fate = self.dice.choice(("keep", "delete", "cut"))
            if fate == "delete":
                self._store.delete(path)
            elif fate == "cut":
                self._store.replace(path, self._store.read(path)[:-1])

    def _perhaps_used(self, events: Iterable[ConfirmedEvent]) -> set[str]:
        """The groups that were ever in a batch of which no file says that it was released: that of
        a later trainer epoch, which decided its step or an earlier one again."""
        named = [batch_in(blob.path) for blob in self._store.list(batches_prefix(NAME))]
        epochs: dict[int, int] = {}
        used: set[str] = set()
        for one in events:
            if isinstance(one.event, BatchServed):
                epochs[one.event.step] = one.event.trainer_epoch
            if isinstance(one.event, BatchServed | Replaced):
                place = (epochs[one.event.step], one.event.step)
                if not any(at and at[0] > place[0] and at[1] <= place[1] for at in named):
                    used.update(chosen_ids(one))
        return used

    def _files(self) -> dict[tuple[int, int], tuple[str, ...]]:
        """By trainer epoch and step, the groups of the files that can be read."""
        found = {}
        for blob in self._store.list(batches_prefix(NAME)):
            named = batch_in(blob.path)
            if named is None:
                continue
            try:
                content = json.loads(bytes(self._store.read(blob.path)))
            except ValueError:
                continue
            found[named] = tuple(group["group_id"] for group in content["groups"])
        return found


def chosen_ids(decision: ConfirmedEvent) -> list[str]:
    """The groups that a decision chose."""
    event = decision.event
    chosen = event.groups if isinstance(event, BatchServed | Replaced) else ()
    return [group.group_id for group in chosen]


def decided(decisions: Iterable[ConfirmedEvent]) -> dict[int, Decided]:
    """The batch of each step that was not released."""
    batches: dict[int, Decided] = {}
    for one in decisions:
        match one.event:
            case BatchServed() as event:
                ids = tuple(chosen_ids(one))
                batches[event.step] = Decided(one.offset, event.trainer_epoch, ids)
            case Replaced() as event:
                ids_now = [*batches[event.step].group_ids]
                for slot, group_id in zip(event.slots.tolist(), chosen_ids(one), strict=True):
                    ids_now[slot] = group_id
                batches[event.step] = batches[event.step]._replace(group_ids=tuple(ids_now))
            case Resumed() as event if event.later == "release":
                saved = -1 if event.checkpointed_step is None else event.checkpointed_step
                batches = {step: batch for step, batch in batches.items() if step <= saved}
    return batches
