"""Several owners of one log under a seed: they claim, settle, crash, and everything goes wrong.

Each owner settles items 0, 1, 2, … of one source, a few at a time, and acts on what is confirmed.
An item is an entry; each offset of the source has three.
At every call to the broker another owner may get its turn, so claims and appends interleave anyhow.
Strangers write records that no owner wrote, which everybody passes over.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

from harness.entropy import SeededEntropy
from harness.faults import Append, Fate, always_pass
from harness.seal_events import flushed
from harness.sealed_state import digest_of
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import Flushed
from rollstream.streams.broker import EARLIEST, Broker, TopicPartition, TopicSpec
from rollstream.streams.errors import ClaimFailed, CorruptLog, DeliveryUnknown, Fenced
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.owned.follow import Follower
from rollstream.streams.owned.log import OwnedLog
from simulation.world import TurningBroker, Violation

WHERE = TopicPartition("groups", 0)
STEPS = 60  # Turns of owners.
ITEMS = 150
ENTRIES = 3  # Of each offset: item n is entry n % 3 of offset n // 3.
HORIZON = 12
NEAR_MAX = 6  # Of the open items, so many may be settled next, in any order.
CLAIM_S = 30.0
STRANGER_RATE = 0.02  # At a call to the broker, somebody without a right writes to the log.
DEPTH_MAX = 4  # How many owners' turns may stand inside one another.
BAD_FATES = [fate for fate in Fate if fate is not Fate.PASS]

MakeLog = Callable[..., OwnedLog[SealFold]]


def log_over(wrap: Callable[[Broker], Broker]) -> MakeLog:
    """Owned logs over such a broker."""

    def make_log(broker: Broker, where: TopicPartition, **settings: Any) -> OwnedLog[SealFold]:
        return OwnedLog(wrap(broker), where, **settings)

    return make_log


class Act(NamedTuple):
    """What an owner did because it had confirmed an event."""

    offset: int
    items: tuple[int, ...]


class Owner:
    """One process: a log that it claims, settles and acts on; crashes are new objects."""

    def __init__(self, world: Owners, name: str) -> None:
        self.world = world
        self.name = name
        self.busy = False
        self._start()

    def _start(self) -> None:
        dice = self.world.dice
        self.log = self.world.make_log(
            self.world.broker,
            WHERE,
            owner=self.name,
            make_fold=lambda: SealFold(dedupe_horizon=HORIZON),
            entropy=SeededEntropy(dice.randrange(2**32)),
        )
        self.claimed = False

    def step(self) -> None:
        """One turn; another owner's turn may happen inside it."""
        self.busy = True
        try:
            if self.world.dice.random() < self.world.crash_rate:
                self.world.reached["crashes"] += 1
                self._start()  # Without a word to anybody: what was on its way stays on its way.
            elif not self.claimed or self.log.should_reclaim():
                self._claim()
            else:
                self._settle()
        finally:
            self.busy = False

    def _claim(self) -> None:
        hints = [None, *(act.offset for act in self.world.acts), *self.world.epochs, 7]
        try:
            self.log.claim(Deadline(CLAIM_S, self.world.clock), hint=self.world.dice.choice(hints))
        except (ClaimFailed, Fenced):
            self.claimed = False
        else:
            self.claimed = True
            self.world.reached["adoptions"] += 1
            self.world.epochs.append(self.log.epoch)

    def _settle(self) -> None:
        fold, dice = self.log.fold, self.world.dice
        unsettled = (n for n in range(ITEMS) if not fold.settled(*divmod(n, ENTRIES)))
        open_items = list(islice(unsettled, NEAR_MAX + 1))  # The watermark needs one beyond.
        if not open_items:
            return
        near = open_items[:NEAR_MAX]
        items = tuple(sorted(dice.sample(near, dice.randint(1, len(near)))))
        left = [n for n in open_items if n not in items]
        event = flushed(
            self.log.epoch,
            self.log.nonce,
            [divmod(n, ENTRIES) for n in items],
            left[0] // ENTRIES if left else ITEMS // ENTRIES,
            counts={n // ENTRIES: ENTRIES for n in items},
        )
        try:
            ticket = self.log.append(event)
            offset = self.log.wait_confirmed(ticket, Deadline(5.0, self.world.clock))
        except (Fenced, DeliveryUnknown) as error:
            self.claimed = False
            self.world.reached["fenced" if isinstance(error, Fenced) else "in doubt"] += 1
        else:
            self.world.acts.append(Act(offset, items))


class Owners:
    """The world of one seed.

    Args:
        make_log: ``OwnedLog``, or a deliberately broken one.
    """

    def __init__(self, seed: int, make_log: MakeLog = OwnedLog) -> None:
        self.dice = random.Random(seed)
        self.make_log = make_log
        self.clock = ManualClock()
        self.acts: list[Act] = []
        self.epochs: list[int] = []
        self.crash_rate = 0.05
        logs = MemoryLogs(self.clock)
        logs.create(TopicSpec(WHERE.topic, 1, {}))
        self.faults = 0
        self.reached: Counter[str] = Counter()
        self._memory = MemoryBroker(logs)
        self.broker = TurningBroker(self._memory, self._maybe_turn, self._fate)
        # Dice of their own, so that every seed stays what it was.
        self._strangers = random.Random(f"strangers-{seed}")
        self._fault_rate = self.dice.choice((0.0, 0.05, 0.2))
        self._turn_rate = self.dice.choice((0.05, 0.2, 0.5))
        self._owners = [Owner(self, f"owner-{n}") for n in range(self.dice.choice((2, 2, 3)))]

    def run(self) -> None:
        """Turns of owners, then the end: what is held lands, and one owner finishes.

        Raises:
            Violation: with what did not hold.
        """
        try:
            for _ in range(STEPS):
                self.dice.choice(self._owners).step()
                if self.dice.random() < 0.1:
                    self.broker.land()
            self._finish()
            self._check()
        except CorruptLog as error:
            raise Violation(f"the log says what cannot be: {error}") from error

    def _finish(self) -> None:
        self.broker.fate = always_pass
        self.crash_rate = self._turn_rate = 0.0
        self.broker.land()
        last = self._owners[0]
        for _ in range(200):
            last.step()
            if last.claimed and last.log.fold.watermark == ITEMS // ENTRIES:
                return
        raise Violation("the last owner never finished")

    def _check(self) -> None:
        fold = SealFold(dedupe_horizon=HORIZON)
        there: dict[int, tuple[int, ...]] = {}
        follower = Follower(self._memory, {WHERE: EARLIEST})
        for confirmed in follower.read_to_end(Deadline(30.0, self.clock)):
            fold.apply(confirmed.offset, confirmed.timestamp_us, confirmed.event)
            if isinstance(confirmed.event, Flushed):
                sealed = confirmed.event.segments
                there[confirmed.offset] = tuple(
                    (sealed.offsets * ENTRIES + sealed.entries).tolist()
                )
        follower.close()
        items = sorted(item for flush in there.values() for item in flush)
        if items != list(range(ITEMS)):
            raise Violation(f"settled {items}, not each of {ITEMS} once")
        for act in self.acts:
            if there.get(act.offset) != act.items:
                raise Violation(
                    f"{act} was acted upon; at that offset counts {there.get(act.offset)}"
                )
        acted = sorted(item for act in self.acts for item in act.items)
        if len(acted) != len(set(acted)):
            raise Violation(f"acted twice upon {[n for n in set(acted) if acted.count(n) > 1]}")
        if digest_of(fold) != digest_of(self._owners[0].log.fold):
            raise Violation("a reader from the beginning sees another state than the last owner")

    def _fate(self, append: Append) -> Fate:
        if self.dice.random() >= self._fault_rate:
            return Fate.PASS
        self.faults += 1
        return self.dice.choice(BAD_FATES)

    def _maybe_turn(self) -> None:
        if self._strangers.random() < STRANGER_RATE:
            self._memory.logs.append(WHERE, None, b"of somebody else")
            self.reached["records of strangers"] += 1
        idle = [owner for owner in self._owners if not owner.busy]
        busy = len(self._owners) - len(idle)
        if idle and busy < DEPTH_MAX and self.dice.random() < self._turn_rate:
            self.dice.choice(idle).step()
