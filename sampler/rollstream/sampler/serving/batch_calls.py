"""The public methods that hand a batch over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import SupportsIndex

from rollstream.sampler.arguments import (
    reason_given,
    shares,
    text,
    version_given,
    whole_number,
    whole_numbers,
)
from rollstream.sampler.deciding.batches import BatchCommand, NextBatch, PayloadsBy, Replace
from rollstream.sampler.deciding.choose import Grouping
from rollstream.sampler.deciding.queries import AskRecorded
from rollstream.sampler.deciding.shaped import NextShapedBatch, carry_asked, lost_asked
from rollstream.sampler.errors import InvalidRequest
from rollstream.sampler.shaping.batch import Batch
from rollstream.sampler.shaping.carried import Shaping
from rollstream.sampler.shaping.requested import column_names
from rollstream.schemas.other_names import refuses
from rollstream.streams.folds.sampler.eligible import Accept


class HandsBatchesOver(ABC):
    """A sampler as seen by who takes batches of it. Each is recorded before it is returned."""

    @abstractmethod
    def _ask_for_batch(self, command: BatchCommand, timeout_s: float | None) -> Batch: ...

    @abstractmethod
    def _ask_if_recorded(self, command: AskRecorded) -> Batch | None: ...

    @refuses(rng_seed="seed", local_batch_size="num_groups for all ranks, dp_rank and dp_size")
    def next_batch(
        self,
        step: SupportsIndex,
        num_groups: SupportsIndex,
        *,
        timeout_s: float | None = None,
        dp_rank: SupportsIndex | None = None,
        dp_size: SupportsIndex = 1,
        accept: Accept | None = None,
        mix: Mapping[str, float] | None = None,
        grouping: Grouping = "mixed",
        seed: SupportsIndex | None = None,
        start_offset: SupportsIndex = 0,
        policy_version: str | None = None,
        columns: Sequence[str] = (),
        payloads: PayloadsBy = "sampler",
    ) -> Batch:
        """The batch of ``step``, recorded before it is returned; the same batch at each call. All
        that is not named here is as in ``sample_groups``.

        Args:
            step: the next one, or one that was served. ``step + 1`` may be asked ahead.
            num_groups: in the whole batch, over all ranks.
            timeout_s: how long to wait for groups; None: as configured.
            dp_rank: this rank, whose share it is: slot ``p`` of the batch goes to rank
                ``p mod dp_size``. No part of the request: the recorded batch is the same.
            dp_size: how many ranks share the batch. Above 1 it needs ``dp_rank``.
            accept: ``nonzero_std`` leaves out (for ever) groups whose rewards are all equal.
            mix: shares by environment, relative to their sum; None: all examples take turns.
            columns: what the batch is to have besides: ``old_logprobs``, ``ref_logprobs``,
                ``token_rewards``, ``token_weight_steps``, ``logprob_sums``, ``metadata``,
                ``group_uids``, ``worker_ids``, ``created_ts``, and names of producers'
                ``token_arrays``. Only these are read from the store. No part of the request:
                another call for the step, or another rank, may name others. One that no group has
                raises ``ArrayMissing`` at the access to it.
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
        rank, ranks = _share(dp_rank, dp_size)
        command = NextBatch(
            step=whole_number("step", step),
            num_groups=whole_number("num_groups", num_groups),
            accept=accept,
            mix=None if mix is None else shares("mix", mix),
            grouping=grouping,
            seed=None if seed is None else whole_number("seed", seed),
            start_offset=whole_number("start_offset", start_offset),
            policy_version=version_given(policy_version),
            dp_rank=rank,
            dp_size=ranks,
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
            lost=lost_asked(shaping.lost),
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


def _share(dp_rank: SupportsIndex | None, dp_size: SupportsIndex) -> tuple[int, int]:
    """Both as whole numbers; raises ``InvalidRequest`` where it is not said whose share it is."""
    ranks = whole_number("dp_size", dp_size)
    if dp_rank is None and ranks > 1:
        raise InvalidRequest(
            f"dp_size is {ranks} and dp_rank is missing. Every rank would get the same share. "
            "Give dp_rank, from 0, or leave dp_size out for the whole batch"
        )
    return 0 if dp_rank is None else whole_number("dp_rank", dp_rank), ranks
