"""What all commands to a sampler have in common. Pure.

A command is one class: its fields are what was asked, ``decide`` the events that it calls for, and
``result`` what its caller gets once they are confirmed. Each may be repeated without harm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypedDict, TypeVar

from rollstream.folds.batches.served import ServedBatch
from rollstream.folds.group.known import KnownGroup
from rollstream.folds.state import SamplerState
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.sampler.batch.assembled import AssembledBatch
from rollstream.sampler.batch.joining import GroupRows
from rollstream.sampler.batch.share import Share
from rollstream.sampler.decide.shortages import Shortage
from rollstream.schemas.columns import ArraySignature, Columns
from rollstream.schemas.events import SamplerEvent
from rollstream.streams.errors import Fenced
from rollstream.streams.folds.reported import ReportedNow

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Now(TypedDict):
    """What every event carries: the owner's claim, and the time of the decision in microseconds."""

    epoch: int
    nonce: str
    now_ts: int


class PayloadReader(Protocol):
    """Reads the rows of groups from the store."""

    groups_read: int
    cached_bytes: int

    def parts(
        self, step: int, groups: Sequence[tuple[int, KnownGroup]], columns: Collection[str] = ()
    ) -> list[GroupRows]:
        """The rows that a batch is made of; ``groups`` are pairs of slot and group."""

    def parts_of_batch(
        self,
        served: ServedBatch,
        groups: Sequence[KnownGroup],
        slots: Sequence[int],
        columns: Collection[str] = (),
        ready: int | None = None,
    ) -> list[GroupRows]:
        """The same for these slots of a batch, once all its groups could be read; raises
        ``GroupsUnreadable``. ``ready`` groups besides may be asked for next."""

    def check_files(
        self, served: ServedBatch, groups: Sequence[KnownGroup], columns: Collection[str] = ()
    ) -> None:
        """Returns when somebody else may read the files of a batch's groups; raises
        ``GroupsUnreadable``."""

    def read_early(
        self, step: int, groups: Sequence[KnownGroup], columns: Collection[str], ready: int
    ) -> None:
        """Reads the rows that the batch of a step will be made of, unless it is not confirmed;
        ``ready`` groups besides may be asked for next."""

    def token_arrays(self, path: str) -> Mapping[str, ArraySignature]:
        """Dtype and trailing shape of a file's named arrays."""

    def all_fields(self, group: KnownGroup) -> Columns:
        """Every field of a group's rows."""


class MadeAhead(Protocol):
    """Batches that were made before they were decided."""

    def take(self, share: Share) -> AssembledBatch | None:
        """The share with its rows, where just these were made; None: they are to be read."""

    def handed_out(self, command: Command[Any], share: Share) -> None:
        """The share is on its way to who asked for it; what follows it may be made."""


class ResultContext(NamedTuple):
    """What a result may be made of besides the state.

    Attributes:
        pid: of the process that executes commands.
        config: that it runs with.
        ahead: what was made before.
        calls_waiting: calls that wait for groups there.
        now_us: microseconds since 1970, UTC.
        sample_times_ms: of the newest calls for batches that were answered there.
        wait_written: returns when every decision stands in a file under ``batches/``.
        recorded: the batch of a final step, and its groups by slot, from the record, in this
            trainer epoch; raises ``UnknownStep``.
        as_sealed: what seal logs have of the rows of groups; raises ``UnknownStep``.
        reported: what sealers report of now.
    """

    pid: int
    config: RollstreamConfig
    payloads: PayloadReader
    ahead: MadeAhead
    calls_waiting: int
    now_us: int
    sample_times_ms: Sequence[float]
    wait_written: Callable[[], None]
    recorded: Callable[[int, int], tuple[ServedBatch, Sequence[KnownGroup]]]
    as_sealed: Callable[[Sequence[KnownGroup]], Sequence[Columns]]
    reported: Callable[[], ReportedNow]


@dataclass(frozen=True, slots=True)
class Unread(Generic[R_co]):
    """A result whose rows are still to be read from the store. ``read`` needs the state no more, so
    the next command may be decided meanwhile.

    Attributes:
        key: equal for results that are the same, such as the share of ranks that are peers.
        made: returns the result at once where it was made before; else None.
    """

    key: Hashable
    read: Callable[[], R_co]
    made: Callable[[], R_co | None] = lambda: None


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

    def early_reading(
        self, events: Sequence[SamplerEvent], state: SamplerState, payloads: PayloadReader
    ) -> Callable[[], None] | None:
        """Reads what the result needs once these events are confirmed, so that it is done while
        they are appended; shows it to nobody. None: nothing is to be read."""
        return None

    def decision_key(self) -> Hashable:
        """Equal for commands that call for one decision, such as those of a batch's ranks: where
        one of them waits, all do."""
        return self

    def result_key(self) -> Hashable | None:
        """Equal for commands of one decision that have one result, such as those of ranks that are
        peers; None: its result is its own."""
        return None

    @abstractmethod
    def result(self, state: SamplerState, context: ResultContext) -> R | Unread[R]:
        """What the caller gets, once all events are confirmed and there is no shortage."""


def computed(result: Callable[[], R]) -> Unread[R]:
    """A result that takes long and needs the state no more: no decision waits for it."""
    return Unread(object(), result)


@dataclass(frozen=True, slots=True)
class Reply(Generic[R]):
    """The result of a command, and the trainer epoch in effect when it was decided."""

    trainer_epoch: int
    value: R


def read(result: R | Unread[R]) -> R:
    """The result, with its rows."""
    if not isinstance(result, Unread):
        return result
    made = result.made()
    return result.read() if made is None else made
