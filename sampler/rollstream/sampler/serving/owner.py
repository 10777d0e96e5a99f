"""The engine behind every door: decide, append, confirm, apply, reply."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rollstream.runtime.clock import Clock
from rollstream.runtime.config.sections import RollstreamConfig, SamplerConfig
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import Entropy
from rollstream.sampler.deciding.answer import answer, not_enough
from rollstream.sampler.deciding.commands import (
    AskStats,
    Command,
    EvictOverCapacity,
    NextBatch,
    ReadRows,
    Replace,
)
from rollstream.sampler.deciding.decide import Now, decide
from rollstream.sampler.deciding.refusals import check_served
from rollstream.sampler.errors import (
    InvalidRequest,
    RequestDiffers,
    SamplerError,
    SamplerUnavailable,
    UnknownSampler,
)
from rollstream.sampler.serving.payloads import Payloads
from rollstream.sampler.serving.projecting import Projector
from rollstream.sampler.serving.seal_logs import SealLogs
from rollstream.sampler.shaping.assembled import make_batch
from rollstream.sampler.shaping.batch import Batch
from rollstream.sampler.shaping.ranks import share
from rollstream.sampler.shaping.scratch import Fresh, Scratch
from rollstream.schemas.columns import Columns
from rollstream.schemas.events import SamplerEvent
from rollstream.store.blobs import Blobs
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.errors import DeliveryUnknown, Fenced
from rollstream.streams.folds.sampler.known import KnownGroup
from rollstream.streams.folds.sampler.served import ServedBatch
from rollstream.streams.folds.sampler.state import SamplerState
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.topics.check import require_topics
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.specs import specs_for

FOLLOW_SLICE_S = 0.05  # A wait for groups looks at its deadline this often.
START_TIMEOUT_FACTOR = 4.0  # A start asks the broker several times, and reads whole logs.


@dataclass(frozen=True, slots=True)
class Reply:
    """What a door gets back.

    Attributes:
        trainer_epoch: the one in effect.
    """

    trainer_epoch: int
    value: Any


@dataclass(frozen=True, slots=True)
class SamplerStats:
    """How a sampler does.

    Attributes:
        pid: of the process that decides.
        epoch: offset of its claim.
        ready: groups that may be served, by environment.
        waiting: sealed groups that may not be served yet.
        outcomes: groups by what became of them, in all.
        open_batches: served and not final.
        next_step: the step that was not served yet.
        newest_policy_step: -1: none was published.
        files_read, cached_bytes: of the cache of payloads.
    """

    pid: int
    name: str
    epoch: int
    trainer_epoch: int
    ready: Mapping[str, int]
    waiting: int
    outcomes: Mapping[str, int]
    open_batches: int
    next_step: int
    newest_policy_step: int
    files_read: int
    cached_bytes: int


class Owner:
    """Owns the decision log of one sampler and executes commands, one at a time.

    A batch is returned only after its event was confirmed. Once overtaken it raises ``Fenced`` for
    good. May be shared between threads: one command is executed after the other.

    Args:
        owner: who claims, for people.
        pid: of this process, for people.
        memory: that batches are made in; with ``Scratch`` a batch is valid until the next command.
    """

    def __init__(
        self,
        name: str,
        config: RollstreamConfig,
        *,
        broker: Broker,
        store: Blobs,
        clock: Clock,
        entropy: Entropy,
        owner: str,
        pid: int,
        memory: Scratch | Fresh,
    ) -> None:
        self.name = name
        self._config = config
        self._section = sampler_section(name, config)
        self._broker = broker
        self._clock = clock
        self._layout = Layout(config.kafka.namespace, config.kafka.generation)
        self._seals = SealLogs(broker, self._section, config, clock=clock)
        self._payloads = Payloads(store, self._section.cache_bytes)
        self._projector = Projector(store, name)
        self._log: OwnedLog[SamplerState] = OwnedLog(
            broker,
            TopicPartition(self._layout.sampler(name), 0),
            owner=owner,
            make_fold=self._make_state,
            clock=clock,
            entropy=entropy,
        )
        self._state = self._log.fold
        self._claimed = False
        self._fenced: str | None = None
        self._closed = False
        self._pid = pid
        self._memory = memory
        self._lock = threading.Lock()

    @property
    def fenced(self) -> bool:
        """Whether another owner took over; it stays so."""
        return self._fenced is not None

    def state_digest(self) -> bytes:
        """Of the state as it was folded so far."""
        with self._lock:
            return self._state.digest()

    def start(self) -> None:
        """Takes over the decision log and folds all logs to their ends.

        Raises:
            TopicMismatch: topics are missing or not as configured. ClaimFailed, BrokerUnavailable.
        """
        with self._lock:
            require_topics(self._broker.admin(), self._topics(), self._config.kafka.timeout_s)
            self._own()

    def execute(self, command: Command, wait_s: float) -> Reply:
        """Decides what the command calls for and replies once that is confirmed.

        Args:
            wait_s: how long groups that are not there yet are waited for.

        Raises:
            NotEnoughGroups: not there within ``wait_s``. Fenced: this sampler was overtaken, or the
                command's trainer was. Others as ``decide``.
        """
        with self._lock:
            self._own()
            deadline = Deadline(wait_s, self._clock)
            self._follow(0.0)
            while True:
                found = self._decide_and_commit(command)
                if found is not None:
                    return Reply(self._state.trainer_epoch, self._finished(command, found))
                assert isinstance(command, NextBatch | Replace), command
                while not self._follow(deadline.slice_s(FOLLOW_SLICE_S)):
                    if deadline.passed():
                        raise not_enough(command, self._state)

    def idle(self) -> None:
        """Folds what was sealed meanwhile; for whoever has time."""
        with self._lock:
            if self._claimed and self._fenced is None:
                self._follow(0.0)

    def close(self) -> None:
        """Lets go of everything; nothing is written to the logs. Idempotent."""
        with self._lock:
            self._closed = True
            self._claimed = False
            self._log.release()
            self._projector.close()
            self._seals.close()

    # --- deciding ---

    def _decide_and_commit(self, command: Command) -> Any:
        """The answer, once all that it stands on is confirmed; None: groups are missing."""
        while True:
            now = Now(self._log.epoch, self._log.nonce, self._clock.now_us())
            try:
                events = decide(command, self._state, now)
            except SamplerError:
                if self._still_owner():  # Who was overtaken refuses nothing in a successor's name.
                    raise
            else:
                if not events:
                    found = answer(command, self._state)
                    if found is None or isinstance(command, AskStats) or self._still_owner():
                        return found
                elif self._confirm(events):
                    self._project(command)
                    return answer(command, self._state)
            self._own()  # In doubt: the fold tells after the claim what was written.

    def _still_owner(self) -> bool:
        """Whether this owner may answer though it appends nothing; if not, it is in doubt.

        Raises:
            Fenced: somebody took over.
        """
        return self._ask_log(self._log.check_still_owner)

    def _confirm(self, events: list[SamplerEvent]) -> bool:
        """Whether the events count; if not, whether they do is in doubt."""

        def append_all(deadline: Deadline) -> None:
            for event in events:
                ticket = self._log.append(event)
            self._log.wait_confirmed(ticket, deadline)

        return self._ask_log(append_all)

    def _ask_log(self, ask: Callable[[Deadline], None]) -> bool:
        """Whether the log answered; if not, all is in doubt until it is claimed again."""
        try:
            ask(Deadline(self._config.kafka.timeout_s, self._clock))
        except DeliveryUnknown:
            self._claimed = False
            return False
        except Fenced as error:
            raise self._overtaken(error) from error
        return True

    def _own(self) -> None:
        """Claims, where nothing is claimed or in doubt; else nothing."""
        if self._closed:
            raise SamplerUnavailable(f"sampler {self.name!r} is closed; make a new one")
        if self._fenced is not None:
            raise Fenced(self._fenced)
        if self._claimed:
            return
        timeout_s = self._config.kafka.timeout_s * START_TIMEOUT_FACTOR
        deadline = Deadline(timeout_s, self._clock)
        try:
            # In doubt it may be that somebody took over meanwhile: a sampler never takes it back.
            self._log.claim(deadline, retake=False)
        except Fenced as error:
            raise self._overtaken(error) from error
        if not self._seals.begun or self._log.fold is not self._state:
            self._state = self._log.fold
            for log, offset, event in self._seals.begin(deadline):
                if offset >= self._state.applied(log):  # A start before this one came so far.
                    self._state.apply_groups(log, offset, event)
        self._projector.project_missing(self._state)  # Also of what was in doubt and is there.
        self._claimed = True

    def _overtaken(self, error: Fenced) -> Fenced:
        """From now on every call is answered with this."""
        self._fenced = f"sampler {self.name!r} was taken over and this one stops for good: {error}"
        self._claimed = False
        return Fenced(self._fenced)

    def _make_state(self) -> SamplerState:
        return SamplerState(self.name, self._section, self._seals.logs())

    # --- the seal logs ---

    def _follow(self, timeout_s: float) -> bool:
        """Folds what the seal logs hold next; whether there was anything."""
        confirmed = self._seals.poll(timeout_s)
        for log, offset, event in confirmed:
            self._state.apply_groups(log, offset, event)
        if confirmed and self._claimed and self._state.excess():
            now = Now(self._log.epoch, self._log.nonce, self._clock.now_us())
            if not self._confirm(decide(EvictOverCapacity(), self._state, now)):
                self._own()
        return bool(confirmed)

    def _topics(self) -> list[Any]:
        partitions = {
            name: self._config.environments[name].partitions for name in self._section.environments
        }
        wanted = self._seals.topics() | {self._log.where.topic}
        specs = specs_for(self._layout, partitions, [self.name])
        return [spec for spec in specs if spec.name in wanted]

    # --- what is handed over ---

    def _project(self, command: Command) -> None:
        if isinstance(command, NextBatch | Replace) and command.step in self._state.batches:
            self._projector.project(self._state.batches[command.step], self._state)

    def _finished(self, command: Command, found: Any) -> Any:
        """An answer as the caller wants it: batches with their payloads."""
        match command:
            case NextBatch() | Replace():
                return self._batch(command, found)
            case ReadRows():
                return self._rows(command)
            case AskStats():
                return self._stats()
            case _:
                return found

    def _batch(self, command: NextBatch | Replace, served: ServedBatch) -> Batch:
        slots = share(len(served.groups), command.dp_rank, command.dp_size)
        groups = [(slot, self._group(served, slot)) for slot in slots]
        parts = self._payloads.parts(command.step, groups)
        return make_batch(
            served,
            parts,
            memory=self._memory,
            dp_rank=command.dp_rank,
            dp_size=command.dp_size,
            groups_ready=len(self._state.ready),
        )

    def _rows(self, command: ReadRows) -> Columns:
        served = check_served(command.step, self._state)
        if served.digest != command.digest:
            raise RequestDiffers(
                f"the batch of step {command.step} has changed since it was read; ask for it again"
            )
        if not 0 <= command.slot < len(served.groups):
            raise InvalidRequest(
                f"slot {command.slot} is not one of the batch's {len(served.groups)}"
            )
        return self._payloads.all_fields(self._group(served, command.slot))

    def _group(self, served: ServedBatch, slot: int) -> KnownGroup:
        chosen = served.groups[slot]
        group = self._state.group(chosen)
        if group is None:
            assert chosen.environment not in self._section.environments, chosen
            raise InvalidRequest(
                f"the batch of step {served.event.step} holds groups of environment "
                f"{chosen.environment!r}, which samplers.{self.name}.environments does not name "
                "any more; add it again, or resume(…, later='release')"
            )
        return group

    def _stats(self) -> SamplerStats:
        state = self._state
        newest = state.newest_policy()
        return SamplerStats(
            pid=self._pid,
            name=self.name,
            epoch=self._log.epoch,
            trainer_epoch=state.trainer_epoch,
            ready=state.ready.counts(),
            waiting=len(state.waiting),
            outcomes=state.outcomes.totals(),
            open_batches=len(state.open_batches()),
            next_step=state.next_step,
            newest_policy_step=-1 if newest is None else newest.step,
            files_read=self._payloads.files_read,
            cached_bytes=self._payloads.cached_bytes,
        )


def sampler_section(name: str, config: RollstreamConfig) -> SamplerConfig:
    """The section of a sampler.

    Raises:
        UnknownSampler: the configuration has none of that name.
    """
    if name not in config.samplers:
        raise UnknownSampler(
            f"there is no [samplers.{name}] in the configuration, only {sorted(config.samplers)}; "
            "add the section or correct the name"
        )
    return config.samplers[name]
