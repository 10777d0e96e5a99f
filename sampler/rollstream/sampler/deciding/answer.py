"""What is replied once the events of a command are confirmed. Pure."""

from __future__ import annotations

from collections import Counter

from rollstream.sampler.deciding.choose import quotas
from rollstream.sampler.deciding.commands import (
    AskProgress,
    Command,
    NextBatch,
    Progress,
    PublishPolicy,
    Replace,
    Resume,
)
from rollstream.sampler.errors import NotEnoughGroups
from rollstream.schemas.order import Policy
from rollstream.schemas.reasons import DropReason
from rollstream.streams.folds.sampler.known import Key
from rollstream.streams.folds.sampler.remedies import why_dropped, why_waiting
from rollstream.streams.folds.sampler.served import DROPPED, ServedBatch
from rollstream.streams.folds.sampler.state import NOTHING, SamplerState

Answer = ServedBatch | Policy | Progress | int | bool


def answer(command: Command, state: SamplerState) -> Answer | None:
    """What the state says about the command; None: the groups for it are not there yet."""
    match command:
        case NextBatch():
            return state.batches.get(command.step)
        case Replace():
            batch = state.batches[command.step]
            return None if batch.digest == command.digest else batch
        case Resume():
            saved = command.checkpointed_step
            return 0 if saved is None else saved + 1
        case PublishPolicy():
            version = state.policies[state.policy_epoch, command.step]
            return Policy(state.config.lineage, state.policy_epoch, command.step, version)
        case AskProgress():
            return progress(state)
        case _:
            return True


def progress(state: SamplerState) -> Progress:
    """What became of examples."""
    handed_out: dict[str, Counter[str]] = {}
    for batch in state.open_batches():
        for chosen in batch.groups:
            known = state.group(chosen)
            if known is not None:
                key: Key = known.key
                handed_out.setdefault(key.environment, Counter())[key.example_id] += 1
    return Progress(
        trained=state.outcomes.by_environment("trained"),
        failed=state.outcomes.by_environment("failed"),
        filtered=state.outcomes.by_environment("filtered"),
        dropped=state.outcomes.by_environment(*DROPPED),
        handed_out={name: dict(counts) for name, counts in handed_out.items()},
        ready=state.ready.counts(),
        next_step=state.next_step,
        final_step=None if state.final_step == NOTHING else state.final_step,
    )


def not_enough(command: NextBatch | Replace, state: SamplerState) -> NotEnoughGroups:
    """Why the groups for a command are not there."""
    if isinstance(command, Replace):
        wanted, asked = len(command.slots), f"{len(command.slots)} others"
    else:
        wanted = command.num_groups
        shares = quotas(state.config.environments, wanted, command.mix)
        asked = ", ".join(f"{count} of {' or '.join(names)}" for names, count in shares)
    ready = {name: count for name, count in sorted(state.ready.counts().items()) if count}
    waiting = Counter(state.waiting.values())
    if state.eval_groups:
        waiting["eval"] = state.eval_groups
    totals = state.outcomes.totals()
    dropped: dict[str, int] = {
        why.value: totals[why.value] for why in DropReason if why.value in totals
    }
    reasons = [
        f"{n} wait: {why_waiting(why, state.name, state.config)}"
        for why, n in sorted(waiting.items())
    ]
    reasons += [
        f"{n} were dropped as {why}: "
        + why_dropped(DropReason(why), state.name, state.config, state.policy_epoch)
        for why, n in sorted(dropped.items())
    ]
    message = (
        f"step {command.step} needs {wanted} groups ({asked}); ready: {ready or 'none'}. "
        + (". ".join(reasons) or "None waits and none was dropped: no more were sealed")
        + ". Groups that are not sealed yet are not counted here: see with `rollstream status` "
        "that env workers and sealers run, then wait longer, or ask for fewer"
    )
    return NotEnoughGroups(
        message,
        step=command.step,
        wanted=wanted,
        ready=ready,
        waiting=dict[str, int](waiting.items()),
        dropped=dropped,
    )
