"""Seals what is pending because somebody asks: the request in the seal log, and its answer there.

A request is about the groups that had begun when it was appended, by the log's time. The owner of
the partition reads the ingest log up to the end that it has then, seals these groups, and answers
once they are committed. A request that its owner did not answer is carried out by the next one: the
groups that are sealed already are so in the log, and none that begins later is touched.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rollstream.consumers.asking import Answer, OwnerAnswer, addresses_of, ask
from rollstream.consumers.beside.asked import Asked
from rollstream.consumers.beside.chores import Job, asking_log
from rollstream.consumers.retention.owner import asks_to_retire, retired_event
from rollstream.consumers.sealing.context import SealerContext
from rollstream.consumers.sealing.intake import Intake
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import FLUSH_KINDS, Flushed, Requested, RequestKind, Retired
from rollstream.schemas.reasons import SealReason
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.folds.seal import OpenRequest, SealFold
from rollstream.streams.owned.follow import ConfirmedEvent
from rollstream.streams.owned.log import OwnedLog
from rollstream.streams.topics.layout import Layout

LOOK_EVERY_S = 3.0  # An owner that appends nothing looks so often for requests in its log.


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushAnswer(OwnerAnswer):
    """What became of a request at one partition; ``detail`` says what stays pending. One is refused
    by an owner of a version that knows no such request.

    Attributes:
        groups, rows: that were sealed because of it, until the answer or the deadline.
    """

    groups: int
    rows: int


def request_flush(
    config: RollstreamConfig, broker: Broker, *, environment: str, force: bool, deadline: Deadline
) -> list[FlushAnswer]:
    """Asks the owner of each partition to seal the groups that are pending now; returns what they
    sealed. A request stands in the log: who owns the partition next carries it out where nobody
    does before the deadline.

    Args:
        force: also groups with fewer than ``min_group_size`` complete members, one at least.

    Raises:
        UnknownEnvironment. BrokerUnavailable: the broker did not answer.
    """
    layout = Layout.of(config.kafka)
    addresses = addresses_of(config, [environment])[environment]
    logs = [layout.groups_log(address) for address in addresses]
    kind = RequestKind.FLUSH_FORCED if force else RequestKind.FLUSH
    sealed = {where: [0, 0] for where in logs}
    others: set[tuple[TopicPartition, int]] = set()

    def see(confirmed: ConfirmedEvent, answer: Answer) -> None:
        where, offset, _, event = confirmed
        if isinstance(event, Requested) and event.kind in FLUSH_KINDS:
            others.add((where, offset))
        elif isinstance(event, Retired) and event.request != answer.request:
            if (where, event.request) in others:
                sealed[where] = [0, 0]  # For that request: one is carried out after the other.
        elif isinstance(event, Flushed) and offset > answer.request:
            groups = [group for group in event.groups if group.seal_reason == SealReason.FLUSH]
            sealed[where][0] += len(groups)
            sealed[where][1] += sum(group.rows for group in groups)

    answers = ask(broker, logs, kind, deadline, see=see)
    return [
        FlushAnswer(**answers[where].told(address), groups=sealed[where][0], rows=sealed[where][1])
        for address, where in zip(addresses, logs, strict=True)
    ]


@dataclass(slots=True)
class _Answering:
    """A request that is carried out.

    Attributes:
        end: of the ingest log, after the request was found.
        committed: once so many decisions are committed, its groups are; None: not sealed yet.
    """

    offset: int
    request: OpenRequest
    end: Asked[int]
    committed: int | None = None
    detail: str = ""


class FlushRequests:
    """Carries requests out, one after the other, and answers all but those that retire files. Only
    the partition's loop calls it."""

    def __init__(self, context: SealerContext, log: OwnedLog[SealFold]) -> None:
        self._context = context
        self._log = log
        self._answering: _Answering | None = None
        self._next_offset = -1

    @property
    def waits_for_flush(self) -> bool:
        """Whether what is decided is to be flushed without waiting for more."""
        return self._answering is not None and self._answering.committed is not None

    def look(self, deadline: Deadline) -> Job:
        """A job: an owner that appends nothing looks for requests. An append folds those before
        it."""
        if self._next_offset == self._log.next_offset:
            yield from asking_log(self._context, self._log.fold_arrived)
        self._next_offset = self._log.next_offset
        return LOOK_EVERY_S

    def advance(self, intake: Intake) -> Future[Any] | None:
        """Goes on without waiting; returns the job that appends an answer.

        Raises:
            BrokerUnavailable: the end of the ingest log is not known.
        """
        requests, current = self._log.fold.requests, self._answering
        if current is None or current.offset not in requests:
            asked = ((at, one) for at, one in requests.items() if not asks_to_retire(one.event))
            offset, request = next(asked, (-1, None))
            self._answering = None
            if request is None:
                return None
            if request.event.kind == RequestKind.RETRY:  # It is read: whoever owns it answers.
                return self._answer(offset)
            if request.event.kind not in FLUSH_KINDS:
                detail = f"this version of Rollstream does nothing for {request.event}"
                return self._answer(offset, detail=detail, refused=True)
            current = self._answering = _Answering(offset, request, intake.ask_end())
        decided = intake.assembler.decided
        end = current.end.answer()
        if current.committed is None and end is not None and intake.assembler.position >= end:
            current.detail = self._seal(intake, current.request)
            current.committed = decided.end
        if current.committed is None or decided.committed < current.committed:
            return None
        return self._answer(current.offset, detail=current.detail)

    def _answer(self, offset: int, *, detail: str = "", refused: bool = False) -> Future[int]:
        event = retired_event(self._context, self._log, offset, detail=detail, refused=refused)
        return self._context.appends.begin(self._log, event)

    def _seal(self, intake: Intake, request: OpenRequest) -> str:
        """What stays pending."""
        forced = request.event.kind == RequestKind.FLUSH_FORCED
        least = self._context.config.min_group_size
        left = intake.assembler.flush(1 if forced else least, begun_until_us=request.asked_us)
        if not left:
            return ""
        what = "1 pending group has" if left == 1 else f"{left:,} pending groups have"
        if forced:
            return f"{what} no complete member"
        them = "it" if left == 1 else "them"
        return (
            f"{what} fewer complete members than min_group_size ({least}): `--force` seals {them} "
            "too"
        )
