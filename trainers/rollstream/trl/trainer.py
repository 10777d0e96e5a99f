"""``RolloutTrainer``: TRL's ``GRPOTrainer`` over the steps of a sampler, and the callback that
tells the sampler what was trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from torch.utils.data import DataLoader
from trl import GRPOTrainer

from rollstream.sampler import Batch, InvalidRequest, SamplerApi, TrainingBatch
from rollstream.sampler.arguments import whole_number
from rollstream.sampler.training.examples.examples import Examples
from rollstream.sampler.training.given_sampler import a_sampler
from rollstream.trl.checkpoint import checkpointed_step, write_step
from rollstream.trl.grpo import grpo_inputs

__all__ = ["AnyBatch", "Publish", "RolloutTrainer", "SamplerCallback", "checkpointed_step"]

AnyBatch = Batch | TrainingBatch
"""What a micro-batch is made of: ``next_batch`` or ``TrainingBatches.next`` returned it."""
Publish = Callable[[int, Any], str | PathLike[str]]
"""Is called with a weight step and the model, writes the weights where env workers load them, and
returns where."""


class SamplerCallback(transformers.TrainerCallback):
    """Tells the sampler what ``RolloutTrainer`` did, from rank 0.

    After each optimizer step it acks the batch of every micro-batch and publishes the new policy.
    After each checkpoint it calls ``checkpointed``, and writes the step into the checkpoint's
    folder. A micro-batch is a step of the sampler, so weight steps count micro-batches.

    Args:
        sampler: that served the batches.
        first_step: what ``resume`` returned. The policy of this step is published before the first
            batch is asked for.
        ack: acks a micro-batch's batch; None: ``sampler.ack``. Give ``TrainingBatches.ack`` for its
            batches.
        publish: writes the weights on every rank, after each optimizer step; None: no policy is
            published.
    """

    def __init__(
        self,
        sampler: SamplerApi,
        *,
        first_step: int,
        ack: Callable[[Any], None] | None = None,
        publish: Publish | None = None,
    ) -> None:
        self._sampler = a_sampler(sampler)
        self._next_step = whole_number("first_step", first_step)
        self._ack: Callable[[Any], None] = sampler.ack if ack is None else ack
        self._publish = publish
        self.trained: list[AnyBatch] = []  # Micro-batches of the optimizer step that is under way.

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Publishes the policy that the run begins with."""
        self._publish_policy(state, kwargs["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Acks each micro-batch, and publishes the new policy."""
        for one in self.trained:
            if state.is_world_process_zero:
                self._ack(one)
            self._next_step = _batch(one).step + 1
        self.trained.clear()
        self._publish_policy(state, kwargs["model"])

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Marks what the checkpoint holds as final; nothing before the first step."""
        if not state.is_world_process_zero:
            return
        step = self._next_step - 1 if self._next_step else None
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if folder.is_dir():
            write_step(folder, step)
        if step is not None:
            self._sampler.checkpointed(step)

    def _publish_policy(self, state: Any, model: Any) -> None:
        if self._publish is None:
            return
        step = self._next_step
        weights = self._publish(step, model)
        if state.is_world_process_zero:
            self._sampler.publish_policy(step, policy_version=f"step-{step}", weights=weights)


class RolloutTrainer(GRPOTrainer):
    """``GRPOTrainer`` whose micro-batches are batches of a sampler, instead of generations.

    Loss and gradient of an optimizer step are those of its micro-batches as one batch, for every
    ``loss_type`` and any ``gradient_accumulation_steps``: where the loss is divided by tokens
    (``dapo``, ``cispo``, ``vespo``), by those of all micro-batches and ranks. Where TRL takes means
    of sequences (``grpo``, ``dr_grpo``, ``sapo``, ``luspo``) or of a micro-batch's tokens
    (``bnpo``), micro-batches count alike, as in TRL.

    Args:
        model: as ``GRPOTrainer`` has it, and likewise every argument that is not named here.
        rollouts: batches, one a micro-batch: a ``RolloutDataset``, or what
            ``TrainingBatches.next`` returns for one step after the other. On each rank its share.
        callback: acks, publishes and marks checkpoints.
        inputs: makes the loss's inputs of a batch; None: ``grpo_inputs`` with the advantages of
            ``Examples.of(batch, "grpo")``, or those that the maker of a ``TrainingBatch`` gave.
    """

    def __init__(
        self,
        model: Any,
        *,
        rollouts: Iterable[AnyBatch],
        callback: SamplerCallback,
        inputs: Callable[[Any], dict[str, Any]] | None = None,
        args: Any,
        processing_class: Any,
        **others: Any,
    ) -> None:
        if not isinstance(callback, SamplerCallback):
            raise InvalidRequest(f"callback is {callback!r:.200}; give a SamplerCallback")
        self._rollouts = rollouts
        self._callback = callback
        self._inputs = self._inputs_of if inputs is None else inputs
        # A trainer that is resumed would pass over as many batches as it trained on before, and
        # the sampler begins behind these.
        args.ignore_data_skip = True
        super().__init__(
            model,
            reward_funcs=_never_called,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": [""]}),  # Nothing is read of it.
            processing_class=processing_class,
            **others,
        )
        self.add_callback(callback)

    def get_train_dataloader(self) -> Any:
        """The batches, each whole."""
        return DataLoader(_Iterated(self._rollouts), batch_size=None)

    def get_batch_samples(
        self, epoch_iterator: Iterator[AnyBatch], num_batches: int, device: Any
    ) -> tuple[list[dict[str, Any]], None]:
        """The micro-batches of an optimizer step, each with the tokens of all of them."""
        steps = list(islice(epoch_iterator, num_batches))
        self._callback.trained[:] = steps
        samples = [self._inputs(one) for one in steps]
        if samples:
            counted = torch.stack([one["num_items_in_batch"] for one in samples]).sum()
            total = self.accelerator.gather(counted.to(device)).sum()
            # TRL's number spans a generation batch, and it divides by this part of it.
            total = total * self.args.steps_per_generation / len(samples)
            samples = [{**one, "num_items_in_batch": total} for one in samples]
        return samples, None

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Nothing is generated."""
        return transformers.Trainer._prepare_inputs(self, generation_batch)

    def _inputs_of(self, step: AnyBatch) -> dict[str, Any]:
        made = step.examples if isinstance(step, TrainingBatch) else Examples.of(step, "grpo")
        pad_id = self.processing_class.pad_token_id
        return grpo_inputs(_batch(step), made, pad_id=0 if pad_id is None else pad_id)


class _Iterated(torch.utils.data.IterableDataset[Any]):
    def __init__(self, items: Iterable[AnyBatch]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[AnyBatch]:
        return iter(self._items)


def _batch(step: AnyBatch) -> Batch:
    return step.batch if isinstance(step, TrainingBatch) else step


def _never_called(**_: Any) -> list[float]:
    raise AssertionError("rewards come with the batches")
