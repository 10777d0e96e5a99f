"""The public methods by which a trainer says what it did, and what is to become of groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, SupportsIndex

from numpy.typing import ArrayLike

from rollstream.sampler.api.asking import Asks
from rollstream.sampler.arguments import (
    NO_METADATA,
    as_text,
    group_ids,
    json_object,
    reason_given,
    short_text,
    version,
    whole_number,
    whole_numbers,
)
from rollstream.sampler.batch.batch import Batch, a_batch
from rollstream.sampler.batch.carried import outcomes_of
from rollstream.sampler.decide.batches.held_batches import step_of
from rollstream.sampler.decide.trainer.commands import (
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
from rollstream.schemas.order import Policy


class RecordsForTrainer(Asks):
    """Methods by which a trainer records what it did. Each is recorded before it returns."""

    def resume(self, checkpointed_step: SupportsIndex | None, *, later: Later = "replay") -> int:
        """Begins a new trainer epoch and returns the step to do next. An older trainer is fenced.

        Batches up to the checkpoint are final. The weights after batch n are weights n + 1, so
        policies of older epochs with a later step are off the branch, and their samples are
        dropped.

        The policy epoch rises too, unless no policy was published and no batch served in the
        present one. A first ``resume(n)`` under a name that never served begins policy epoch 1.

        Args:
            checkpointed_step: the newest step that the loaded weights hold; None: none, so that
                batches which were served before are served again. A new experiment has a namespace
                and a store of its own. A sampler that never served takes any checkpoint, and counts
                on.
            later: what becomes of batches beyond the checkpoint. ``replay``: the same steps give
                the same batches. Steps older than the newest 512 final ones are read from the logs.
                ``release``: their groups may be served again.

        Returns:
            The step to do next.

        Raises:
            UnknownStep: the checkpoint is beyond the served steps; or a step to replay has groups
                whose files were retired. Of steps older than the newest 512 final ones,
                ``next_batch`` raises it.
        """
        saved = checkpointed_step
        if saved is not None:
            saved = whole_number("checkpointed_step", saved)
        return self._ask(Resume(checkpointed_step=saved, later=later))

    def drop(self, groups: Iterable[str], reason: str) -> None:
        """Records that these groups will never be served.

        You may repeat the call: groups that are final or were dropped stay as they are. Unknown ids
        are passed over, since such a group may have ended long ago.

        Args:
            groups: their ids, as files, batches and errors have them.
            reason: for the record.

        Raises:
            RequestDiffers: a group is in a batch that is not final; ``replace`` takes it out.
            InvalidRequest: an id is not 32 hexadecimal digits, or the reason is empty.
            Fenced: a successor has resumed.
        """
        return self._ask(Drop(group_ids=group_ids("groups", groups), reason=reason_given(reason)))

    def purge(self) -> None:
        """Records that all groups that are ready now will never be served.

        Open batches keep their groups, and groups that wait for something stay. If you repeat the
        call, it drops the groups that became ready since.

        Raises:
            Fenced: a successor has resumed.
        """
        return self._ask(Purge())

    def set_current_step(self, step: SupportsIndex) -> None:
        """Records the trainer's step, if it counts its batches by other numbers than its steps.

        All limits of age in steps are measured at this step until the next ``resume``, rollout by
        rollout. Groups that are now too old are dropped. If you ask for batches by steps,
        ``next_batch`` is the clock, and you do not need this.

        Args:
            step: not below the one before, and not beyond the next batch.

        Raises:
            InvalidRequest: it is below the one before, or negative.
            UnknownStep: it is beyond the next batch, so such weights cannot exist.
            Fenced: a successor has resumed.
        """
        return self._ask(SetCurrentStep(step=whole_number("step", step)))

    def ack(
        self,
        batch: Batch | str,
        status: AckStatus = "trained",
        *,
        skipped: Iterable[SupportsIndex] = (),
        outcomes: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Records that the batch was trained on (or ``failed``). Rank 0 acks for all ranks.

        The batch becomes final with ``checkpointed``, or with a successor's ``resume``.

        Args:
            batch: the batch, or its ``batch_id`` if you give no ``outcomes``.
            status: ``trained`` or ``failed``.
            skipped: slots of the recorded batch whose groups were not trained on; they are served
                no more. ``batch.slots[i]`` is the slot of group ``i``.
            outcomes: of a shaped batch, what became of its trajectories: ``trained``, ``kept`` for
                the next step, or ``stale``, each with indices in the batch. The others count as
                ``filtered``. None: trajectories that the next step does not carry count as
                ``unknown``. ``TrainingBatches.ack`` and ``ReadyPacks.ack`` give it.

        Raises:
            RequestDiffers: the step's batch is another by now, or was acked in another way; or the
                next step was decided, and does not carry exactly what ``outcomes`` names as
                ``kept``.
            InvalidRequest: ``skipped`` or ``outcomes`` are not of this batch.
            UnknownStep: the step has no batch that is held.
            Fenced: a successor has resumed.
        """
        if isinstance(batch, str) and outcomes is None:
            step, batch_id = step_of(batch), batch
        else:
            batch = a_batch(batch)
            step, batch_id = batch.step, batch.batch_id
        command = Ack(
            step=step,
            batch_id=batch_id,
            status=status,
            skipped=whole_numbers("skipped", skipped),
            outcomes=None if outcomes is None else outcomes_of(a_batch(batch), outcomes),
        )
        return self._ask(command)

    def checkpointed(self, step: SupportsIndex) -> None:
        """Makes batches up to ``step`` final: the weights after it are saved. It may come late.

        Raises:
            UnknownStep: the step has no batch that is held.
            InvalidRequest: the step is negative.
            Fenced: a successor has resumed.
        """
        return self._ask(MarkCheckpointed(step=whole_number("step", step)))

    def finish(self) -> None:
        """Records that the run is over, even if batches are open. Any later decision begins it
        again.

        ``rollstream status`` then expects nothing more of it, and workers get ``RunOver``.
        """
        return self._ask(Finish())

    def publish_policy(
        self,
        step: SupportsIndex,
        *,
        policy_version: str,
        weights: str | PathLike[str] = "",
        metadata: Mapping[str, Any] = NO_METADATA,
    ) -> Policy:
        """Records that weights ``step`` have this version. Env workers get it as
        ``producer.policy()``.

        Workers get it a moment later, or once Kafka is back. Lag is measured against the newest
        policy. Save the weights before you call this.

        Args:
            step: optimizer steps behind the weights.
            policy_version: names the weights; at most 200 bytes.
            weights: where workers find them, such as a path or an address; at most 4,096
                characters.
            metadata: what else workers should know, as JSON; at most 64 KiB.

        Returns:
            The policy as workers must name it. If an older epoch used the version for other
                weights, the returned version differs: no version is ever used again.

        Raises:
            RequestDiffers: the weights have another version, or were published with other
                ``weights`` or ``metadata``; or the version names other weights.
            UnknownStep: ``step`` is beyond the next batch, so such weights cannot exist.
            InvalidRequest: an argument makes no sense; the message says what to give.
        """
        command = PublishPolicy(
            step=whole_number("step", step),
            policy_version=version("policy_version", policy_version),
            weights=short_text("weights", as_text(weights)),
            metadata=json_object("metadata", metadata),
        )
        return self._ask(command)
