"""What all commands to a sampler have in common. Pure.

A command is one class: its fields are what was asked, ``decide`` the events that it calls for, and
``result`` what its caller gets once they are confirmed, unless that is read ``FromStore``. Each may
be repeated without harm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, NamedTuple, TypedDict, TypeVar

from rollstream.folds.state import SamplerState
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.sampler.decide.shortages import Shortage
from rollstream.schemas.events import SamplerEvent
from rollstream.streams.errors import Fenced
from rollstream.streams.folds.in_flight import LivingProducers

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Now(TypedDict):
    """What every event carries: the owner's claim, and the time of the decision in microseconds."""

    epoch: int
    nonce: str
    now_ts: int


class ResultContext(NamedTuple):
    """What a result may be made of besides the state.

    Attributes:
        pid: of the process that executes commands.
        config: that it runs with.
        groups_read: by it, without those that its cache had.
        cached_bytes: in that cache.
        calls_waiting: calls that wait for groups there.
        now_us: log time, in microseconds.
        sample_times_ms: of the newest calls for batches that were answered there.
        capacity: groups that may be begun of each environment, and its living producers.
    """

    pid: int
    config: RollstreamConfig
    groups_read: int
    cached_bytes: int
    calls_waiting: int
    now_us: int
    sample_times_ms: Callable[[], Sequence[float]]
    capacity: Callable[[], Mapping[str, tuple[int, LivingProducers]]]


Lane = Literal["now", "past", "record", "computed", "files"]
"""What waits for one another where a process delivers results: batches that are held, what is read
for people, what is read of the logs from their beginning, what is read of nothing, and who waits
for files to be written."""


@dataclass(frozen=True, slots=True)
class Unread(Generic[R_co]):
    """A result that is still to be made. ``read`` needs the state no more, so the next command may
    be decided meanwhile.

    Attributes:
        key: equal for results that are the same, such as the share of ranks that are peers.
    """

    key: Hashable
    read: Callable[[], R_co]
    lane: Lane = "past"


@dataclass(frozen=True, slots=True)
class Computed(Unread[R_co]):
    """A result that is made in the process of its caller. What it is made of crosses, pickled with
    ``read``.

    Where commands are decided, a thread that makes a large result, or frees it, holds up the one
    that decides: both need Python's lock.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(ABC, Generic[R]):
    """A request to a sampler whose result is an ``R``.

    Attributes:
        trainer_epoch: that the caller belongs to; None: it has not learnt it yet, and joins the one
            in effect.
        claims: whether executing it takes the sampler's name over. False: it looks, and decides
            nothing.
        claims_next: of what only looks: whether the process that executes it is to take the name
            over next, so that what it folds is saved on the way.
        to_the_ends: of what only looks: whether it sees all that was sealed before, which asks the
            broker for the logs' ends. False: what has arrived.
    """

    claims: ClassVar[bool] = True
    claims_next: ClassVar[bool] = False
    to_the_ends: ClassVar[bool] = False
    trainer_epoch: int | None = None

    def decide(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        """The events that the command calls for; no events where it was decided before, where it
        decides nothing, and where groups are missing (see ``shortage``).

        Raises:
            Fenced: the caller's trainer epoch is not in effect any more.
            InvalidRequest, RequestDiffers, UnknownStep, TooManyOpenBatches.
        """
        if self.trainer_epoch is not None and self.trainer_epoch != state.trainer_epoch:
            raise Fenced(
                f"this trainer belongs to epoch {self.trainer_epoch} of sampler {state.name!r}, "
                f"but a successor has resumed and epoch {state.trainer_epoch} is in effect; stop "
                "this trainer"
            )
        return self._decide(state, now)

    def _decide(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        return []

    def afterwards(self, state: SamplerState, now: Now) -> list[SamplerEvent]:
        """Events that nobody waits for: they are appended once the call was answered, or waits for
        groups. Of what is lost of them nobody is told."""
        return []

    def shortage(self, state: SamplerState) -> Shortage | None:
        """The groups that the command still waits for; None: its result can be made."""
        return None

    def check_own(self, state: SamplerState) -> None:
        """Raises what concerns this call alone, whether it or an equal one decided."""

    def decision_key(self) -> Hashable:
        """Equal for commands that call for one decision, such as those of a batch's ranks: where
        one of them waits, all do."""
        return self

    @abstractmethod
    def result(self, state: SamplerState, context: ResultContext) -> R | Unread[R]:
        """What the caller gets, once all events are confirmed and there is no shortage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look(Command[R]):
    """A command that looks, and decides nothing."""

    claims: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FromStore(Command[R]):
    """A command whose result is read from the store: ``rows/deliver.py`` makes it."""

    def result(self, state: SamplerState, context: ResultContext) -> R:
        raise AssertionError(f"{self} is answered by rows/deliver.py")


@dataclass(frozen=True, slots=True)
class Reply(Generic[R]):
    """The result of a command, and the trainer epoch in effect when it was decided."""

    trainer_epoch: int
    value: R


def read(result: R | Unread[R]) -> R:
    """The result, made."""
    return result.read() if isinstance(result, Unread) else result
