"""Seals what is pending or staged because somebody asks: the request in the seal log, its answer
there.

A request to flush is about the groups that had begun when it was appended, by the log's time. The
owner of the partition reads the ingest log up to the end that it has then, seals these groups, and
answers once they are committed. A request that its owner did not answer is carried out by the next
one: the groups that are sealed already are so in the log, and none that begins later is touched.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from rollstream.consumers.asking import Answer, OwnerAnswer, addresses_of, ask
from rollstream.consumers.beside.asked import Asked
from rollstream.consumers.beside.chores import Job, asking_log
from rollstream.consumers.importing.owner import StagedGroups, read_staged
from rollstream.consumers.retention.owner import asks_to_retire, retired_event
from rollstream.consumers.sealing.context import SealerContext
from rollstream.consumers.sealing.intake import Intake
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.events import FLUSH_KINDS, Flushed, Requested, RequestKind, Retired
from rollstream.schemas.ids import PartitionAddress
from rollstream.schemas.reasons import SealReason
from rollstream.store.layout import staged_in
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
        found: the end of the ingest log, after the request was found; or what is staged.
        committed: once so many decisions are committed, its groups are; None: not sealed yet.
    """

    offset: int
    request: OpenRequest
    found: Asked[int] | Asked[StagedGroups]
    committed: int | None = None
    detail: str = ""
    refused: bool = False


class FlushRequests:
    """Carries requests out, one after the other, and answers all but those that retire files. Only
    the partition's loop calls it."""

    def __init__(
        self, context: SealerContext, address: PartitionAddress, log: OwnedLog[SealFold]
    ) -> None:
        self._context = context
        self._address = address
        self._log = log
        self._answering: _Answering | None = None
        self._next_offset = -1
        self._staged: set[str] = set()  # Files of requests that were found.
        self._reading = context.deadline()  # What is staged, and the log that it is compared with.

    @property
    def waits(self) -> bool:
        """Whether a request is carried out."""
        return self._answering is not None

    @property
    def waits_for_flush(self) -> bool:
        """Whether what is decided is to be flushed without waiting for more."""
        return self._answering is not None and self._answering.committed is not None

    def abandon(self) -> None:
        """What is read for a request ends soon, as another owner reads it again."""
        self._reading.end()

    def look(self, deadline: Deadline) -> Job:
        """A job: an owner that appends nothing looks whether others appended, a request or a claim,
        and whether the log was cut back. An append folds what is before it."""
        if self._next_offset == self._log.next_offset:
            end = yield self._context.ends.ask(self._log.where)
            if end != self._log.next_offset:  # Only this log is read, and not all that are idle.
                yield from asking_log(self._context, self._log.fold_arrived)
        self._next_offset = self._log.next_offset
        return LOOK_EVERY_S

    def delete_settled(self, deadline: Deadline) -> Callable[[], float] | None:
        """A job: deletes staged files whose requests are answered; None: there are none."""
        requested = {request.event.staged for request in self._log.fold.requests.values()}
        settled = self._staged - requested

        def delete() -> float:
            for path in settled:
                self._context.blobs.delete(path)
            self._staged -= settled
            return 0.0

        return delete if settled else None

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
            if request.event.kind not in (*FLUSH_KINDS, RequestKind.IMPORT):
                detail = f"this version of Rollstream does nothing for {request.event}"
                return self._answer(offset, detail=detail, refused=True)
            found = self._ask(intake, offset, request)
            current = self._answering = _Answering(offset, request, found)
        assembler = intake.assembler
        answer = current.found.answer() if current.committed is None else None
        if isinstance(answer, StagedGroups):
            current.detail = answer.refused or answer.decide(assembler)
            current.refused = bool(answer.refused)
            current.committed = assembler.decided.end
        elif answer is not None and assembler.position >= answer:
            current.detail = self._seal(intake, current.request)
            current.committed = assembler.decided.end
        if current.committed is None or assembler.decided.committed < current.committed:
            return None
        return self._answer(current.offset, detail=current.detail, refused=current.refused)

    def _ask(
        self, intake: Intake, offset: int, request: OpenRequest
    ) -> Asked[int] | Asked[StagedGroups]:
        if request.event.kind != RequestKind.IMPORT:
            return intake.ask_end()
        context = self._context
        if staged_in(self._address, request.event.staged):  # No request has other files deleted.
            self._staged.add(request.event.staged)
        where = self._log.where
        read = partial(read_staged, context, self._address, where, offset, request, self._reading)
        return Asked(partial(context.threads.beside.submit, read))

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
        return (
            f"{what} fewer complete members than min_group_size ({least}): `--force` seals "
            "smaller ones too"
        )
