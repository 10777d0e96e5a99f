"""What the sampler refuses, and why: each check names the values and the remedy. Pure."""

from __future__ import annotations

from rollstream.sampler.deciding.commands import (
    Ack,
    NextBatch,
    PublishPolicy,
    Replace,
    Resume,
)
from rollstream.sampler.errors import (
    InvalidRequest,
    RequestDiffers,
    TooManyOpenBatches,
    UnknownStep,
)
from rollstream.streams.errors import Fenced
from rollstream.streams.folds.sampler.served import ServedBatch
from rollstream.streams.folds.sampler.state import SamplerState


def check_trainer(trainer_epoch: int | None, state: SamplerState) -> None:
    """Only the trainer that resumed last may ask."""
    if trainer_epoch is not None and trainer_epoch != state.trainer_epoch:
        raise Fenced(
            f"this trainer belongs to epoch {trainer_epoch} of sampler {state.name!r}, but a "
            f"successor has resumed and epoch {state.trainer_epoch} is in effect; stop this trainer"
        )


def check_same_request(command: NextBatch, served: ServedBatch) -> None:
    """A served step stays as it was asked for."""
    if command.request() != served.event.request:
        raise RequestDiffers(
            f"step {command.step} was served for {served.event.request} and is now asked for with "
            f"{command.request()}; ask with the same arguments, or resume(…, later='release')"
        )


def check_new_step(command: NextBatch, state: SamplerState) -> None:
    """Steps are decided one after the other."""
    if command.step != state.next_step:
        held = f"held are steps {sorted(state.batches)[:1]} to {sorted(state.batches)[-1:]}"
        raise UnknownStep(
            f"step {command.step} was asked for, but the next one to be served is "
            f"{state.next_step}; {held if state.batches else 'no batch is held'}. Ask for "
            f"{state.next_step}, or resume from the checkpoint you have"
        )
    unknown = set(command.mix or ()) - set(state.config.environments)
    if unknown:
        raise InvalidRequest(
            f"mix names {sorted(unknown)}, but sampler {state.name!r} serves "
            f"{sorted(state.config.environments)}; add them to its environments"
        )
    if command.num_groups > state.config.capacity_groups:
        raise InvalidRequest(
            f"num_groups {command.num_groups} is above capacity_groups "
            f"{state.config.capacity_groups}: that many would never be ready; raise the capacity"
        )
    opened = len(state.open_batches())
    if opened >= state.config.max_open_batches:
        raise TooManyOpenBatches(
            f"{opened} served batches are not final, and max_open_batches is "
            f"{state.config.max_open_batches}; call checkpointed(step) after saving the weights"
        )


def check_served(step: int, state: SamplerState) -> ServedBatch:
    """The batch of a step that is held."""
    batch = state.batches.get(step)
    if batch is None:
        raise UnknownStep(
            f"step {step} has no batch that is held; the next one to be served is "
            f"{state.next_step} and steps up to {state.final_step} are final"
        )
    return batch


def check_acked(command: Ack, batch: ServedBatch) -> bool:
    """Whether the ack says anything new."""
    if command.status not in ("trained", "failed"):
        raise InvalidRequest(f"status {command.status!r} is unknown; use 'trained' or 'failed'")
    if command.batch_id != batch.event.batch_id:
        raise RequestDiffers(
            f"step {command.step} is batch {batch.event.batch_id!r}, not {command.batch_id!r}: "
            "that one was released by a resume; ask for the step again"
        )
    if batch.status not in (None, command.status):
        raise RequestDiffers(
            f"batch {command.batch_id!r} was acked as {batch.status!r} and is now acked as "
            f"{command.status!r}; an ack is said once"
        )
    return batch.status is None and not batch.final


def check_resumed(command: Resume, state: SamplerState) -> None:
    """A checkpoint must lie within what was served, and what is replayed must be held."""
    if command.later not in ("replay", "release"):
        raise InvalidRequest(f"later {command.later!r} is unknown; use 'replay' or 'release'")
    saved = command.checkpointed_step
    if saved is not None and saved < 0:
        raise InvalidRequest(f"checkpointed_step {saved} is negative; None means a new run")
    if saved is not None and state.batches and saved >= state.next_step:
        raise UnknownStep(
            f"checkpoint {saved} cannot be: the newest step that sampler {state.name!r} served is "
            f"{state.next_step - 1}; does the checkpoint belong to another sampler?"
        )
    first = 0 if saved is None else saved + 1
    if command.later == "replay" and state.batches and first < min(state.batches):
        raise UnknownStep(
            f"steps {first} to {min(state.batches) - 1} are final and no longer held, so they "
            "cannot be replayed; resume from a newer checkpoint, or with later='release'"
        )


def check_replaced(command: Replace, batch: ServedBatch) -> bool:
    """Whether this very replacement was done before."""
    done = batch.replaced
    if (
        done is not None
        and done.before == command.digest
        and (done.slots, done.reason) == (command.slots, command.reason)
    ):
        return True
    if command.digest != batch.digest:
        raise RequestDiffers(
            f"the batch of step {command.step} has changed since it was read; ask for it again"
        )
    if batch.final:
        raise RequestDiffers(f"the batch of step {command.step} is final; it was trained on")
    slots = set(command.slots)
    if not slots or len(slots) != len(command.slots) or max(slots) >= len(batch.groups):
        raise InvalidRequest(
            f"groups {command.slots} are not distinct slots of a batch of {len(batch.groups)}"
        )
    return False


def check_policy(command: PublishPolicy, state: SamplerState) -> str | None:
    """The version under which the policy is published; None: it was published before."""
    if command.step < 0 or not command.policy_version:
        raise InvalidRequest(
            f"policy {command.policy_version!r} of step {command.step}: the version must not be "
            "empty and the step not negative"
        )
    known = state.policies.get((state.policy_epoch, command.step))
    wanted = unused_version(command.policy_version, state)
    if known is not None:
        if known not in (wanted, command.policy_version):
            raise RequestDiffers(
                f"weights {command.step} were published as {known!r} and now as "
                f"{command.policy_version!r}; a policy has one version"
            )
        return None
    holder = state.versions.get(wanted)
    if holder is not None:
        raise RequestDiffers(
            f"version {wanted!r} already names weights {holder[1]} and is now given to weights "
            f"{command.step}; a version is never used again"
        )
    return wanted


def unused_version(version: str, state: SamplerState) -> str:
    """A version that no older epoch used: a rewound trainer tends to count up to the same name."""
    holder = state.versions.get(version)
    if holder is None or holder[0] == state.policy_epoch:
        return version
    return f"{version}.e{state.policy_epoch}"
