"""The public methods by which a trainer says what it did, and what is to become of groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, SupportsIndex

from numpy.typing import ArrayLike

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
from rollstream.sampler.deciding.command import Command, R
from rollstream.sampler.deciding.held_batches import step_of
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
from rollstream.sampler.shaping.batch import Batch, a_batch
from rollstream.sampler.shaping.carried import outcomes_of
from rollstream.schemas.order import Policy


class RecordsForTrainer(ABC):
    """A sampler as seen by a trainer between two batches. What is called here is recorded before
    the call returns."""

    @abstractmethod
    def _ask(self, command: Command[R]) -> R: ...

    def resume(self, checkpointed_step: SupportsIndex | None, *, later: Later = "replay") -> int:
        """Begins a new trainer epoch; whoever trained before is fenced.

        Batches up to the checkpoint are final. After batch n the weights are weights n + 1, so
        policies of older epochs with a step beyond that are off the branch: what was sampled by
        them is dropped.

        Args:
            checkpointed_step: the newest step whose effect the loaded weights hold; None: there is
                none. Batches that this sampler ever served count as served beyond it: a new
                experiment has a namespace and a store of its own. Where it holds none, every
                checkpoint is taken: the trainer goes on with weights that were trained under
                another name, in another deployment, or without this one, and counts its steps on.
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

    def drop(self, groups: Iterable[str], reason: str) -> None:
        """Records that these groups will never be served. Those that were served and are final, or
        were dropped before, stay as they are, so that the call may be repeated. An id that the
        sampler does not know is passed over: the group may have ended long ago.

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
        batch: Batch | str,
        status: AckStatus = "trained",
        *,
        skipped: Iterable[SupportsIndex] = (),
        outcomes: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Records that the batch was trained on (or ``failed``); rank 0 acks for all ranks.

        It becomes final with ``checkpointed``, or with a successor's ``resume``.

        Args:
            batch: the batch; or its ``batch_id``, where no ``outcomes`` are given.
            skipped: slots of the recorded batch (``batch.slots[i]`` is that of its group ``i``)
                whose groups were not trained on; they count as ``skipped`` and are served no more.
            outcomes: of a shaped batch, what became of its trajectories: ``trained``, ``kept`` for
                the next step, or ``stale``, each with indices in the batch. The others count as
                ``filtered``. None: the ack does not say, so what the next step does not carry
                counts as ``unknown``. ``TrainingBatches.ack`` and ``ReadyPacks.ack`` say it.

        Raises:
            RequestDiffers: the step's batch is another by now: groups of this one were replaced, or
                a resume released it; or it was acked in another way; or the next step was decided,
                and does not carry what ``outcomes`` names as ``kept``, or carries more.
            InvalidRequest: these are no slots of chosen groups, or all, or the batch failed; or
                ``outcomes`` are not of this batch.
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
