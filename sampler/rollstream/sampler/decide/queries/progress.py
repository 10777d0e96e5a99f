"""What became of examples, from their dispatch to a final batch. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from rollstream.folds.batches.served import DROPPED
from rollstream.folds.group.example_counts import ExampleCounts
from rollstream.folds.group.known import Key
from rollstream.folds.life.dispatched import Dispatched
from rollstream.folds.state import NOTHING, SamplerState
from rollstream.sampler.decide.command import Computed, Look, ResultContext


@dataclass(frozen=True, slots=True, repr=False)
class Progress:
    """What became of examples: what a data loader needs to resume. It is the same after any
    restart.

    Each attribute is environment to example id to the number of groups, unless it says otherwise. A
    group that is served several times (``max_samples``) counts in each batch. In a pool
    (``TrajectoryPool``) examples are prompts, and ended ones are counted under the id "". A
    dispatched group is known about a second after a sealer read it, unless it ends before.

    Attributes:
        dispatched: groups that ``dispatch`` began and that are not back yet: environment to example
            id to when each was dispatched, log time in microseconds since 1970, UTC; oldest first.
        never_back: groups that ``dispatch`` began and that will never be sealed: environment to
            example id to the reason, one of ``SettleReason`` (``expired``: no more of it came;
            ``failed``: each member failed), to groups.
        unfinished: members of sealed groups that did not end by themselves: environment to example
            id to ``failed`` (it never came), ``aborted`` or ``truncated`` (its ``stop_reason`` is
            "abort" or "length"), to members. Evaluations are not counted.
        failures: why members failed, as their producer said: environment to reason (200 characters)
            to members, the most first. Evaluations, and groups that were never sealed, are among
            them. A partition keeps 64 reasons; reasons that differ only in numbers are one after
            the first four ("timeout after # s"). "" has the others.
        trained: in final batches; of a shaped batch, once a step trained on one of the group's
            trajectories.
        failed: in final batches that were acked as failed.
        skipped: in final batches whose ack named them as not trained on.
        filtered: replaced, not accepted, or left out whole by a batch maker or ready packs.
        unknown: in final shaped batches whose ack did not say what became of them.
        kept: in final batches, and kept for a later step.
        dropped: environment to example id to the reason, one of ``DropReason``, ``retired`` (its
            file was deleted), ``not_carried`` (kept, but not by the next step) or ``unused`` (kept
            by the last step of a finished run), to groups. With ``max_samples`` above 1, also
            groups whose further uses were dropped.
        handed_out: in batches that are not final yet.
        unacked: the part of these whose batch was not acked since the trainer resumed.
        ready: groups that may be served, by environment.
        next_step: the step that was not served yet.
        final_step: the newest step that ever was final; None: none was. After ``resume(n,
            later="release")`` to an older step, later steps are open again once they are served.
    """

    dispatched: Mapping[str, Mapping[str, tuple[int, ...]]]
    never_back: Mapping[str, Mapping[str, Mapping[str, int]]]
    unfinished: Mapping[str, Mapping[str, Mapping[str, int]]]
    failures: Mapping[str, Mapping[str, int]]
    trained: Mapping[str, Mapping[str, int]]
    failed: Mapping[str, Mapping[str, int]]
    skipped: Mapping[str, Mapping[str, int]]
    filtered: Mapping[str, Mapping[str, int]]
    unknown: Mapping[str, Mapping[str, int]]
    kept: Mapping[str, Mapping[str, int]]
    dropped: Mapping[str, Mapping[str, Mapping[str, int]]]
    handed_out: Mapping[str, Mapping[str, int]]
    unacked: Mapping[str, Mapping[str, int]]
    ready: Mapping[str, int]
    next_step: int
    final_step: int | None

    def __repr__(self) -> str:
        """A line, and one for each environment: groups, and of how many examples."""
        environments = sorted({name for end in _SHOWN for name in getattr(self, end)})
        lines = [f"Progress(next step {self.next_step}, final step {self.final_step})"]
        for name in sorted({*environments, *self.ready}):
            found = ((end, getattr(self, end).get(name)) for end in _SHOWN)
            shown = [
                f"{end.replace('_', ' ')} {sum(map(_groups, examples.values())):,} "
                f"({len(examples):,} examples)"
                for end, examples in found
                if examples
            ]
            shown.append(f"ready {self.ready.get(name, 0):,}")
            lines.append(f"  {name}: {', '.join(shown)}")
        return "\n".join(lines)


_HIDDEN = ("unfinished", "failures", "ready", "next_step", "final_step")
_SHOWN = [one.name for one in fields(Progress) if one.name not in _HIDDEN]


def _groups(of_example: int | tuple[int, ...] | Mapping[str, int]) -> int:
    if isinstance(of_example, int):
        return of_example
    return len(of_example) if isinstance(of_example, tuple) else sum(of_example.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class AskProgress(Look[Progress]):
    """What became of examples."""

    def result(self, state: SamplerState, context: ResultContext) -> Computed[Progress]:
        handed_out: _Table = {}
        unacked: _Table = {}
        for batch in state.open_batches():
            for key in filter(None, map(state.key, batch.groups)):
                _count(handed_out, key)
                if batch.status is None:
                    _count(unacked, key)
        known = {
            "failures": state.dispatched.failures(),
            "handed_out": handed_out,
            "unacked": unacked,
            "ready": state.ready.counts(),
            "next_step": state.next_step,
            "final_step": None if state.final_step == NOTHING else state.final_step,
        }
        left, dispatched = list(state.left()), state.dispatched.open()
        counts = state.outcomes, state.dispatched.never_back, state.dispatched.unfinished
        made = partial(_progress, known, left, dispatched, *map(copy, counts))
        return Computed(object(), made, "computed")


_Table = dict[str, dict[str, int]]


def _progress(
    known: Mapping[str, Any],
    left: Iterable[tuple[Key, str]],
    dispatched: Iterable[tuple[str, Iterable[Dispatched]]],
    outcomes: ExampleCounts,
    never_back: ExampleCounts,
    unfinished: ExampleCounts,
) -> Progress:
    """With the other attributes, which are ``known``; none of these is changed any more."""
    ended: defaultdict[str, _Table] = defaultdict(dict, outcomes.by_kind())
    for key, outcome in left:
        _count(ended[outcome], key)
    since: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for environment, groups in dispatched:
        for example_id, since_ts in groups:
            since[environment][example_id].append(since_ts)
    return Progress(
        dispatched={
            name: {example_id: tuple(sorted(times)) for example_id, times in examples.items()}
            for name, examples in since.items()
        },
        never_back=_by_reason(never_back.by_kind()),
        unfinished=_by_reason(unfinished.by_kind()),
        trained=ended["trained"],
        failed=ended["failed"],
        skipped=ended["skipped"],
        filtered=ended["filtered"],
        unknown=ended["unknown"],
        kept=ended["kept"],
        dropped=_by_reason({reason: ended[reason] for reason in (*DROPPED, "unused")}),
        **known,
    )


def _count(table: _Table, key: Key) -> None:
    examples = table.setdefault(key.environment, {})
    examples[key.example_id] = examples.get(key.example_id, 0) + 1


def _by_reason(found: Mapping[str, _Table]) -> dict[str, dict[str, dict[str, int]]]:
    """From reason to environment to example id to environment to example id to reason."""
    swapped: dict[str, dict[str, dict[str, int]]] = {}
    for reason, table in found.items():
        for environment, examples in table.items():
            into = swapped.setdefault(environment, {})
            for example_id, count in examples.items():
                into.setdefault(example_id, {})[reason] = count
    return swapped
