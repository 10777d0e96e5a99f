"""The public methods of a sampler, whoever executes their commands."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Self, SupportsIndex

from rollstream.runtime.clock import Clock
from rollstream.sampler.arguments import (
    NO_METADATA,
    as_text,
    group_ids,
    json_object,
    reason_given,
    seconds,
    shares,
    short_text,
    text,
    version,
    whole_number,
    whole_numbers,
)
from rollstream.sampler.deciding.batches import (
    BatchCommand,
    NextBatch,
    PayloadsBy,
    Replace,
    with_rows,
)
from rollstream.sampler.deciding.command import Command, R, Reply
from rollstream.sampler.deciding.progress import AskProgress, Progress
from rollstream.sampler.deciding.queries import (
    AskRecorded,
    AskStats,
    ReadGroup,
    SamplerStats,
)
from rollstream.sampler.deciding.shaped import NextShapedBatch, carry_asked
from rollstream.sampler.deciding.trainer import (
    Ack,
    AckStatus,
    Drop,
    Finish,
    Later,
    MarkCheckpointed,
    PublishPolicy,
    Purge,
    Resume,
    SetCurrentStep,
)
from rollstream.sampler.serving.looking import LooksAtGroups
from rollstream.sampler.serving.rank_reader import RankReader
from rollstream.sampler.shaping.batch import Batch, a_batch
from rollstream.sampler.shaping.carried import Shaping
from rollstream.sampler.shaping.requested import column_names
from rollstream.sampler.shaping.share import Share
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.order import Policy
from rollstream.schemas.records import RolloutGroup
from rollstream.store.blobs import Blobs
from rollstream.streams.folds.sampler.eligible import Accept

_log = logging.getLogger("rollstream.sampler")


class SamplerApi(LooksAtGroups):
    """The sampler as a trainer sees it.

    One rule for numbers: weights *n* are those after *n* optimizer steps; batch *n* turns weights
    *n* into *n + 1*. Every call may be repeated: a step asked again gives the same batch, byte for
    byte, also from another rank, another process, or after a crash. A number is whatever is an
    integer to Python, NumPy's too; an argument that is none raises ``InvalidRequest``.

    An object belongs to one trainer. ``stats``, ``progress``, ``sample_groups``, ``get_groups``,
    ``flush`` and ``Batch.records`` look: they claim nothing and disturb nobody. The first call that
    decides takes the sampler's name over where another process has it, and joins the trainer epoch
    in effect (``resume`` begins a new one). Once another process took over, or a successor has
    resumed, every call raises ``Fenced``.

    While the broker does not answer, a call is attempted until its own time is up: its
    ``timeout_s`` where it waits for groups, else ``kafka.timeout_s``; an attempt that is under way
    then ends within ten seconds. It raises ``BrokerUnavailable`` or ``ClaimFailed`` then, and may
    be repeated.

    Examples:
        >>> step = sampler.resume(None)                                     # doctest: +SKIP
        >>> batch = sampler.next_batch(step, num_groups=64, timeout_s=300)  # doctest: +SKIP
        >>> sampler.ack(batch)                                              # doctest: +SKIP
        >>> sampler.checkpointed(step)                                      # doctest: +SKIP
    """

    def __init__(self, name: str, clock: Clock, timeout_s: float, rank_reader: RankReader) -> None:
        self._name = name
        self._clock = clock
        self._timeout_s = timeout_s
        self._rank_reader = rank_reader
        self._trainer_epoch: int | None = None
        self._saved = False  # Whether it asked for no batch since its newest checkpoint.

    @abstractmethod
    def _execute(self, command: Command[R], wait_s: float) -> Reply[R]:
        """Has the command executed, which waits up to ``wait_s`` for groups; raises what the
        sampler raised."""

    @abstractmethod
    def close(self) -> None:
        """Releases what this object holds. Idempotent."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r}, trainer_epoch={self._trainer_epoch})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Closes. A trainer that leaves without an error after its last checkpoint, with every
        batch final, has finished the run."""
        try:
            if self._has_ended(*error):
                self._end_run()
        except RollstreamError as failure:
            self._log_no_end(failure)
        finally:
            self.close()

    @property
    def store(self) -> Blobs:
        """As this process reads it."""
        return self._rank_reader.store

    @property
    def trainer_epoch(self) -> int | None:
        """The epoch that this trainer belongs to; None before the first call that
        decides."""
        return self._trainer_epoch

    def resume(self, checkpointed_step: SupportsIndex | None, *, later: Later = "replay") -> int:
        """Begins a new trainer epoch; whoever trained before is fenced.

        Batches up to the checkpoint are final. After batch n the weights are weights n + 1, so
        policies of older epochs with a step beyond that are off the branch: what was sampled by
        them is dropped.

        Args:
            checkpointed_step: the newest step whose effect the loaded weights hold; None: there is
                none. Batches that this sampler ever served count as served beyond it: a new
                experiment has a namespace and a store of its own.
            later: what becomes of batches that were served beyond the checkpoint. ``replay``: the
                same steps give the same batches, from whichever saved step on: beyond the newest
                512 final ones they are read from the logs, and one that these, or the files, do not
                hold any more raises ``UnknownStep`` when it is asked for. ``release``: their groups
                may be served again.

        Returns:
            The step to do next.

        Raises:
            UnknownStep: the checkpoint lies beyond what was served, or a step that is to be
                replayed, and is no older than the newest 512 final ones, has groups whose files
                were retired; of an older one ``next_batch`` raises it.
        """
        saved = checkpointed_step
        if saved is not None:
            saved = whole_number("checkpointed_step", saved)
        return self._ask(Resume(checkpointed_step=saved, later=later))

    def next_batch(
        self,
        step: SupportsIndex,
        num_groups: SupportsIndex,
        *,
        timeout_s: float | None = None,
        dp_rank: SupportsIndex = 0,
        dp_size: SupportsIndex = 1,
        accept: Accept | None = None,
        mix: Mapping[str, float] | None = None,
        columns: Sequence[str] = (),
        payloads: PayloadsBy = "sampler",
    ) -> Batch:
        """The batch of ``step``, recorded before it is returned; the same batch at each call.

        Args:
            step: the next one, or one that was served. ``step + 1`` may be asked ahead.
            num_groups: in the whole batch, over all ranks.
            timeout_s: how long to wait for groups; None: as configured.
            dp_rank: this rank, whose share it is: slot ``p`` of the batch goes to rank
                ``p mod dp_size``. No part of the request: the recorded batch is the same.
            dp_size: how many ranks share the batch.
            accept: ``nonzero_std`` leaves out (for ever) groups whose rewards are all equal.
            mix: shares by environment; None: examples of all environments take turns.
            columns: what the batch is to have besides: ``actor_logprobs``, ``ref_logprobs``,
                ``token_rewards``, ``token_weight_steps``, ``metadata``, and names of producers'
                ``token_arrays``. Only these are read from the store. No part of the request:
                another call for the step, or another rank, may name others. One that no group of
                the batch has raises ``ArrayMissing`` at the access to it.
            payloads: who reads the rows from the store: the ``sampler``, which hands them over, or
                the ``rank``, in this process: the same bytes. The sampler's work then does not grow
                with tokens; what cannot be read here is asked of it, with a warning. No part of the
                request.

        Raises:
            NotEnoughGroups: not there in time; it lists what is ready, waiting and dropped.
            InvalidRequest: an argument is none that could be satisfied.
            GroupsUnreadable: files are missing or damaged, and a share of this batch was handed out
                before, or ``on_unreadable`` is ``stop``; else other groups are served in their
                places. Every rank gets it.
            StoreAway: the root is missing, or all files of an environment, or a call would replace
                more than 8 groups; waited for within ``timeout_s``. No group is dropped for it.
            RequestDiffers: the step was served for other arguments.
            UnknownStep: neither served nor next.
            TooManyOpenBatches: ``checkpointed`` was not called for too long.
            Fenced: a successor has resumed.
        """
        command = NextBatch(
            step=whole_number("step", step),
            num_groups=whole_number("num_groups", num_groups),
            accept=accept,
            mix=None if mix is None else shares("mix", mix),
            dp_rank=whole_number("dp_rank", dp_rank),
            dp_size=whole_number("dp_size", dp_size),
            columns=column_names(columns),
            payloads=payloads,
        )
        return self._ask_for_batch(command, timeout_s)

    def next_shaped_batch(
        self,
        step: SupportsIndex,
        shaping: Shaping,
        *,
        timeout_s: float | None = None,
        accept: Accept | None = None,
        mix: Mapping[str, float] | None = None,
        columns: Sequence[str] = (),
        payloads: PayloadsBy = "sampler",
    ) -> Batch:
        """``next_batch`` for who shapes batches: as many new groups as are ready, ``min_groups`` to
        ``num_groups``, and after them those that the step before left over. It is whole: every rank
        gets all rows. What the next step may carry is neither served again nor deleted.

        Raises:
            As ``next_batch``, and besides:
            RequestDiffers: the step was served with other settings, or other groups carried.
            InvalidRequest: a carried group is none of the step before, or that was not shaped.
            UnknownStep: ``carried`` is None, and the step was not served.
            CarryLost: a resume went back so far that a carried group is not there any more.
        """
        command = NextShapedBatch(
            step=whole_number("step", step),
            settings=text("settings", shaping.settings),
            num_groups=whole_number("num_groups", shaping.num_groups),
            min_groups=whole_number("min_groups", shaping.min_groups),
            carried=carry_asked(shaping.carried),
            accept=accept,
            mix=None if mix is None else shares("mix", mix),
            columns=column_names(columns),
            payloads=payloads,
        )
        return self._ask_for_batch(command, timeout_s)

    def recorded_batch(self, step: SupportsIndex, *, columns: Sequence[str] = ()) -> Batch | None:
        """The batch that was served for ``step``, whole; None: none was, or a resume released it.
        Claims and replaces nothing. Raises ``UnknownStep`` where the record does not have it any
        more, and ``GroupsUnreadable``."""
        at = whole_number("step", step)
        return self._ask_if_recorded(AskRecorded(step=at, columns=column_names(columns)))

    def replace(
        self,
        batch: Batch | SupportsIndex,
        groups: Iterable[SupportsIndex],
        reason: str,
        *,
        timeout_s: float | None = None,
    ) -> Batch:
        """The same batch with other groups in those slots, recorded like every decision, and with
        the columns that were asked for. It has an id of its own; ``ack`` takes that one alone.

        Args:
            batch: as it was returned last; or its step: the recorded batch as it is now, which is
                returned whole and without further columns. A second call with a step and the slots
                and reason of its newest replacement counts as that call repeated: it changes
                nothing and returns the same batch. Another reason, or the batch in hand, gives
                other groups.
            groups: which of its groups, from 0; of a step: which slots of the recorded batch.
            reason: for the record.

        Raises:
            NotEnoughGroups: there are no others in time.
            RequestDiffers: the batch is not as it was returned last, or it was acked, or is final.
            InvalidRequest: a group is none of the batch's, or the reason is empty.
            Fenced: a successor has resumed.
        """
        slots, reason = whole_numbers("groups", groups), reason_given(reason)
        if not isinstance(batch, Batch):
            step = whole_number("batch", batch)
            by_step = Replace(step=step, digest=None, slots=slots, reason=reason)
            return self._ask_for_batch(by_step, timeout_s)
        command = Replace(
            step=batch.step,
            digest=batch.digest,
            slots=tuple(map(batch.slot_of, slots)),
            reason=reason,
            dp_rank=batch.dp_rank,
            dp_size=batch.dp_size,
            columns=batch.columns,
        )
        return self._ask_for_batch(command, timeout_s)

    def drop(self, groups: Iterable[str], reason: str) -> None:
        """Records that these groups will never be served. Those that were served and are final, or
        were dropped before, stay as they are, so that the call may be repeated.

        Args:
            groups: their ids, as files, batches and errors have them.
            reason: for the record.

        Raises:
            RequestDiffers: a group is in a batch that is not final: ``replace`` takes it out.
            InvalidRequest: an id is none: 32 hexadecimal digits. Or the reason is empty.
            Fenced: a successor has resumed.
        """
        return self._ask(Drop(group_ids=group_ids("groups", groups), reason=reason_given(reason)))

    def purge(self) -> None:
        """Records that the groups which are ready now will never be served. Those of a batch that
        is not final stay, as do groups that wait for something; a repeated call drops what became
        ready since.

        Raises:
            Fenced: a successor has resumed.
        """
        return self._ask(Purge())

    def set_current_step(self, step: SupportsIndex) -> None:
        """Records the step that the trainer is at, for one that counts batches by other numbers
        (fetches, say): lag and ``max_rollout_step_delay`` are measured at it from now on, until the
        next ``resume``. Where batches are asked for by the trainer's steps, ``next_batch(step)`` is
        the clock and this is not needed. Groups that it makes too old are dropped.

        Args:
            step: not below the one before, nor beyond the next batch, which makes weights
                ``step + 1`` of it.

        Raises:
            InvalidRequest: it is below, or is negative. UnknownStep: it is beyond, so that such
                weights cannot be. Fenced: a successor has resumed.
        """
        return self._ask(SetCurrentStep(step=whole_number("step", step)))

    def ack(
        self,
        batch: Batch,
        status: AckStatus = "trained",
        *,
        skipped: Iterable[SupportsIndex] = (),
        filtered: Iterable[SupportsIndex] = (),
    ) -> None:
        """Records that the batch was trained on (or ``failed``); rank 0 acks for all ranks.

        It becomes final with ``checkpointed``, or with a successor's ``resume``.

        Args:
            skipped: slots of the recorded batch (``batch.slots[i]`` is that of its group ``i``)
                whose groups were not trained on; they count as ``skipped`` and are served no more.
            filtered: slots of groups that what shapes the batch left out whole: as ``skipped``, but
                they count as ``filtered``, and may be all.

        Raises:
            RequestDiffers: the step's batch is another by now: groups of this one were replaced, or
                a resume released it; or it was acked in another way.
            InvalidRequest: these are no slots of chosen groups, or all, or the batch failed.
            UnknownStep: the step has no batch that is held.
            Fenced: a successor has resumed.
        """
        batch = a_batch(batch)
        command = Ack(
            step=batch.step,
            batch_id=batch.batch_id,
            status=status,
            skipped=whole_numbers("skipped", skipped),
            filtered=whole_numbers("filtered", filtered),
        )
        return self._ask(command)

    def checkpointed(self, step: SupportsIndex) -> None:
        """Makes batches up to ``step`` final: the weights after it are saved. May come late.

        Raises:
            UnknownStep: the step has no batch that is held. InvalidRequest: it is negative. Fenced.
        """
        return self._ask(MarkCheckpointed(step=whole_number("step", step)))

    def finish(self) -> None:
        """Records that the run is over, also where batches are open: ``rollstream status`` expects
        nothing more of it. Any later decision begins it again."""
        return self._ask(Finish())

    def publish_policy(
        self,
        step: SupportsIndex,
        *,
        policy_version: str,
        weights: str | PathLike[str] = "",
        metadata: Mapping[str, Any] = NO_METADATA,
    ) -> Policy:
        """Records that weights ``step`` have this version; lag is measured against the newest. Env
        workers get it as ``producer.policy()``, at the latest a moment later; while Kafka is away,
        once it is back.

        Args:
            step: optimizer steps behind the weights.
            policy_version: names them; at most 200 bytes, for it names a folder too.
            weights: where workers find them: an address, or whatever they understand, at most
                4,096 characters; or a path, which is taken as its string.
            metadata: what else they are to know, as JSON can hold it; at most 64 KiB.

        Returns:
            The policy as workers must name it (lineage, epoch, step, version). The epoch sets
            weights after a ``resume`` apart from those before it. Where the version named other
            weights in an older epoch, the returned one differs: no version is ever used again.

        Raises:
            RequestDiffers: the weights have another version, or were published with other
                ``weights`` or ``metadata``; or the version names other weights.
            UnknownStep: ``step`` is beyond the next one to be served, so that such weights cannot
                be.
            InvalidRequest: an argument is none that could be satisfied.
        """
        command = PublishPolicy(
            step=whole_number("step", step),
            policy_version=version("policy_version", policy_version),
            weights=short_text("weights", as_text(weights)),
            metadata=json_object("metadata", metadata),
        )
        return self._ask(command)

    def progress(self) -> Progress:
        """What became of examples: what a data loader needs to resume. Claims nothing."""
        return self._ask(AskProgress())

    def stats(self) -> SamplerStats:
        """Figures of the sampler: what is ready, what waits, what was served. Claims nothing."""
        return self._ask(AskStats())

    # Every public call ends in one of these three: `AsyncSamplerClient` awaits there.

    def _ask(self, command: Command[R], timeout_s: float = 0.0) -> R:
        return self._value_of(self._execute(self._stamped(command), timeout_s), command)

    def _ask_for_batch(self, command: BatchCommand, timeout_s: float | None) -> Batch:
        begun_s = self._clock.monotonic_s()
        wait_s = self._wait_s(timeout_s)
        answer = self._ask(command, wait_s)
        read = self._rank_reader.read(answer) if isinstance(answer, Share) else answer
        if read is None:
            read = with_rows(self._ask(replace(command, payloads="sampler"), wait_s))
        waited_s = self._clock.monotonic_s() - begun_s
        return read.batch(waited_s=waited_s, read_group=self._read_group)

    def _ask_if_recorded(self, command: AskRecorded) -> Batch | None:
        read = self._ask(command)
        if read is None:
            return None
        return with_rows(read).batch(waited_s=0.0, read_group=self._read_group)

    def _has_ended(self, *error: object) -> bool:
        return self._saved and not any(error)

    def _end_run(self) -> None:
        return self._ask(Finish(if_final=True))

    def _log_no_end(self, failure: RollstreamError) -> None:
        """What the trainer did is recorded all the same, so leaving never raises for it."""
        _log.warning("it was not recorded that the run is over: %s", failure)

    def _wait_s(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else seconds("timeout_s", timeout_s)

    def _read_group(self, step: int, digest: bytes, slot: int) -> RolloutGroup:
        command = ReadGroup(step=step, digest=digest, slot=slot)
        return self._value_of(self._execute(self._stamped(command), 0.0), command)

    def _stamped(self, command: Command[R]) -> Command[R]:
        """The command as this trainer's."""
        return replace(command, trainer_epoch=self._trainer_epoch)

    def _value_of(self, reply: Reply[R], command: Command[R]) -> R:
        if command.claims:
            # Epochs only grow: another thread may have resumed since this reply was made.
            self._trainer_epoch = max(self._trainer_epoch or 0, reply.trainer_epoch)
        if isinstance(command, MarkCheckpointed | Resume | BatchCommand):
            self._saved = isinstance(command, MarkCheckpointed)
        return reply.value
