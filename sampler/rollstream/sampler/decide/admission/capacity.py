"""How many more groups of each environment may be begun. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import NamedTuple

from rollstream.folds.state import SamplerState
from rollstream.runtime.config.sections import SamplerConfig
from rollstream.sampler.decide.capacity import (
    BATCHES_COUNTED,
    by_environment,
    capacities,
    last_batches,
)
from rollstream.sampler.decide.ratio import most_room, room_for_inserts
from rollstream.schemas.order import Branch
from rollstream.streams.folds.in_flight import LivingProducers
from rollstream.streams.folds.reported import ReportedNow

FIRST_GROUPS = 64  # A step's, before anybody asked for one.
Quota = tuple[Sequence[str], int]  # Environments, and how many groups are to come from them.


class Load(NamedTuple):
    """One environment.

    Attributes:
        step: groups of it that a step takes.
        most: groups of it that may be ready, begun, or served and not acked, at one time.
        open: how many more of it may be begun.
        producers: those that live.
        ended: groups that were sealed, or ended otherwise, so far.
        lacking: how many more must be begun for the requests that wait.
        limit: the setting by which, but for these, no more may be begun than ``open``.
        ever: the greatest that ``open`` can become with these settings; 0: not known, since the
            sizes of batches are not: ``groups_per_step`` is not given, and the newest batches
            differ, or are fewer than ``BATCHES_COUNTED``.
    """

    step: int
    most: int
    open: int
    producers: LivingProducers
    ended: int = 0
    lacking: int = 0
    limit: str = ""
    ever: int = 0


def takes_part(state: SamplerState, config: SamplerConfig, now_us: int) -> bool:
    """Whether the sampler says how many groups may be begun: its trainer published a policy within
    ``admission_idle_s``, and the run is not over."""
    age_us = now_us - state.published.newest_ts
    lately = state.published.newest_ts > 0 and age_us <= config.admission_idle_s * 1e6
    return config.admission and lately and not state.over


class Loads:
    """Counts what the environments of a sampler have. It costs the groups of batches that are not
    acked, and the producers; not the ready groups."""

    def __init__(self, config: SamplerConfig) -> None:
        self._config = config
        self._looked_at: tuple[Branch | None] | None = None  # The branch at the last look.
        # What each producer had begun by weights that a resume went back behind.
        self._left_behind: dict[tuple[str, str], int] = {}

    def now(
        self,
        state: SamplerState,
        reported: ReportedNow,
        now_us: int,
        requests: Sequence[Sequence[Quota]] = (),
    ) -> dict[str, Load]:
        """Environment to what may still be begun of it.

        ``most`` is as many steps' groups as ``target_policy_lag`` and one more, or fewer where
        the limits of lag or of ready groups allow fewer. Of that are taken ready groups by the uses
        that are left of them; those that wait for a score; those that living producers have begun;
        those in batches that are served and not acked. What a request lacks that waits may be begun
        whatever is ready, and whatever waits for a score, up to ``most`` groups that do: a verifier
        that is away stops the workers.

        Args:
            reported: by sealers, of producers.
            requests: those that wait for groups.
        """
        names = state.choosing.names()
        living = {name: reported.in_flight.living(name, now_us) for name in names}
        self._look_for_rewind(state, living)
        begun = Counter({name: self._begun(name, living[name]) for name in names})
        ready = state.ready.counts()
        steps = Counter(self._steps(state, requests))
        most = self._most(state, steps)
        unacked = self._unacked(state)
        unscored = {name: max(0, state.late.awaited[name] - most[name][0]) for name in names}
        lacking = _lacking(requests, ready, begun + Counter(unscored))
        # With a ratio a group is as many uses ahead as it is to have, and none after its first.
        uses = self._config.samples_per_insert or max(1, self._config.max_samples)
        room = room_for_inserts(state, begun.total() + state.late.awaited.total())
        known = self._known_step(state, requests)
        loads = {}
        for name in names:
            to_come = begun[name] + state.late.awaited[name]
            left = uses * (ready.get(name, 0) + to_come) + unacked[name]
            if room is None:
                left -= state.uses.used_again(name)
            else:
                left -= uses * state.uses.groups_again(name)
            most_now, limit = most[name]
            free = int(-((left - most_now) // uses))
            if uses > 1:  # The groups of a batch differ, however often each is used.
                free = max(free, steps[name] - ready.get(name, 0) - to_come)
            if room is not None and (part := ceil(room * steps[name] / steps.total())) < free:
                free, limit = part, "samples_per_insert"
            now_open = max(0, free, lacking[name])
            loads[name] = Load(
                steps[name],
                most_now,
                now_open,
                living[name],
                reported.ended(name),
                lacking[name],
                limit,
                max(self._ever(state, name, known, uses), now_open) if known else 0,
            )
        return loads

    def _ever(self, state: SamplerState, name: str, step: int, uses: float) -> int:
        """The greatest number that may be open, with steps of so many groups: each batch may be of
        this environment alone, and lacks at most all of its groups."""
        ever = ceil(self._most(state, Counter({name: step}))[name][0] / uses)
        room = most_room(state.choosing)
        return max(step, ever if room is None else min(ever, ceil(room)))

    def _look_for_rewind(self, state: SamplerState, living: Mapping[str, LivingProducers]) -> None:
        """Where a resume went back behind weights that were published, what is in flight is off
        the branch. A sampler that was started after it does not know what that was, and counts it
        until it ends."""
        branch = state.branches.begun.get(state.policy_epoch)
        before, self._looked_at = self._looked_at, (branch,)
        if branch is None or before in (None, self._looked_at):
            return
        newest = max(map(state.published.newest_step, range(state.policy_epoch)))
        if newest > branch.from_step and state.choosing.off_branch == "drop":
            self._left_behind = {
                (name, one.producer_id): one.begun
                for name, producers in living.items()
                for one in producers
            }

    def _begun(self, name: str, producers: LivingProducers) -> int:
        """Groups that are begun, have not ended, and may be served."""
        if not self._left_behind:
            return int(producers.open.sum())
        left = self._left_behind
        return sum(
            min(one.open, max(0, one.begun - left.get((name, one.producer_id), 0)))
            for one in producers
        )

    def _steps(self, state: SamplerState, requests: Sequence[Sequence[Quota]]) -> dict[str, int]:
        """Groups a step of each environment: by the newest batch's ``mix``, else half of an even
        share, so that none is left without, and the rest by what the last batches had."""
        names, last = state.choosing.names(), last_batches(state)
        # Steps of ready packs may need none; their workers begin some all the same.
        fewest = 1 if last else FIRST_GROUPS
        largest = max(_asked(state, requests), default=0)
        groups = self._config.groups_per_step or largest or fewest
        if len(names) == 1:
            return {names[0]: groups}
        mix: Mapping[str, float] | None = json.loads(last[0].event.request)["mix"] if last else None
        if mix is not None and any(mix.get(name) for name in names):
            total = sum(mix.values())
            return {name: ceil(groups * mix.get(name, 0.0) / total) for name in names}
        served = by_environment(last)
        weights = {name: served[name] if served else 1 for name in names}
        total_served = sum(weights.values())
        least = groups / len(names) / 2
        return {name: ceil(least + groups / 2 * weights[name] / total_served) for name in names}

    def _known_step(self, state: SamplerState, requests: Sequence[Sequence[Quota]]) -> int:
        """Groups of each step, as it may be relied upon; 0: it may not. The first batches of a run
        may be smaller than those to come."""
        asked = _asked(state, requests)
        if self._config.groups_per_step is not None:
            return max(self._config.groups_per_step, *asked, 0)
        few = len(last_batches(state)) < BATCHES_COUNTED or self._config.ready_packs is not None
        return 0 if few or len(set(asked)) > 1 else asked[0]

    def _most(self, state: SamplerState, steps: Counter[str]) -> dict[str, tuple[int, str]]:
        """Of each environment, with the setting that says so."""
        choosing = state.choosing
        limits = {
            "target_policy_lag": self._config.target_policy_lag,
            "max_policy_lag": choosing.max_policy_lag,
            "max_rollout_step_delay": choosing.max_rollout_step_delay,
        }
        lag, by = min((value, name) for name, value in limits.items() if value >= 0)
        kept = capacities(state)  # What exceeds it is dropped.
        ready = "capacity" if kept else "capacity_groups"
        every = choosing.capacity_groups
        return {
            name: min(
                ((lag + 1) * step, by), (kept.get(name, every * step // steps.total()), ready)
            )
            for name, step in steps.items()
        }

    def _unacked(self, state: SamplerState) -> Counter[str]:
        """Uses of groups by environment that batches have which are served and not acked: the one
        that is under way, and, without a ratio, those that are left after it."""
        uses = 1 if self._config.samples_per_insert else self._config.max_samples
        if uses > 1:
            groups, left = state.unacked(uses)
            return groups + left
        unacked = [one for one in state.open_batches() if one.status is None]
        return by_environment(unacked)


def _asked(state: SamplerState, requests: Sequence[Sequence[Quota]]) -> list[int]:
    """Groups of each request, and of each of the last batches: as many as were asked for, since too
    few may have been ready."""
    asked = [sum(count for _, count in request) for request in requests]
    return asked + [json.loads(one.event.request)["num_groups"] for one in last_batches(state)]


def _lacking(
    requests: Iterable[Sequence[Quota]], ready: Mapping[str, int], begun: Mapping[str, int]
) -> Counter[str]:
    """How many groups of an environment must be begun for the requests that wait, beyond those that
    are. Where they come from several environments, each may bring all: one may have no worker."""
    lacking = Counter[str]()
    for request in requests:
        short = [
            (names, wanted - sum(ready.get(name, 0) for name in names)) for names, wanted in request
        ]
        if all(lacks <= 0 for _, lacks in short):
            short = list(request)  # Enough is ready, and this request can have none of it.
        for names, lacks in short:
            more = lacks - sum(begun[name] for name in names)
            for name in names:
                lacking[name] = max(lacking[name], more)
    return lacking
