"""The engine that executes commands: decide, append, wait until it is confirmed, reply."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any

from rollstream.runtime.clock import Clock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import Entropy
from rollstream.sampler.batch.assembled import AssembledBatch
from rollstream.sampler.batch.share import Share
from rollstream.sampler.configuration import sampler_config
from rollstream.sampler.decide.admission.granting import Granting, Observed
from rollstream.sampler.decide.batches.next_batch import BatchCommand, NextStep
from rollstream.sampler.decide.batches.packs_alone import check_packs
from rollstream.sampler.decide.command import Command, R
from rollstream.sampler.decide.queries.looks import AskStats
from rollstream.sampler.decide.shortages import Shortage
from rollstream.sampler.decide.trainer.announced import announced_at, announced_policy
from rollstream.sampler.engine.answers import Answers
from rollstream.sampler.engine.asked_calls import AskedCalls, AskFirst
from rollstream.sampler.engine.calls import PASSING, Call, WaitingCalls
from rollstream.sampler.engine.logs import SamplerLogs
from rollstream.sampler.engine.metrics import SamplerMetrics
from rollstream.sampler.engine.outbox.admission import ShareGranter
from rollstream.sampler.engine.outbox.announcing import Announcer
from rollstream.sampler.engine.outbox.projecting import Projector
from rollstream.sampler.engine.reading import Reading
from rollstream.sampler.errors import GroupsUnreadable, SamplerError
from rollstream.sampler.rows.ahead import MakesAhead
from rollstream.sampler.rows.deliver import Delivery, likely_shares
from rollstream.sampler.rows.payloads import Payloads
from rollstream.sampler.rows.recorded import RecordedBatches
from rollstream.sampler.rows.repairing import lost_groups, repaired
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.events import BatchServed, Flushed, Replaced, SamplerEvent, Scored
from rollstream.schemas.ids import RootId
from rollstream.store.blobs import Blobs
from rollstream.store.bounded import bounded
from rollstream.store.errors import StoreError
from rollstream.store.followed import Followed
from rollstream.store.open import open_store
from rollstream.streams.broker import Broker
from rollstream.streams.errors import BrokerError, BrokerUnavailable, Fenced
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.root import StoreRoot


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
        reader: reads rows while the decision about them is appended; None: nobody does.
        keep: where batches are to lie that are made before they are asked for.
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
        reader: Executor | None = None,
        keep: Callable[[AssembledBatch], AssembledBatch] = lambda batch: batch,
    ) -> None:
        sampler = sampler_config(name, config)
        self._own_broker: KafkaBroker | None = None
        if broker is None:
            broker = self._own_broker = KafkaBroker(config.kafka.bootstrap, config.kafka.client)
        self.name = name
        self._metrics = metrics = SamplerMetrics(name, config, clock)
        broker = metrics.timed_broker(broker)
        self._store = metrics.timed_store(open_store(config.store) if store is None else store)
        self._config = config
        self._broker = broker
        self._clock = clock
        self._logs = SamplerLogs(name, config, broker, self._store, clock, entropy)
        self.folding = self._logs.folding  # Waits for nobody.
        self._payloads = Payloads(self._store, sampler.cache_bytes, config.kafka.timeout_s)
        self._ahead = MakesAhead(self._payloads, self._likely_next, keep, clock)
        self._projector = Projector(self._store, name)
        layout, timeout_s = Layout.of(config.kafka), config.kafka.timeout_s
        self._delivery = Delivery(
            self._store,
            self._payloads,
            self._ahead,
            RecordedBatches(broker, layout, name, clock, timeout_s),
            lambda: partial(self._projector.wait_written, Deadline(timeout_s)),
            reader,
        )
        self._announcer = Announcer(broker, layout, name, lambda: self._logs.claimed)
        self._announced_at = -1  # As ``announced_at`` when it was last handed in.
        # Guards all that is decided with; notified of a claim, and when nobody reads any more.
        self._lock = threading.Condition(metrics.deciding)  # type: ignore[arg-type]
        self.asked = AskedCalls(self._logs, self._lock, self.follow)
        self._waiting = WaitingCalls()
        self._unanswered: Callable[[], Exception] | None = None  # How the newest attempt ended,
        self._unanswered_at = -1  # and the number that was drawn then.
        self._granting = Granting(name, sampler)
        self._answers = Answers(
            config,
            self._logs,
            self._delivery,
            self._payloads,
            self._waiting,
            clock,
            metrics.observe,
            lambda: self._granting.capacity(*self._logs.seen()),
        )
        self._admission = ShareGranter(self._granting, self._announcer, self._observe, clock)
        metrics.show(
            lambda: AskStats().result(self._logs.state, self._answers.context()),
            lambda: [call.shortage for call in self._waiting],
            lambda: self._logs.ownership,
            self.folding,
        )

    @property
    def fenced(self) -> bool:
        """Whether another owner took over; it stays so."""
        return self._logs.ownership.state == "fenced"

    def outage(self) -> str:
        """Why no broker can be reached; empty: as far as is known, one can."""
        return self._broker.outage()

    def missing(self, command: Command[Any]) -> str:
        """Which groups a call with this command waits for, and why; empty: none waits."""
        key = command.decision_key()
        return next((self._describe(one) for one in self._waiting if one.decision_key == key), "")

    def check_deployment(self) -> None:
        """Returns when the sampler's topics are as configured, and the store's root is the one
        that its environments' sealers write to; else the first call asks.

        Raises:
            TopicMismatch: topics are missing or not as configured. RootMismatch. BrokerUnavailable.
        """
        deadline = Deadline(self._config.kafka.timeout_s, self._clock)
        self._logs.check_deployment(deadline)

    def deadline(self, wait_s: float) -> Deadline:
        """Until when a call is attempted that the broker does not answer, or whose store is away:
        as long as it waits for groups; those that wait for none, ``kafka.timeout_s``."""
        return Deadline(wait_s or self._config.kafka.timeout_s, self._clock)

    def repair(self, command: Command[R], error: GroupsUnreadable) -> Command[R]:
        """The command to go on with; raises as ``repaired``."""
        with self._lock:
            lost = lost_groups(error, self._logs.state)
        stops = self._config.samplers[self.name].on_unreadable == "stop"
        root = StoreRoot(self._config.store.root, RootId(self._logs.root_id), Followed(self._store))
        store = bounded(self._store, self._config.kafka.timeout_s, self._clock)
        return repaired(command, error, lost, self._payloads, store, root, stops=stops)

    def begin(self, command: Command[R]) -> Call[R]:
        """A call for ``decide``."""
        timed = isinstance(command, BatchCommand) and command.claims
        begun_s = self._clock.monotonic_s() if timed else None
        return Call(command, self._logs.next_number(), begun_s)

    def decide(self, call: Call[R], answered: Callable[[], None] = lambda: None) -> None:
        """Answers the call once what it calls for is confirmed; where groups are missing, it waits
        from now on, until it is answered, given up, or cancelled.

        It keeps others from deciding for about ``ANSWER_S`` where the broker does not answer, and
        calls that were begun meanwhile for no time: they get the same error. Raises as
        ``OwnerInProcess.execute``.

        Args:
            answered: called once this call is answered, before those are looked at that wait.
        """
        while True:
            with self._lock:
                if self._try_decide(call, answered):
                    return
            self.asked.ask(call, reads=True)

    def decide_all(
        self, calls: Iterable[Call[Any]], answered: Callable[[], None]
    ) -> list[Call[Any]]:
        """As ``decide`` for each call, in their order; returns those for which ``asked.ask`` is to
        be called first. An error ends the call that raises it. A call is answered without a
        decision of its own if an equal one was decided among them, and nothing changed since.
        ``answered`` is called before each decision, too: it may take long."""
        left, unasked = deque(calls), list[Call[Any]]()
        with self._lock:
            self._answers.decided.clear()
        while left:
            answered()
            call = left.popleft()
            with self._lock:
                if call.attempt(lambda call: self._try_decide(call, answered)) is False:
                    unasked.append(call)
                while left and not self._unanswered and self._answers.decided_already(left[0]):
                    left.popleft().attempt(self._answer_alike)
        return unasked

    def _answer_alike(self, call: Call[Any]) -> None:
        self._answers.answer(call)
        self._do_afterwards(call)

    def _try_decide(self, call: Call[R], answered: Callable[[], None]) -> bool:
        self._logs.ownership.check()
        if self._unanswered is not None and self._unanswered_at > call.number:
            raise self._unanswered()
        try:
            self._decide_or_look(call, self._logs.attempt(), answered)
        except AskFirst:
            return False
        except PASSING as error:
            # An error of each call's own: one that is raised again keeps all frames it passed.
            self._unanswered = partial(type(error), *error.args)
            self._unanswered_at = self._logs.next_number()
            raise
        self._unanswered = None
        self._logs.save()
        return True

    def _decide_or_look(
        self, call: Call[R], deadline: Deadline, answered: Callable[[], None]
    ) -> None:
        self._logs.check_deployment(deadline)
        if not call.command.claims:
            self._look(call, deadline)
            assert not call.command.decide(self._logs.state, self._logs.now()), call.command
            self._answers.answer(call)
            return
        self._projector.raise_failure()  # Once, so only where the trainer asks.
        if not self._logs.claimed:
            self._claim(deadline)
        self._fold_arrived(deadline)
        try:
            shortage = self._decide_and_answer(call, deadline)
            if shortage is None:
                answered()
            elif not call.ended:
                self._waiting.add(call, shortage)
        finally:
            self._serve_waiting(deadline)
        self._do_afterwards(call)

    def follow(self, timeout_s: float) -> bool:
        """Folds what is sealed next, waiting up to ``timeout_s`` for it, and answers the calls that
        waited for it. Others decide while it waits.

        Returns:
            Whether it read; False at once where another thread is reading, and after ``timeout_s``
            where the log was not claimed and nobody waits.

        Raises:
            RollstreamError: as ``decide``; calls that wait go on waiting.
        """
        with self._lock:
            if self._logs.being_read:
                return False
            if not (self._logs.claimed or self._waiting):
                self._lock.wait(timeout_s)
                return False
            self._logs.ownership.check()
            if not self._logs.claimed:
                deadline = self._logs.attempt()
                self._claim(deadline)
                self._serve_waiting(deadline)
            reading = self._logs.begin_reading()
        ended = False
        try:
            arrived = reading.poll(timeout_s)
            with self._lock:
                ended = True
                news = any(arrived) or self._logs.log_clock.is_untold
                if self._end_reading(reading) and news:
                    deadline = self._logs.attempt()
                    self._answers.decided.clear()
                    if not self._logs.fold(arrived, deadline):
                        self._claim(deadline)
                    self._serve_waiting(deadline)
                    self._logs.save()
                    if any(isinstance(one.event, Flushed | Scored) for one in arrived.sealed):
                        self._ahead.changed()
        except BaseException as error:
            if not ended:
                with self._lock:  # A poll that fails returns all of it the next time.
                    self._end_reading(reading, lost=not isinstance(error, RollstreamError))
            raise
        return True

    def tell_workers(self, *, follow: bool) -> None:
        """Begins to tell env workers, from a thread, how many groups they may begin; ``follow``: it
        reads the seal logs, where it must and no call does. Idempotent."""
        follows = follow and self._config.samplers[self.name].admission
        self._admission.start(self._follow_now if follows else lambda: None)

    def give_up(self, call: Call[R]) -> None:
        """Ends a call whose time is up with ``NotEnoughGroups``, unless it has ended; where no
        broker can be reached with ``BrokerUnavailable``, since what was sealed is not known."""
        with self._lock:
            if not call.ended:
                assert call.shortage is not None, "decide first"
                outage, short = self.outage(), call.shortage.error(self._logs.state)
                call.fail(BrokerUnavailable(f"{outage}; before that: {short}") if outage else short)

    def fail_waiting(self, error: BaseException) -> None:
        """Ends all calls that wait with this error."""
        self._waiting.fail_all(error)

    def close(self) -> None:
        """Releases everything; nothing is decided any more. Idempotent."""
        self._admission.close()
        self._announcer.close()
        with self._lock:
            self._logs.close()
            self._delivery.close()
            self._waiting.fail_all(self._logs.ownership.error())
            # For the end of one poll, after which nobody uses the broker any more.
            self._lock.wait_for(lambda: not self._logs.being_read, self._config.kafka.timeout_s)
            self._logs.release()
            self._projector.close()
            if self._own_broker is not None:
                self._own_broker.close()
                self._own_broker = None
        self._metrics.close()

    def _asks(self) -> bool:
        """Whether who reads the seal logs has something to ask the broker."""
        with self._lock:
            idle = self._logs.claimed and not self._logs.being_read
            return idle and self._logs.questions() is not None

    def _follow_now(self) -> None:
        try:
            self.follow(0.0)
        finally:
            self._waiting.wake_first()

    def _observe(self) -> Observed | None:
        """What shares depend on; None where this owns no log, as far as it knows."""
        with self._lock:
            if not self._logs.claimed:
                return None
            short = {call.decision_key: call.shortage for call in self._waiting}
            quotas = [shortage.quotas for shortage in short.values() if shortage is not None]
            return self._granting.observe(*self._logs.seen(), quotas)

    def _describe(self, call: Call[R]) -> str:
        with self._lock:
            short = call.shortage
            return "" if short is None else f"groups: {short.error(self._logs.state)}"

    def _serve_waiting(self, deadline: Deadline) -> None:
        """Looks at the calls that wait, as long as there is something new for them: in the order of
        their arrival, and once for all that ask for the same."""
        while self._logs.changed and self._logs.claimed:
            self._logs.changed = False
            short: set[Hashable] = set()
            for call in self._waiting:
                if call.ended or call.decision_key in short:
                    continue
                try:
                    shortage = self._decide_and_answer(call, deadline)
                    if shortage is not None:
                        call.shortage = shortage
                        short.add(call.decision_key)
                except Exception as error:  # noqa: BLE001 - whatever it is, it is this call's alone
                    call.fail(error)
                    if self.fenced or isinstance(error, BrokerError | StoreError):
                        self._waiting.fail_all(error)  # Each would wait for the same in vain.

    def _do_afterwards(self, call: Call[R]) -> None:
        if events := call.command.afterwards(self._logs.state, self._logs.now()):
            with suppress(BrokerError, Fenced):  # The next call is told.
                self._confirm(call, events, self._logs.attempt())

    def _likely_next(self, command: NextStep) -> list[Share]:
        with self._lock:
            if not self._logs.claimed:
                return []
            return likely_shares(command, self._logs.state, self._logs.now())

    def _look(self, call: Call[R], deadline: Deadline) -> None:
        """Folds all logs up to their ends, and claims nothing; an owner, who knows every decision,
        what was sealed and has arrived, where that is enough."""
        if not (self._logs.claimed and self.asked.is_owner(call, deadline)):
            self._logs.read(deadline, claiming=call.command.claims_next)
            return
        self.asked.check_folded(call)
        self._fold_arrived(deadline)

    def _decide_and_answer(self, call: Call[R], deadline: Deadline) -> Shortage | None:
        """Answers the call, once the decision that it is for is confirmed; returns the shortage
        where groups are missing."""
        if not self._answers.decided_already(call):
            shortage = self._decide(call, deadline)
            if shortage is not None:
                return shortage
            self._answers.decided.add(call.decision_key)
        self._answers.answer(call)
        return None

    def _decide(self, call: Call[R], deadline: Deadline) -> Shortage | None:
        """Decides, and confirms the events; returns the shortage where groups are missing."""
        command = call.command
        while True:
            try:
                check_packs(command, self._logs.state, self._config.samplers[self.name])
                events = command.decide(self._logs.state, self._logs.now())
            except SamplerError:
                if self.asked.is_owner(call, deadline):  # A fenced owner's state is stale.
                    raise
            else:
                if not events:
                    if self.asked.is_owner(call, deadline):  # As above.
                        return command.shortage(self._logs.state)
                elif self._confirm(call, events, deadline):
                    return command.shortage(self._logs.state)
            self._claim(deadline)

    def _confirm(self, call: Call[R], events: Sequence[SamplerEvent], deadline: Deadline) -> bool:
        """As ``SamplerLogs.confirm``. What a call that waited is to get is read meanwhile."""
        if call.shortage is not None:
            self._delivery.begin_early(call.command, events, self._logs.state)
        self._delivery.withhold(call.command, events, self._logs.state)
        for event in events:
            if isinstance(event, BatchServed | Replaced):  # Also if its append will be in doubt.
                self._payloads.handed_out.decide(event.step, event.digest)
        self._answers.decided.clear()
        try:
            if not self._logs.confirm(events, deadline):
                return False
        except BaseException:
            if self._logs.claimed:  # Else the next claim tells what was written.
                self._delivery.settle(self._logs.state)
            raise
        self._hand_on(events)
        return True

    def _claim(self, deadline: Deadline) -> None:
        self._answers.decided.clear()
        self._logs.claim(deadline)
        self._delivery.settle(self._logs.state)
        # Among them what turned out to be written.
        self._projector.project_missing(self._logs.state)
        self._announce()
        self._lock.notify_all()

    def _fold_arrived(self, deadline: Deadline) -> None:
        """Folds what was sealed, unless a thread is reading that, and answers those it lets go."""
        if not self._logs.fold_arrived(deadline):
            self._claim(deadline)
        if self._logs.changed:
            self._answers.decided.clear()
        self._serve_waiting(deadline)

    def _end_reading(self, reading: Reading, *, lost: bool = False) -> bool:
        """As ``SamplerLogs.end_reading``."""
        self._lock.notify_all()
        return self._logs.end_reading(reading, lost=lost)

    def _hand_on(self, events: Sequence[SamplerEvent]) -> None:
        """What was decided is to be delivered, and written as a file."""
        for event in events:
            if isinstance(event, BatchServed | Replaced):
                self._projector.project(self._logs.state.batches[event.step], self._logs.state)
        if announced_at(self._logs.state) != self._announced_at:
            self._announce()

    def wait_announced(self, timeout_s: float) -> None:
        """Waits until env workers can know the newest policy, where they can be told now."""
        self._admission.wait_announced(timeout_s)

    def _announce(self) -> None:
        """Env workers are to know the newest policy, which it replaces, and whether others come."""
        policy = announced_policy(self._logs.state)
        self._announced_at = announced_at(self._logs.state)
        if policy is not None:
            self._admission.announce(policy)
