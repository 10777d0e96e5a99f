"""The public methods that hand a batch over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import SupportsIndex

from rollstream.folds.group.eligible import Accept
from rollstream.sampler.api.asking import Asks
from rollstream.sampler.arguments import (
    reason_given,
    shares,
    text,
    version_given,
    whole_number,
    whole_numbers,
)
from rollstream.sampler.batch.batch import Batch
from rollstream.sampler.batch.carried import Shaping
from rollstream.sampler.batch.requested import column_names
from rollstream.sampler.decide.batches.next_batch import (
    NextBatch,
    PayloadsBy,
    Replace,
)
from rollstream.sampler.decide.batches.shaped import NextShapedBatch, carry_asked, lost_asked
from rollstream.sampler.decide.choosing.choose import Grouping
from rollstream.sampler.decide.queries.looks import AskRecorded
from rollstream.sampler.errors import InvalidRequest
from rollstream.schemas.other_names import refuses


class HandsBatchesOver(Asks):
    """Methods that hand batches over. Each batch is recorded before it is returned."""

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
        """Returns the batch of ``step``; the same bytes at each call, from each rank.

        ``grouping``, ``policy_version``, ``seed`` and ``start_offset`` are as in ``sample_groups``.

        Args:
            step: the next one, or one that was served. You may ask for ``step + 1`` ahead.
            num_groups: in the whole batch, over all ranks.
            timeout_s: how long to wait for groups; None: as configured.
            dp_rank: the rank whose share you want: slot ``p`` goes to rank ``p mod dp_size``.
            dp_size: how many ranks share the batch. Above 1 it needs ``dp_rank``.
            accept: ``nonzero_std`` leaves out, for ever, groups whose rewards are all equal.
            mix: shares by environment, relative to their sum; None: all examples take turns.
            columns: what the batch has besides: ``old_logprobs``, ``ref_logprobs``,
                ``token_rewards``, ``token_weight_steps``, ``logprob_sums``, ``metadata``,
                ``group_uids``, ``worker_ids``, ``created_ts``, and names of your ``token_arrays``.
                Only these are read from the store. Each call and each rank may name others.
            payloads: who reads the rows from the store. ``sampler``: it hands them over. ``rank``:
                this process reads its share, and gets the same bytes, so a batch costs the sampler
                the same however many tokens it has. The sampler looks whether all files are there
                in full size. Files that this process cannot read are read by the sampler, with a
                warning.

        Raises:
            NotEnoughGroups: not there in time; it lists what is ready, waiting and dropped.
            InvalidRequest: an argument makes no sense; the message says what to give.
            GroupsUnreadable: files are missing or damaged after a share was handed out, or with
                ``on_unreadable = "stop"``. Every rank gets it. Otherwise other groups are served
                instead, and counted as ``unreadable``.
            StoreAway: the store is away, or a call would replace more than 8 groups. The call waits
                for it until its time is up. No group is dropped.
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
        return self._run(self._asked_for_batch(command, timeout_s))

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
        """Returns a batch for a trainer that shapes batches itself, whole, to every rank.

        It has as many new groups as are ready, between ``min_groups`` and ``num_groups``. After
        them come groups of the step before that are not fully trained on
        (``batch.carried_groups``); ``batch.used`` marks their trajectories that are not to be
        trained on again. ``TrainingBatches`` and ``ReadyPacks`` use this.

        Raises:
            SamplerError: whatever ``next_batch`` raises, and besides:
            RequestDiffers: the step was served with other settings, or other groups carried.
            InvalidRequest: a carried group is not of the step before, or that step was not shaped.
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
        return self._run(self._asked_for_batch(command, timeout_s))

    def recorded_batch(self, step: SupportsIndex, *, columns: Sequence[str] = ()) -> Batch | None:
        """Returns the whole batch that was served for ``step``; None: none was, or it was released.

        It claims and replaces nothing.

        Raises:
            UnknownStep: the record does not have the step any more.
            GroupsUnreadable: files are missing or damaged.
        """
        command = AskRecorded(step=whole_number("step", step), columns=column_names(columns))
        return self._run(self._asked_if_recorded(command))

    def replace(
        self,
        batch: Batch | SupportsIndex,
        groups: Iterable[SupportsIndex],
        reason: str,
        *,
        timeout_s: float | None = None,
    ) -> Batch:
        """Returns the same batch with other groups in these slots, and records it.

        The new batch has an id of its own, and ``ack`` takes only the new batch. It has the columns
        that were asked for.

        Args:
            batch: as it was returned last; or its step, and the batch is returned whole and without
                further columns. With a step, a second call with the same slots and reason changes
                nothing. Another reason gives other groups.
            groups: which of its groups, from 0; of a step: which slots of the recorded batch.
            reason: for the record.

        Raises:
            NotEnoughGroups: there are no others in time.
            RequestDiffers: the batch is not as it was returned last, or it was acked, or is final.
            InvalidRequest: a group is not of the batch, or the reason is empty.
            Fenced: a successor has resumed.
        """
        slots, reason = whole_numbers("groups", groups), reason_given(reason)
        if isinstance(batch, Batch):
            command = Replace(
                step=batch.step,
                digest=batch.digest,
                slots=tuple(map(batch.slot_of, slots)),
                reason=reason,
                dp_rank=batch.dp_rank,
                dp_size=batch.dp_size,
                columns=batch.columns,
            )
        else:
            step = whole_number("batch", batch)
            command = Replace(step=step, digest=None, slots=slots, reason=reason)
        return self._run(self._asked_for_batch(command, timeout_s))


def _share(dp_rank: SupportsIndex | None, dp_size: SupportsIndex) -> tuple[int, int]:
    """Both as whole numbers; raises ``InvalidRequest`` where it is not said whose share it is."""
    ranks = whole_number("dp_size", dp_size)
    if dp_rank is None and ranks > 1:
        raise InvalidRequest(
            f"dp_size is {ranks} and dp_rank is missing. Every rank would get the same share. "
            "Give dp_rank, from 0, or leave dp_size out for the whole batch"
        )
    return 0 if dp_rank is None else whole_number("dp_rank", dp_rank), ranks
