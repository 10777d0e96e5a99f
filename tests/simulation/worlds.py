"""The simulated worlds by name, those with a defect, and one seed in one of them."""

from __future__ import annotations

import gc
import logging
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import NamedTuple
from unittest.mock import patch

from harness.failing_blobs import LaggingBlobs
from rollstream.schemas import codec
from rollstream.streams.owned.log import OwnedLog
from simulation.admission.admitted import Admitted
from simulation.broken.admission import (
    BlindToBegun,
    DeafToRequests,
    IgnoringEpochs,
    KeepingTheDead,
    LosingReports,
)
from simulation.broken.adopting import BoundForEach, ExpiringWithoutRoom
from simulation.broken.capping import RetiringUnread
from simulation.broken.dead_lettering import DeadLettering
from simulation.broken.durable_for_confirmed import OnlyItsOwn
from simulation.broken.early_report import ReportingEarly
from simulation.broken.forgetting import (
    ForgettingCheckpoints,
    ForgettingDrops,
    ForgettingReplacements,
    ForgettingRewinds,
)
from simulation.broken.no_barrier import UpToTheEndBefore
from simulation.broken.no_doubt import AppendingTwice
from simulation.broken.no_fence import Forging, OpenFence
from simulation.broken.reporting import KeepingWhatEnded, TellingAtOnce
from simulation.broken.steps import BROKEN_STEPS
from simulation.broken.waiting import (
    EndingForOne,
    GoingByTheirClocks,
    NeverInDoubt,
    NeverTelling,
    WaitingForCommits,
)
from simulation.consumers.adopting import Adopting
from simulation.consumers.capped import Capped
from simulation.consumers.sealers import Sealers
from simulation.consumers.silences import Silences
from simulation.consumers.upgrades import Upgrades
from simulation.sampler.carrying import Carrying, NotHeld
from simulation.sampler.reused import Reused
from simulation.sampler.scored import LateRewards
from simulation.sampler.snapshots import Snapshots
from simulation.sampler.trainers import Trainers
from simulation.streams.owners import Owners, log_over
from simulation.world import Violation, World

CAUGHT_WITHIN = 1000  # Seeds after which a defect counts as never caught.
EVENTS_KEPT = 4096  # Decoded, of one seed: more than any writes.
OBJECTS_BETWEEN_COLLECTIONS = 20_000

MakeWorld = Callable[[int], World]

WORLDS: Mapping[str, MakeWorld] = {
    "owners": Owners,
    "sealers": Sealers,
    "capped": Capped,
    "upgrades": Upgrades,
    "silences": Silences,
    "adopting": Adopting,
    "sampler": Trainers,
    "snapshots": Snapshots,
    "uses": Reused,
    "carrying": Carrying,
    "scores": LateRewards,
    "admission": Admitted,
}
# A world that takes longer has each so many-th seed.
EVERY: Mapping[str, int] = {"admission": 4, "adopting": 2, "capped": 4, "silences": 4}

# Defects of an owner, whoever it is: what stands between it and its log.
_OWNERS = {
    "no_barrier": UpToTheEndBefore,
    "no_doubt": AppendingTwice,
    "durable_for_confirmed": OnlyItsOwn,
}
_OF_SAMPLERS = {
    **_OWNERS,
    "no_fence": Forging,
    "early_report": ReportingEarly,
    "forgetting_drops": ForgettingDrops,
    "forgetting_replacements": ForgettingReplacements,
    "forgetting_checkpoints": ForgettingCheckpoints,
    "forgetting_rewinds": ForgettingRewinds,
}
BROKEN: Mapping[str, MakeWorld] = {
    "owners/no_fence": partial(Owners, make_log=partial(OwnedLog, make_fence=OpenFence)),
    **{f"owners/{name}": partial(Owners, make_log=log_over(w)) for name, w in _OWNERS.items()},
    "sealers/no_fence": partial(Sealers, wrap=Forging),
    "sealers/durable_for_confirmed": partial(Sealers, wrap=OnlyItsOwn),
    "sealers/store_that_lags": partial(Sealers, wrap_store=LaggingBlobs),
    "sealers/telling_at_once": TellingAtOnce,
    "sealers/keeping_what_ended": KeepingWhatEnded,
    **{f"sealers/{name}": partial(Sealers, steps=steps) for name, steps in BROKEN_STEPS.items()},
    **{f"sampler/{name}": partial(Trainers, wrap=wrap) for name, wrap in _OF_SAMPLERS.items()},
    "capped/retiring_unread": RetiringUnread,
    "upgrades/dead_lettering": DeadLettering,
    "silences/waiting_for_commits": WaitingForCommits,
    "silences/going_by_their_clocks": GoingByTheirClocks,
    "silences/never_in_doubt": NeverInDoubt,
    "silences/ending_for_one": EndingForOne,
    "silences/never_telling": NeverTelling,
    "adopting/bound_for_each": BoundForEach,
    "adopting/expiring_without_room": ExpiringWithoutRoom,
    "carrying/not_held": NotHeld,
    "admission/keeping_the_dead": KeepingTheDead,
    "admission/blind_to_begun": BlindToBegun,
    "admission/deaf_to_requests": DeafToRequests,
    "admission/ignoring_epochs": IgnoringEpochs,
    "admission/losing_reports": LosingReports,
}


class Seen(NamedTuple):
    """What one seed came to in one world.

    Attributes:
        violation: what did not hold; empty: everything did.
    """

    world: str
    seed: int
    faults: int
    reached: Counter[str]
    violation: str


def run_seed(name: str, seed: int) -> Seen:
    """One seed in one world, sound or broken. Events do not change, so each is decoded once for all
    who read it."""
    world = (WORLDS.get(name) or BROKEN[name])(seed)
    violation = ""
    try:
        with patch.object(codec, "decode", lru_cache(EVENTS_KEPT)(codec.decode)):
            world.run()
    except Violation as found:
        violation = str(found)
    except Exception:  # noqa: BLE001 - whatever no world expects is a violation too
        violation = traceback.format_exc()
    return Seen(name, seed, world.faults, world.reached, violation)


def first_caught(name: str, first: int, within: int = CAUGHT_WITHIN) -> Seen | None:
    """The first seed, of so many from ``first`` on, under which the world with a defect is
    caught."""
    for seed in range(first, first + within):
        seen = run_seed(name, seed)
        if seen.violation:
            return seen
    return None


def begin_process() -> None:
    """For a process that runs nothing but seeds: what sealers and samplers log about faults is
    expected, and what was imported is no garbage to look for again and again."""
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
