"""The engine that executes commands: decide, append, wait until it is confirmed, reply."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import count

from rollstream.runtime.clock import Clock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import LOG_WAITING_EVERY_S, Deadline
from rollstream.runtime.entropy import Entropy
from rollstream.sampler.deciding.command import Command, Now, R, Reply, ResultContext, Unread, read
from rollstream.sampler.deciding.dropping import evict_over_capacity
from rollstream.sampler.deciding.shortages import Shortage
from rollstream.sampler.errors import GroupsUnreadable, SamplerError, SamplerUnavailable
from rollstream.sampler.serving.calls import AGAIN_S, PASSING, UNANSWERED, Call, WaitingCalls
from rollstream.sampler.serving.configuration import (
    root_of_deployment,
    sampler_config,
    seal_logs_of,
)
from rollstream.sampler.serving.payloads import Payloads
from rollstream.sampler.serving.projecting import Projector
from rollstream.sampler.serving.repairing import lost_groups, repaired
from rollstream.schemas.events import BatchServed, Replaced, SamplerEvent
from rollstream.store.blobs import Blobs
from rollstream.store.open import open_store
from rollstream.streams.broker import Broker
from rollstream.streams.errors import (
    BrokerError,
    DeliveryUnknown,
    Fenced,
)
from rollstream.streams.folds.sampler.state import SamplerState
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.owned.follow import ConfirmedEvent, Follower
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.root import StoreRoot

FOLLOW_RECORDS_MAX = 256  # Flushes that are folded at a time.
FOLLOW_SLICE_S = 0.05  # The longest that a thread reads the seal logs before it looks up.
READ_TIMEOUT_FACTOR = 4.0  # Whole logs are read, from a broker that answers.
ANSWER_S = 10.0  # A broker that does not answer by then lets others have their turn.


class Owner:
    """Owns the decision log of one sampler and executes commands, one at a time.

    The first command that claims takes the log over; before it, queries read the logs as they are,
    whoever owns them. A batch is returned only after its event was confirmed. Once fenced it raises
    ``Fenced`` at every call.

    May be shared between threads. One command is decided after the other; a call that waits for
    groups and one whose rows are read keep nobody from deciding. When groups come, calls that wait
    are looked at in the order of their arrival.

    Args:
        broker: None: one to the configured address, closed with the owner.
        store: None: the configured one.
    """

    def __init__(
        self,
        name: str,
        config: RollstreamConfig,
        *,
        broker: Broker | None,
        store: Blobs | None,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        sampler = sampler_config(name, config)
        self._own_broker: KafkaBroker | None = None
        if broker is None:
            broker = self._own_broker = KafkaBroker(config.kafka.bootstrap, config.kafka.client)
        self.name = name
        self._store = open_store(config.store.root) if store is None else store
        self._config = config
        self._broker = broker
        self._clock = clock
        self._layout = Layout.of(config.kafka)
        self._addresses = seal_logs_of(name, config)
        self._follower: Follower | None = None  # Set once it has read the seal logs to their ends.
        self._payloads = Payloads(self._store, sampler.cache_bytes)
        self._projector = Projector(self._store, name)
        self._log = OwnedLog(
            broker,
            self._layout.sampler_log(name),
            owner=f"{socket.gethostname()}:{os.getpid()}",
            make_fold=lambda: SamplerState(name, sampler, list(self._addresses.values())),
            entropy=entropy,
        )
        self._state = self._log.fold
        self._claimed = False  # Also where it is not known what was written: claim first.
        self._closed = False
        self._successor = ""  # Who took over, for people; kept when it is closed.
        # Guards all that is decided with; notified of a claim, and when `_reading` becomes None.
        self._lock = threading.Condition(threading.Lock())
        self._reading: Follower | None = None  # That a thread polls now, without the lock.
        self._waiting = WaitingCalls()
        self._changed = False  # Whether those that wait may have something to gain.
        self._numbers = count()
        self._owned_at = -1  # Nobody had taken over when this number was drawn.
        self._deployment_checked = False
        self._unanswered: Callable[[], Exception] | None = None  # How the newest attempt ended,
        self._unanswered_at = -1  # and the number that was drawn then.

    @property
    def fenced(self) -> bool:
        """Whether another owner took over; it stays so."""
        return self._successor != ""

    def outage(self) -> str:
        """Why no broker can be reached; empty: as far as is known, one can."""
        return self._broker.outage()

    def state_digest(self) -> bytes:
        """A digest of the state as it was folded so far."""
        with self._lock:
            return self._state.digest()

    def check_deployment(self) -> None:
        """Returns when the sampler's topics are as configured, and the store's root is the one
        that its environments' sealers write to; else the first call asks.

        Raises:
            TopicMismatch: topics are missing or not as configured. RootMismatch. BrokerUnavailable.
        """
        self._check_deployment(Deadline(self._config.kafka.timeout_s, self._clock))

    def _check_deployment(self, deadline: Deadline) -> None:
        self._log.root_id = root_of_deployment(
            self.name, self._config, self._broker, self._store, deadline
        )
        self._deployment_checked = True

    def execute(self, command: Command[R], wait_s: float) -> Reply[R]:
        """Decides what the command calls for and replies once that is confirmed.

        Args:
            wait_s: how long groups that are not there yet are waited for.

        Raises:
            NotEnoughGroups: not there within ``wait_s``. Fenced: this sampler has a successor, or
                the command's trainer has. ClaimFailed, BrokerUnavailable: the broker did not answer
                in time. StoreAway: the store was not there in time. Others as the command's
                ``decide`` and ``result``.
        """
        wait = Deadline(wait_s, self._clock)
        deadline = self.deadline(wait_s)
        while True:
            try:
                try:
                    return self._execute(command, wait)
                except GroupsUnreadable as error:
                    command = self.repair(command, error)
            except PASSING as error:
                if deadline.passed():
                    raise
                deadline.log_waiting(partial(str, error))
                deadline.wait(AGAIN_S)

    def deadline(self, wait_s: float) -> Deadline:
        """Until when a call is attempted that the broker does not answer, or whose store is away:
        as long as it waits for groups; those that wait for none, ``kafka.timeout_s``."""
        return Deadline(wait_s or self._config.kafka.timeout_s, self._clock)

    def _execute(self, command: Command[R], deadline: Deadline) -> Reply[R]:
        call = self.begin(command)
        try:
            self.decide(call)
            while True:
                call.woken.clear()  # Before the look: whatever comes after it ends the wait below.
                if not call.ended and deadline.passed():
                    self.give_up(call)
                if call.ended:
                    break
                deadline.log_waiting(lambda: self._describe(call))
                if not self.follow(deadline.slice_s(FOLLOW_SLICE_S)):
                    # Another call's thread reads the seal logs for all; leaving, it wakes one.
                    self._clock.wait(call.woken, deadline.slice_s(LOG_WAITING_EVERY_S))
        finally:
            call.answered.cancel()
            self._waiting.wake_first()
        reply = call.answered.result()
        return Reply(reply.trainer_epoch, read(reply.value))

    def repair(self, command: Command[R], error: GroupsUnreadable) -> Command[R]:
        """The command to go on with; raises as ``repaired``."""
        with self._lock:
            lost = lost_groups(error, self._state)
        stops = self._config.samplers[self.name].on_unreadable == "stop"
        root = StoreRoot(self._config.store.root, self._log.root_id)
        return repaired(command, error, lost, self._payloads, self._store, root, stops=stops)

    def begin(self, command: Command[R]) -> Call[R]:
        """A call for ``decide``."""
        return Call(command, next(self._numbers))

    def decide(self, call: Call[R]) -> None:
        """Answers the call once what it calls for is confirmed; where groups are missing, it waits
        from now on, until it is answered, given up, or cancelled.

        It keeps others from deciding for about ``ANSWER_S`` where the broker does not answer, and
        calls that were begun meanwhile for no time: they get the same error. Raises as ``execute``.
        """
        with self._lock:
            self._check_usable()
            if self._unanswered is not None and self._unanswered_at > call.number:
                raise self._unanswered()
            try:
                self._decide_or_look(call, self._attempt())
            except UNANSWERED as error:
                # An error of each call's own: one that is raised again keeps all frames it passed.
                self._unanswered = partial(type(error), *error.args)
                self._unanswered_at = next(self._numbers)
                raise
            self._unanswered = None

    def _attempt(self) -> Deadline:
        """For all that one attempt asks of the broker."""
        return Deadline(min(ANSWER_S, self._config.kafka.timeout_s), self._clock)

    def _decide_or_look(self, call: Call[R], deadline: Deadline) -> None:
        if not self._deployment_checked:
            self._check_deployment(deadline)
        if not call.command.claims:
            self._look(call.number, deadline)
            assert not call.command.decide(self._state, self._now()), call.command
            call.answer(self._reply(call.command))
            return
        self._projector.raise_failure()  # Once, so only where the trainer asks.
        if not self._claimed:
            self._claim(deadline)
        self._fold_arrived(deadline)
        try:
            shortage = self._decide(call, deadline)
            if shortage is None:
                call.answer(self._reply(call.command))
            elif not call.ended:
                self._waiting.add(call, shortage)
        finally:
            self._serve_waiting(deadline)

    def follow(self, timeout_s: float) -> bool:
        """Folds what is sealed next, waiting up to ``timeout_s`` for it, and answers the calls that
        waited for it. Others decide while it waits.

        Returns:
            Whether it read; False at once where another thread is reading, and after ``timeout_s``
            where the log was not claimed and nobody waits.

        Raises:
            RollstreamError: as ``execute``; calls that wait go on waiting.
        """
        with self._lock:
            if self._reading is not None:
                return False
            if not (self._claimed or self._waiting):
                self._lock.wait(timeout_s)
                return False
            self._check_usable()
            if not self._claimed:
                deadline = self._attempt()
                self._claim(deadline)
                self._serve_waiting(deadline)
            follower = self._reading = self._follower
        assert follower is not None
        try:
            sealed = follower.poll(FOLLOW_RECORDS_MAX, timeout_s)
        except BaseException:
            with self._lock:
                self._end_reading(follower)
            raise
        with self._lock:
            if self._end_reading(follower) and sealed:
                deadline = self._attempt()
                self._fold(sealed, deadline)
                self._serve_waiting(deadline)
        return True

    def give_up(self, call: Call[R]) -> None:
        """Ends a call whose time is up with ``NotEnoughGroups``, unless it has ended."""
        with self._lock:
            if not call.ended:
                assert call.shortage is not None, "decide first"
                call.fail(call.shortage.error(self._state))

    def fail_waiting(self, error: BaseException) -> None:
        """Ends all calls that wait with this error."""
        self._waiting.fail_all(error)

    def close(self) -> None:
        """Releases everything; nothing is written to the logs. Idempotent."""
        with self._lock:
            self._claimed, self._closed = False, True
            self._waiting.fail_all(self._unusable())
            self._stop_following()
            # For the end of one poll, after which nobody uses the broker any more.
            self._lock.wait_for(lambda: self._reading is None, self._config.kafka.timeout_s)
            self._log.release()
            self._projector.close()
            if self._own_broker is not None:
                self._own_broker.close()
                self._own_broker = None

    def _check_usable(self) -> None:
        if self.fenced or self._closed:
            raise self._unusable()

    def _unusable(self) -> Fenced | SamplerUnavailable:
        if self.fenced:
            return Fenced(self._successor)
        return SamplerUnavailable(f"sampler {self.name!r} is closed; make a new one")

    def _describe(self, call: Call[R]) -> str:
        with self._lock:
            return "" if call.shortage is None else str(call.shortage.error(self._state))

    def _reply(self, command: Command[R]) -> Reply[R | Unread[R]]:
        context = ResultContext(os.getpid(), self._config, self._payloads, len(self._waiting))
        return Reply(self._state.trainer_epoch, command.result(self._state, context))

    def _serve_waiting(self, deadline: Deadline) -> None:
        """Looks at the calls that wait, as long as there is something new for them: in the order of
        their arrival, and once for all that ask for the same."""
        while self._changed and self._claimed:
            self._changed = False
            short: set[Hashable] = set()
            for call in self._waiting:
                if call.ended or call.decision_key in short:
                    continue
                try:
                    shortage = self._decide(call, deadline)
                    if shortage is None:
                        call.answer(self._reply(call.command))
                    else:
                        call.shortage = shortage
                        short.add(call.decision_key)
                except Exception as error:  # noqa: BLE001 - whatever it is, it is this call's alone
                    call.fail(error)
                    if self.fenced or isinstance(error, BrokerError):
                        self._waiting.fail_all(error)  # Each would wait for the broker in vain.

    def _look(self, number: int, deadline: Deadline) -> None:
        """Folds all logs up to their ends, and claims nothing."""
        if self._claimed and self._is_owner(number, deadline):
            self._fold_arrived(deadline)
        else:
            self._read(deadline)

    def _read(self, deadline: Deadline) -> None:
        """Folds all logs up to their ends. Only that the broker answers is within the deadline: its
        logs may be long."""
        reading = self._reading_deadline()
        try:
            self._log.look(reading, end_within_s=deadline.left_s())
        except Fenced as error:
            raise self._stop_for_good(error) from error
        self._fold_to_ends(reading)

    def _reading_deadline(self) -> Deadline:
        return Deadline(self._config.kafka.timeout_s * READ_TIMEOUT_FACTOR, self._clock)

    def _decide(self, call: Call[R], deadline: Deadline) -> Shortage | None:
        """Decides, and confirms the events; returns the shortage where groups are missing."""
        command = call.command
        while True:
            try:
                events = command.decide(self._state, self._now())
            except SamplerError:
                if self._is_owner(call.number, deadline):  # A fenced owner's state is stale.
                    raise
            else:
                if not events:
                    shortage = command.shortage(self._state)
                    if shortage or self._is_owner(call.number, deadline):
                        return shortage
                elif self._confirm(events, deadline):
                    self._project(events)
                    return command.shortage(self._state)
            self._claim(deadline)

    def _is_owner(self, number: int, deadline: Deadline) -> bool:
        """Returns whether nobody had taken over at some time after ``number`` was drawn; False and
        ``Fenced`` as ``_confirm``. So calls that come together cost one question to the broker."""
        return self._owned_at > number or self._confirm([], deadline)

    def _confirm(self, events: Sequence[SamplerEvent], deadline: Deadline) -> bool:
        """Appends the events and waits until they are confirmed; where there are none, checks that
        nobody took over (``Fenced``). Returns False where the outcome is unknown: after the next
        claim the fold holds what was written."""
        number = next(self._numbers)
        try:
            if events:
                tickets = [self._log.append(event) for event in events]
                self._log.wait_confirmed(tickets[-1], deadline)
                self._changed = True
                chosen = (event for event in events if isinstance(event, BatchServed | Replaced))
                self._payloads.undelivered.update((one.step, one.digest) for one in chosen)
            else:
                self._log.check_still_owner(deadline)
        except DeliveryUnknown:
            self._claimed = False
            return False
        except Fenced as error:
            raise self._stop_for_good(error) from error
        self._owned_at = number
        return True

    def _claim(self, deadline: Deadline) -> None:
        """Claims the log, and folds the seal logs where the state is new. Raises ``Fenced`` where
        somebody took over, ``ClaimFailed`` where the broker does not answer."""
        behind = self._follower is None or self._log.epoch < 0
        if behind:  # Before the claim, so that whoever is fenced has a successor that is ready.
            self._read(deadline)
            deadline = self._attempt()
        try:
            # Somebody may have taken over meanwhile: a sampler never takes its log back.
            self._log.claim(deadline, retake=False)
        except Fenced as error:
            raise self._stop_for_good(error) from error
        if behind or self._log.fold is not self._state:
            self._fold_to_ends(self._reading_deadline())
        self._projector.project_missing(self._state)  # Among them what turned out to be written.
        self._claimed = self._changed = True
        self._lock.notify_all()

    def _stop_for_good(self, error: Fenced) -> Fenced:
        """Ends this owner, and returns what every call raises from now on."""
        self._claimed = False
        self._successor = (
            f"sampler {self.name!r} was taken over and this one stops for good: {error}"
        )
        return Fenced(self._successor)

    def _fold_to_ends(self, deadline: Deadline) -> None:
        """Reads the seal logs to their ends within the deadline, and folds what the state has not
        applied yet: from where it stands, or from the beginning where the state is new."""
        if self._log.fold is not self._state:
            self._state = self._log.fold
            self._stop_following()
        elif self._follower is self._reading:
            self._stop_following()  # Another thread is at it: this one reads anew.
        follower, self._follower = self._follower, None
        follower = follower or Follower(self._broker, dict.fromkeys(self._addresses, 0))
        try:
            events = follower.read_to_end(deadline, ends_within_s=self._attempt().timeout_s)
            for where, offset, _, event in events:
                address = self._addresses[where]
                if offset >= self._state.applied(address):  # Else an earlier attempt applied it.
                    self._state.apply_groups(address, offset, event)
        except BaseException:
            follower.close()
            raise
        self._follower = follower

    def _fold_arrived(self, deadline: Deadline) -> None:
        """Folds what was sealed, unless a thread is reading that, and answers those it lets go."""
        if self._reading is None:
            assert self._follower is not None, "claim first"
            self._fold(self._follower.poll(FOLLOW_RECORDS_MAX, 0.0), deadline)
            self._serve_waiting(deadline)

    def _end_reading(self, follower: Follower) -> bool:
        """Returns whether what the thread read is to be folded; False: others read anew."""
        self._reading = None
        self._lock.notify_all()
        if follower is not self._follower:
            follower.close()
        return follower is self._follower

    def _fold(self, sealed: Sequence[ConfirmedEvent], deadline: Deadline) -> None:
        """Folds what was sealed, and evicts what is beyond the capacity."""
        for where, offset, _, event in sealed:
            self._state.apply_groups(self._addresses[where], offset, event)
        self._changed = self._changed or bool(sealed)
        evictions = evict_over_capacity(self._state, self._now())
        if evictions and not self._confirm(evictions, deadline):
            self._claim(deadline)

    def _stop_following(self) -> None:
        """Drops the follower; one that a thread polls now is closed by that thread."""
        follower, self._follower = self._follower, None
        if follower is not None and follower is not self._reading:
            follower.close()

    def _project(self, events: Sequence[SamplerEvent]) -> None:
        for event in events:
            if isinstance(event, BatchServed | Replaced):
                self._projector.project(self._state.batches[event.step], self._state)

    def _now(self) -> Now:
        return Now(epoch=self._log.epoch, nonce=self._log.nonce, now_ts=self._clock.now_us())
