"""The engine that executes commands: decide, append, wait until it is confirmed, reply."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence

from rollstream.runtime.clock import Clock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import Entropy
from rollstream.sampler.deciding.command import Command, Now, R, Reply, ResultContext
from rollstream.sampler.deciding.dropping import evict_over_capacity
from rollstream.sampler.deciding.shortages import Shortage
from rollstream.sampler.errors import SamplerError, SamplerUnavailable
from rollstream.sampler.serving.configuration import partitions_of, sampler_config, seal_logs_of
from rollstream.sampler.serving.payloads import Payloads
from rollstream.sampler.serving.projecting import Projector
from rollstream.schemas.events import BatchServed, Replaced, SamplerEvent
from rollstream.store.blobs import Blobs
from rollstream.store.open import open_store
from rollstream.streams.broker import Broker
from rollstream.streams.errors import DeliveryUnknown, Fenced
from rollstream.streams.folds.sampler.state import SamplerState
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.owned.follow import Follower
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.topics.check import require_topics
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.specs import specs_for

FOLLOW_RECORDS_MAX = 256  # Flushes that are folded between two commands.
FOLLOW_SLICE_S = 0.05  # A wait for groups looks at its deadline this often.
START_TIMEOUT_FACTOR = 4.0  # A start asks the broker several times, and reads whole logs.


class Owner:
    """Owns the decision log of one sampler and executes commands, one at a time.

    The first command that claims takes the log over; before it, queries read the logs as they are,
    whoever owns them. A batch is returned only after its event was confirmed. Once fenced it raises
    ``Fenced`` at every call. May be shared between threads: one command is executed after the
    other.

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
        if store is None:
            store = open_store(config.store.root)
        self.name = name
        self._config = config
        self._broker = broker
        self._clock = clock
        self._layout = Layout.of(config.kafka)
        self._addresses = seal_logs_of(name, config)
        self._follower: Follower | None = None  # Set once it has read the seal logs to their ends.
        self._payloads = Payloads(store, sampler.cache_bytes)
        self._projector = Projector(store, name)
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
        self._lock = threading.Lock()

    @property
    def fenced(self) -> bool:
        """Whether another owner took over; it stays so."""
        return self._successor != ""

    def state_digest(self) -> bytes:
        """A digest of the state as it was folded so far."""
        with self._lock:
            return self._state.digest()

    def check_topics(self) -> None:
        """Returns when the sampler's topics are as configured.

        Raises:
            TopicMismatch: topics are missing or not as configured. BrokerUnavailable.
        """
        specs = specs_for(self._layout, partitions_of(self.name, self._config), [self.name])
        needed = {self._log.where.topic, *(where.topic for where in self._addresses)}
        require_topics(
            self._broker.admin(),
            [spec for spec in specs if spec.name in needed],
            self._config.kafka.timeout_s,
        )

    def execute(self, command: Command[R], wait_s: float) -> Reply[R]:
        """Decides what the command calls for and replies once that is confirmed.

        Args:
            wait_s: how long groups that are not there yet are waited for.

        Raises:
            NotEnoughGroups: not there within ``wait_s``. Fenced: this sampler has a successor, or
                the command's trainer has. ClaimFailed, BrokerUnavailable: the broker did not answer
                in time. Others as the command's ``decide`` and ``result``.
        """
        with self._lock:
            self._check_usable()
            if command.claims:
                self._execute(command, Deadline(wait_s, self._clock))
            else:
                self._look()
                assert not command.decide(self._state, self._now()), command
            context = ResultContext(os.getpid(), self._payloads)
            return Reply(self._state.trainer_epoch, command.result(self._state, context))

    def fold_sealed(self) -> None:
        """Folds what was sealed meanwhile; for a thread that has nothing else to do."""
        with self._lock:
            if self._claimed:
                self._follow(0.0)

    def close(self) -> None:
        """Releases everything; nothing is written to the logs. Idempotent."""
        with self._lock:
            self._claimed, self._closed = False, True
            self._log.release()
            self._projector.close()
            self._stop_following()
            if self._own_broker is not None:
                self._own_broker.close()
                self._own_broker = None

    def _check_usable(self) -> None:
        if self._closed:
            raise SamplerUnavailable(f"sampler {self.name!r} is closed; make a new one")
        if self.fenced:
            raise Fenced(self._successor)

    def _execute(self, command: Command[R], deadline: Deadline) -> None:
        if not self._claimed:
            self._claim()
        self._follow(0.0)
        while shortage := self._decide(command):
            while not self._follow(deadline.slice_s(FOLLOW_SLICE_S)):
                if deadline.passed():
                    raise shortage.error(self._state)

    def _look(self) -> None:
        """Folds all logs up to their ends, and claims nothing."""
        if self._claimed and self._confirm([]):
            self._follow(0.0)
            return
        deadline = Deadline(self._config.kafka.timeout_s * START_TIMEOUT_FACTOR, self._clock)
        try:
            self._log.look(deadline)
        except Fenced as error:
            raise self._stop_for_good(error) from error
        self._fold_to_ends(deadline)

    def _decide(self, command: Command[R]) -> Shortage | None:
        """Decides, and confirms the events; returns the shortage where groups are missing."""
        while True:
            try:
                events = command.decide(self._state, self._now())
            except SamplerError:
                if self._confirm([]):  # A fenced owner's state is stale: it is checked first.
                    raise
            else:
                shortage = None if events else command.shortage(self._state)
                if shortage:
                    return shortage
                if self._confirm(events):
                    self._project(events)
                    return command.shortage(self._state)
            self._claim()

    def _confirm(self, events: Sequence[SamplerEvent]) -> bool:
        """Appends the events and waits until they are confirmed; where there are none, checks that
        nobody took over (``Fenced``). Returns False where the outcome is unknown: after the next
        claim the fold holds what was written."""
        deadline = Deadline(self._config.kafka.timeout_s, self._clock)
        try:
            if not events:
                self._log.check_still_owner(deadline)
                return True
            tickets = [self._log.append(event) for event in events]
            self._log.wait_confirmed(tickets[-1], deadline)
        except DeliveryUnknown:
            self._claimed = False
            return False
        except Fenced as error:
            raise self._stop_for_good(error) from error
        return True

    def _claim(self) -> None:
        """Claims the log, and folds the seal logs where the state is new. Raises ``Fenced`` where
        somebody took over, ``ClaimFailed`` where the broker does not answer."""
        deadline = Deadline(self._config.kafka.timeout_s * START_TIMEOUT_FACTOR, self._clock)
        try:
            # Somebody may have taken over meanwhile: a sampler never takes its log back.
            self._log.claim(deadline, retake=False)
        except Fenced as error:
            raise self._stop_for_good(error) from error
        if self._follower is None or self._log.fold is not self._state:
            self._fold_to_ends(deadline)
        self._projector.project_missing(self._state)  # Among them what turned out to be written.
        self._claimed = True

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
            self._stop_following()
            self._state = self._log.fold
        follower, self._follower = self._follower, None
        follower = follower or Follower(self._broker, dict.fromkeys(self._addresses, 0))
        try:
            for where, offset, _, event in follower.read_to_end(deadline):
                address = self._addresses[where]
                if offset >= self._state.applied(address):  # Else an earlier attempt applied it.
                    self._state.apply_groups(address, offset, event)
        except BaseException:
            follower.close()
            raise
        self._follower = follower

    def _follow(self, timeout_s: float) -> bool:
        """Folds what was sealed next, waiting up to ``timeout_s`` for the first, and evicts what
        is beyond the capacity; returns whether anything was sealed."""
        assert self._follower is not None, "claim first"
        sealed = self._follower.poll(FOLLOW_RECORDS_MAX, timeout_s)
        for where, offset, _, event in sealed:
            self._state.apply_groups(self._addresses[where], offset, event)
        evictions = evict_over_capacity(self._state, self._now())
        if evictions and not self._confirm(evictions):
            self._claim()
        return bool(sealed)

    def _stop_following(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    def _project(self, events: Sequence[SamplerEvent]) -> None:
        for event in events:
            if isinstance(event, BatchServed | Replaced):
                self._projector.project(self._state.batches[event.step], self._state)

    def _now(self) -> Now:
        return Now(epoch=self._log.epoch, nonce=self._log.nonce, now_ts=self._clock.now_us())
