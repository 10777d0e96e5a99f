"""A sampler's hold on its decision log, and its reading of the seal logs: one state of both."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import count
from math import inf

from rollstream.folds.choosing import choosing_of
from rollstream.folds.group.scored import Given
from rollstream.folds.remedies import given_up_without_bound
from rollstream.folds.state import SamplerState
from rollstream.runtime.clock import Clock
from rollstream.runtime.collection import without_collection
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import Entropy
from rollstream.sampler.configuration import (
    reports_of,
    root_of_deployment,
    sampler_config,
    score_logs_of,
    seal_logs_of,
)
from rollstream.sampler.decide.choosing.dropping import after_sealed
from rollstream.sampler.decide.command import Now
from rollstream.sampler.engine.ends import Ends
from rollstream.sampler.engine.lost_logs import newest_written, require_log_of
from rollstream.sampler.engine.ownership import OWNER, UNCLAIMED, DecisionClock, Ownership
from rollstream.sampler.engine.reading import (
    FOLLOW_RECORDS_MAX,
    Arrived,
    Reading,
    reading_deadline,
)
from rollstream.sampler.engine.score_pressure import Questions, ScorePressure
from rollstream.sampler.engine.snapshots import Snapshots
from rollstream.schemas.events import SamplerEvent, Scored
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.blobs import Blobs
from rollstream.store.bounded import bounded
from rollstream.streams.broker import Broker, Offsets, TopicPartition
from rollstream.streams.errors import DeliveryUnknown, Fenced, UnreadableLog
from rollstream.streams.folds.reported import ReportedNow
from rollstream.streams.owned.follow import ConfirmedEvent, Follower, PutAside
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.reading import HowFar, how_far
from rollstream.streams.reports import Reports
from rollstream.streams.topics.layout import Layout

_log = logging.getLogger("rollstream.sampler")
TRY_AGAIN_S = 60.0  # How often a log that is put aside is read again: somebody may have mended it.
ANSWER_S = 10.0  # A broker that does not answer by then lets others have their turn.


class SamplerLogs:
    """Claims, reads and writes the logs of one sampler, and folds them into its state.

    A seal log that cannot be read on is put aside: the state keeps what was folded of it, every
    decision records that cursor, and all other logs are folded. It is tried again every
    ``TRY_AGAIN_S``, and goes on from that cursor once it can be read.

    Where the outcome of a write is not known it is no owner any more: ``claim`` first, after which
    the state holds what was written. Once fenced it stays so, and never takes the log back.

    Not shared between threads, but for ``folding``, ``ends`` and the follower of ``begin_reading``:
    one thread may poll that one while others do all else.

    Attributes:
        ends: asks where the logs end.
        log_clock: of decisions.
        state: of all that was folded; another object after a claim or a read that began anew.
        ownership: of the decision log; once it is over it stays so.
        changed: whether the state or the claim changed since somebody last set it to False.
    """

    def __init__(
        self,
        name: str,
        config: RollstreamConfig,
        broker: Broker,
        store: Blobs,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        choosing = choosing_of(sampler_config(name, config), config.environments)
        self._name, self._config, self._broker = name, config, broker
        self._store = bounded(store, config.kafka.timeout_s, clock)  # Calls wait for the lock.
        self._clock = clock
        self.log_clock = DecisionClock(clock)
        self._addresses = seal_logs_of(name, config)
        self._score_logs: dict[TopicPartition, PartitionAddress] = {}  # Once they were looked for.
        self._pressure = ScorePressure(self._addresses, self._score_logs, clock)
        self._aside: dict[TopicPartition, PutAside] = {}  # Of this state, by all of its followers.
        self._try_at_s = 0.0  # When those are read again.
        self._follower: Follower | None = None  # Set once it has read the seal logs to their ends.
        self._reading: Follower | None = None  # That a thread polls now,
        self._folded_to: Offsets = {}  # and what it had returned by then.
        logs = list(self._addresses.values())
        where = Layout.of(config.kafka).sampler_log(name)
        empty = SamplerState(name, choosing, logs)
        self._snapshots = Snapshots(store, where, empty, self._addresses, broker, clock)
        self._log = OwnedLog(
            broker,
            where,
            owner=f"{socket.gethostname()}:{os.getpid()}",
            make_fold=lambda: SamplerState(name, choosing, logs),
            entropy=entropy,
            saved=self._snapshots.found,
        )
        self.state = self._log.fold
        self.ownership = UNCLAIMED
        self.changed = False
        self._reports = Reports(broker, reports_of(name, config), clock)
        self._numbers = count()
        self.ends = Ends(broker, self._log, self._addresses, self._score_logs, self.next_number)
        self._owned_at = -1  # Nobody had taken over when this number was drawn.
        self._deployment_checked = False
        self._said_unbounded = False
        self._reads: Callable[[], Sequence[HowFar]] = tuple  # The logs that are folded just now.
        self._is_claiming = False  # While logs are folded before, and after, a claim.

    @property
    def root_id(self) -> str:
        """Of the store's root, once the deployment was checked."""
        return self._log.root_id

    @property
    def claimed(self) -> bool:
        """Whether it owns the decision log, as far as it knows."""
        return self.ownership is OWNER

    @property
    def being_read(self) -> bool:
        """Whether a thread polls the follower of ``begin_reading``."""
        return self._reading is not None

    def folding(self) -> str:
        """How far logs are folded that are read to their ends just now, in words; empty: none
        are."""
        logs = self._reads()
        return how_far(logs) if any(one.position < one.end for one in logs) else ""

    def attempt(self) -> Deadline:
        """For all that one attempt asks of the broker."""
        return Deadline(min(ANSWER_S, self._config.kafka.timeout_s), self._clock)

    def next_number(self) -> int:
        """Greater than every number that was drawn before; any thread may draw one."""
        return next(self._numbers)

    def now(self) -> Now:
        """The claim and log time, for the events of a decision."""
        return Now(epoch=self._log.epoch, nonce=self._log.nonce, now_ts=self.log_clock.now_us())

    def check_deployment(self, deadline: Deadline) -> None:
        """Checks topics and root against the configuration, until they were found to be right.

        Raises:
            TopicMismatch, RootMismatch, BrokerUnavailable, StoreHangs: as ``root_of_deployment``.
        """
        if self._deployment_checked:
            return
        # Says at once, and in its own words, why no broker can be reached.
        self._broker.admin().reach(deadline.left_s())
        self._log.root_id = root_of_deployment(
            self._name, self._config, self._broker, self._store, deadline
        )
        self._snapshots.root_id = self._log.root_id
        self._score_logs.update(score_logs_of(self._name, self._config, self._broker, deadline))
        self._deployment_checked = True

    def is_owner(self, number: int, deadline: Deadline) -> bool:
        """Returns whether nobody had taken over at some time after ``number`` was drawn; False and
        ``Fenced`` as ``confirm``. So calls that come together cost one question to the broker."""
        return self.knows_to_own(number) or self.confirm([], deadline)

    def knows_to_own(self, number: int) -> bool:
        """The same, as far as is known: where ``ends`` was asked since, by what is folded."""
        known = self.claimed and self._log.next_offset >= self.ends.of_decisions_since(number)
        return known or self._owned_at > number

    def confirm(self, events: Sequence[SamplerEvent], deadline: Deadline) -> bool:
        """Appends the events and waits until they are confirmed; where there are none, checks that
        nobody took over (``Fenced``). Returns False where the outcome is unknown: after the next
        claim the state holds what was written."""
        number = self.next_number()
        try:
            if events:
                for event in events:
                    self._log.wait_confirmed(self._log.append(event), deadline)
                self.changed = True
            else:
                self._log.check_still_owner(deadline)
        except DeliveryUnknown:
            self._become(UNCLAIMED)
            return False
        except Fenced as error:
            raise self._stop_for_good(error) from error
        except BaseException:  # Also an interrupt: it may have been written.
            if self._log.place() is None:
                self._become(UNCLAIMED)
            raise
        self._owned_at = number
        self.log_clock.confirmed(self._log.confirmed_us)
        self.log_clock.told(events)
        return True

    def claim(self, deadline: Deadline) -> None:
        """Claims the log, and folds the seal logs where the state is new. Raises ``Fenced`` where
        somebody took over, ``ClaimFailed`` where the broker does not answer, ``LogLost`` where the
        store's root knows of decisions that the log does not hold."""
        behind = self._follower is None or self._log.epoch < 0
        if behind:  # Before the claim, so that whoever is fenced has a successor that is ready.
            self.read(deadline, claiming=True)
            deadline = self.attempt()
        else:
            self._look(deadline, deadline, files=True)
        try:
            # Somebody may have taken over meanwhile: a sampler never takes its log back.
            self._log.claim(deadline, retake=False)
        except Fenced as error:
            raise self._stop_for_good(error) from error
        self.log_clock.claimed(self._log.confirmed_us)
        if behind or self._log.fold is not self.state:
            self._fold_to_ends(self.reading_deadline())
        self._become(OWNER)
        self.changed = True
        given_up = given_up_without_bound({self._name: self.state.choosing})
        if given_up and not self._said_unbounded:
            _log.warning("sampler %r: %s", self._name, given_up)
        self._said_unbounded = True

    def read(self, deadline: Deadline, *, claiming: bool = False) -> None:
        """Folds all logs up to their ends, and claims nothing. Only that the broker answers is
        within the deadline: its logs may be long. The first time, and where it is to be claimed
        next, it raises ``LogLost`` as ``claim``."""
        reading = self.reading_deadline()
        self._is_claiming = claiming
        try:
            with without_collection():
                self._look(reading, deadline, files=claiming or self._follower is None)
                self._fold_to_ends(reading)
        finally:
            self._is_claiming = False

    def count_unfolded(self, ends: Offsets) -> int:
        """How many offsets below these ends an owner has not folded yet, of logs that it reads."""
        follower = self._follower
        assert follower is not None, "claim first"
        at = self._folded_to if follower is self._reading else follower.next_offsets()
        read = ends.keys() & at.keys() - follower.paused
        return sum(max(0, ends[one] - at[one]) for one in read if not follower.is_aside(one))

    def fold_arrived(self, deadline: Deadline) -> bool:
        """Folds what was sealed, unless a thread is reading that; returns as ``fold``."""
        if self.being_read:
            return True
        assert self._follower is not None, "claim first"
        self._try_aside(self._follower)
        return self.fold(Arrived(self._follower.poll(FOLLOW_RECORDS_MAX, 0.0)), deadline)

    def fold(self, arrived: Arrived, deadline: Deadline) -> bool:
        """Folds what was sealed, evicts what is beyond the capacity and records the cursor where
        files were retired; returns as ``confirm``. Where that fails, the next claim reads
        anew what is not folded."""
        assert self._follower is not None, "claim first"
        try:
            for one in arrived.sealed:
                self._apply(one, self._follower)
        except BaseException:
            self._become(UNCLAIMED)
            self._stop_following()  # It stands behind all of them.
            raise
        self._note_aside()
        self.changed = self.changed or bool(arrived.sealed)
        self._pressure.settle(self.state, self._follower, arrived.answers)
        clock = self.log_clock
        now = self.now(), clock.machine_us()
        events = after_sealed(self.state, *now, tells_clock=clock.is_untold)
        return not events or self.confirm(events, deadline)

    def save(self) -> None:
        """Begins to write a snapshot of what was folded, where one is due."""
        if self.claimed:
            self._save(self.state, owned=True)

    def _decisions_on_way(self, deadline: Deadline, end: int) -> None:
        """Some of the decision log was folded."""
        deadline.restart()
        far = HowFar(self._log.where, self._log.next_offset, end)
        self._reads = lambda: [far]
        self._save_on_way()

    def _save_on_way(self) -> None:
        """Does the same while all that there is is folded for a claim: where that takes longer
        than there is time, the next attempt goes on from there."""
        if self._is_claiming:
            self._save(self._log.fold, owned=False)

    def _save(self, state: SamplerState, *, owned: bool) -> None:
        if self._pressure.passed_over:
            return  # A start that can read those logs needs the scores that were forgotten.
        if self._snapshots.is_due(state) and (place := self._log.place(owned=owned)) is not None:
            self._snapshots.write(state, place, compared=owned)

    def reported(self) -> ReportedNow:
        """What sealers report of now, as far as what they sealed is folded. Waits for nothing."""
        self._reports.follow(self._applied)
        return self._reports.reported

    def seen(self) -> tuple[SamplerState, Callable[[], ReportedNow], int]:
        """The state, what sealers report when it is called, and log time in microseconds."""
        return self.state, self.reported, self.log_clock.now_us()

    def begin_reading(self) -> Reading:
        """What is sealed next, for a thread to poll until it calls ``end_reading``."""
        assert self._follower is not None, "claim first"
        assert self._reading is None, "a thread reads already"
        self._try_aside(self._follower)
        self.ends.serve(self._clock.monotonic_s())  # If it fails, nobody reads yet.
        self._reading, self._folded_to = self._follower, self._follower.next_offsets()
        return Reading(self._follower, self.questions(), self._clock)

    def questions(self) -> Questions | None:
        """What the broker is to be asked by whoever reads next; None: nothing is."""
        if self._follower is None:
            return None
        return self._pressure.questions(self.state, self._follower)

    def end_reading(self, reading: Reading, *, lost: bool = False) -> bool:
        """Returns whether what the thread read is to be folded; False: others read anew.

        Args:
            lost: the thread was interrupted, and nobody has what it read.
        """
        self._reading = None
        self._note_aside()
        if reading.follower is not self._follower:
            reading.follower.close()
            return False
        if lost:
            self._become(UNCLAIMED)
            self._stop_following()  # It stands behind all of that.
        return not lost

    def close(self) -> None:
        """Owns and follows nothing any more, for good."""
        self._become(Ownership("closed", f"sampler {self._name!r} is closed; make a new one"))
        self._stop_following()

    def release(self) -> None:
        """Closes what it reads and writes the decision log with, after ``close``."""
        self._log.release()
        self.ends.close(self.attempt())
        self._reports.close()
        self._snapshots.close()

    def reading_deadline(self) -> Deadline:
        """As the function of this name, by ``kafka.timeout_s``."""
        return reading_deadline(self._config.kafka.timeout_s, self._clock)

    def _look(self, deadline: Deadline, ends: Deadline, *, files: bool) -> None:
        """Folds the decision log up to its end, which is to be known by ``ends``; with ``files`` it
        is compared with what they know of it."""
        log, written = self._log, None
        if files:
            written = newest_written(self._store, self._name, log.where)  # Before it is read.
        try:
            on_way = partial(self._decisions_on_way, deadline)
            log.look(deadline, end_within_s=ends.left_s(), on_way=on_way)
        except Fenced as error:
            raise self._stop_for_good(error) from error
        finally:
            self._reads = tuple
        if written is not None:
            disproved = self._snapshots.disproved
            require_log_of(written, log.where, log.fold, log.next_offset, disproved)

    def _stop_for_good(self, error: Fenced) -> Fenced:
        """Returns what every call raises from now on."""
        why = f"sampler {self._name!r} was taken over and this one stops for good: {error}"
        self._become(Ownership("fenced", why))
        return Fenced(why)

    def _become(self, ownership: Ownership) -> None:
        if not self.ownership.is_over:
            self.ownership = ownership

    def _fold_to_ends(self, deadline: Deadline) -> None:
        """Reads the seal logs to their ends within the deadline, and folds what the state has not
        applied yet: from the claims on under which it was written."""
        if self._log.fold is not self.state:
            self.state, self._aside = self._log.fold, {}
            self._pressure.passed_over.clear()
            self._reports.restart()
            self._stop_following()
        elif self._follower is self._reading:
            self._stop_following()  # Another thread is at it: this one reads anew.
        follower, self._follower = self._follower, None
        if follower is None:
            follower = self._follow_all(deadline)
        try:
            went_on = True
            while went_on:  # Scores that were paused, and may be read now.
                self._fold_all(follower, deadline)
                paused = frozenset(follower.paused)
                self._pressure.look(self.state, follower)
                went_on = not paused <= follower.paused
            self._reports.load(self._applied, deadline)
        except BaseException:
            follower.close()
            raise
        self._note_aside()
        self._follower = follower

    def _note_aside(self) -> None:
        """Tells the state which logs are read no more: who lacks a score of theirs waits."""
        aside = sorted(self._aside.items())
        if aside and not self.state.aside:
            self._try_at_s = self._clock.monotonic_s() + TRY_AGAIN_S
        self.state.put_aside(
            {str(where): f"{one.error}{self._pressure.told_of(where)}" for where, one in aside}
        )
        of, late = self._reports.reported.in_flight, self.state.late
        of.aside = frozenset(self._addresses[one] for one in self._aside.keys() & self._addresses)
        late.behind |= {self._score_logs[one] for one in self._aside.keys() & self._score_logs}

    def _try_aside(self, follower: Follower) -> None:
        """Reads the logs again that were put aside, where it is time."""
        now_s = self._clock.monotonic_s()
        if self._aside and now_s >= self._try_at_s:
            self._try_at_s = now_s + TRY_AGAIN_S
            follower.try_again(self._aside.keys() - self._pressure.passed_over)

    def _fold_all(self, follower: Follower, deadline: Deadline) -> None:
        self._reads = follower.how_far
        try:
            for one in follower.read_to_end(deadline, ends_within_s=self.attempt().timeout_s):
                self._apply(one, follower)
                deadline.restart()
                self._save_on_way()
                if isinstance(one.event, Scored) and self.state.late.is_full(
                    self._score_logs[one.where]
                ):
                    self._pressure.look(self.state, follower)
        finally:
            self._reads = tuple

    def _apply(self, one: ConfirmedEvent, follower: Follower) -> None:
        """Folds an event of a seal log, or of a log of scores, unless an earlier attempt did. An
        event that does not hold together changes nothing, and puts its log aside."""
        aside = self._aside.get(one.where)
        if aside is not None and one.offset >= aside.offset:
            return
        if isinstance(one.event, Scored):
            scores = self._score_logs[one.where]
            if one.offset >= self.state.late.applied(scores):
                self.state.apply_scores(scores, one.offset, Given(one.event, one.timestamp_us))
            return
        address = self._addresses[one.where]
        if one.offset >= self.state.applied(address):
            try:
                self.state.apply_groups(address, one.offset, one.event, one.timestamp_us)
            except UnreadableLog as error:
                follower.put_aside(one.where, one.offset, error)
            else:
                self._reports.reported.apply_sealed(address, one.offset, one.event)

    def _applied(self, log: PartitionAddress) -> float:
        """Up to where a seal log is folded; one that is not read on holds up no report."""
        is_aside = log in self._reports.reported.in_flight.aside
        return inf if is_aside else self.state.applied(log)

    def _follow_all(self, deadline: Deadline) -> Follower:
        """Reads on where the state ends. Where scores are to be read besides, all groups are folded
        before: what is scored is then known, and no score has to wait for it."""
        if self._score_logs:
            with closing(Follower(self._broker, self._starts(), aside=self._aside)) as groups:
                self._fold_all(groups, deadline)
                for environment in self.state.choosing.names():
                    asked = self.attempt()
                    self._pressure.look_at(self.state, groups, environment, asked)
        late = {where: self.state.late.applied(log) for where, log in self._score_logs.items()}
        return Follower(self._broker, {**self._starts(), **late}, scores=late, aside=self._aside)

    def _starts(self) -> dict[TopicPartition, int]:
        claims = {where: self.state.claim_of(log) for where, log in self._addresses.items()}
        return {where: 0 if claim is None else claim[0] for where, claim in claims.items()}

    def _stop_following(self) -> None:
        """Drops the follower; one that a thread polls now is closed by that thread."""
        follower, self._follower = self._follower, None
        if follower is not None and follower is not self._reading:
            follower.close()
