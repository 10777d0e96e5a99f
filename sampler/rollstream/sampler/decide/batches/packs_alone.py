"""A sampler of ready packs decides its steps through ``ReadyPacks`` alone. Pure."""

from __future__ import annotations

import json
from typing import Any

from rollstream.folds.batches.served import SHAPING
from rollstream.folds.state import SamplerState
from rollstream.runtime.config.sections import SamplerConfig
from rollstream.sampler.decide.batches.held_batches import is_recorded
from rollstream.sampler.decide.batches.next_batch import NextStep
from rollstream.sampler.decide.batches.shaped import NextShapedBatch
from rollstream.sampler.decide.command import Command
from rollstream.sampler.errors import InvalidRequest

READY_PACKS = "ready_packs"
"""In the settings that shape a batch: those of ready packs."""


def check_packs(command: Command[Any], state: SamplerState, config: SamplerConfig) -> None:
    """Raises ``InvalidRequest`` for a new step that would take the place of one of ready packs: it
    would take groups, and nobody would carry the queue on.

    A sampler serves ready packs if its configuration has the section, or if ``ReadyPacks`` shaped
    the step before in the trainer epoch in effect. Where there is a section, ``ReadyPacks`` has
    its ``version_window``: the sampler chooses no groups that the window drops.
    """
    if not isinstance(command, NextStep):
        return
    step = command.step
    if step in state.batches or is_recorded(step, state):
        return
    if isinstance(command, NextShapedBatch) and _of_packs(
        settings := command.request.parsed[SHAPING]
    ):
        _check_window(settings[READY_PACKS]["version_window"], state, config)
        return
    before = state.batches.get(step - 1)
    if config.ready_packs is not None:
        why, remedy = "its configuration has ready_packs", "remove [samplers.NAME.ready_packs]"
    elif (
        before is not None
        and before.event.trainer_epoch == state.trainer_epoch
        and _of_packs(json.loads(before.event.request).get(SHAPING))
    ):
        why = f"ReadyPacks shaped step {step - 1}, and its queue would be lost"
        remedy = f"checkpoint step {step - 1} and resume({step - 1}) first"
    else:
        return
    raise InvalidRequest(
        f"step {step} cannot be taken by this call: sampler {state.name!r} serves ready packs "
        f"({why}). Ask with ReadyPacks.next_step({step}); take groups for another purpose from "
        f"another sampler. To leave ready packs, {remedy}"
    )


def _check_window(window: int, state: SamplerState, config: SamplerConfig) -> None:
    section = config.ready_packs
    if section is not None and section.version_window != window:
        raise InvalidRequest(
            f"version_window of ReadyPacks is {window}, and sampler {state.name!r} has "
            f"{section.version_window}. The sampler would choose groups that ReadyPacks drops. "
            f"Give ReadyPacks the section [samplers.{state.name}.ready_packs] that the sampler has"
        )


def _of_packs(settings: object) -> bool:
    return isinstance(settings, dict) and READY_PACKS in settings
