"""Other groups in the places of those whose files are missing or damaged.

One lost file costs its groups. A store that is away for a moment must not: what is dropped is never
served again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from rollstream.folds.group.known import KnownGroup
from rollstream.folds.state import SamplerState
from rollstream.sampler.decide.batches.held_batches import group_of
from rollstream.sampler.decide.batches.next_batch import BatchCommand, Replace
from rollstream.sampler.decide.command import Command, R
from rollstream.sampler.decide.queries.looks import AskRecorded
from rollstream.sampler.errors import GroupsUnreadable
from rollstream.sampler.rows.payloads import Payloads, describe_unreadable
from rollstream.store.blobs import Blobs
from rollstream.store.errors import BlobMissing, StoreAway
from rollstream.store.root_id import read_root_id
from rollstream.streams.topics.root import StoreRoot

REPLACED_MAX = 8  # Groups in one call: where more cannot be read, it is the store that fails.
WITNESSES_MAX = 64  # Other files of an environment that are looked for, before it counts as away.
REASON_CHARS_MAX = 1_000
_log = logging.getLogger("rollstream.sampler")


class Lost(NamedTuple):
    """Groups of a batch that could not be read.

    Attributes:
        groups: by slot of the recorded batch.
        paths: of each of their environments, the files of all groups that are known.
        chosen: slots before this one were chosen, those from it on are carried.
        retired: whether the batch is final and one of their files was retired.
    """

    groups: Mapping[int, KnownGroup]
    paths: Mapping[str, Sequence[str]]
    chosen: int
    retired: bool


def lost_groups(error: GroupsUnreadable, state: SamplerState) -> Lost | None:
    """The groups that the error names; None where the batch has changed since."""
    served = state.batches.get(error.step)
    if served is None or served.digest != error.digest:
        return None
    groups = {slot: group_of(served, slot, state) for slot in sorted(error.groups)}
    environments = {group.key.environment for group in groups.values()}
    retired = served.final and any(state.is_retired(group.ref) for group in groups.values())
    return Lost(
        groups, {one: state.paths(one) for one in environments}, len(served.groups), retired
    )


def repaired(
    command: Command[R],
    error: GroupsUnreadable,
    lost: Lost | None,
    payloads: Payloads,
    store: Blobs,
    root: StoreRoot,
    *,
    stops: bool,
) -> Command[R]:
    """The command that puts others into the places of groups that cannot be read, of at most
    ``REPLACED_MAX`` in one call, and returns what ``command`` was to return; ``command`` itself
    where all can be read by now, or the batch has changed.

    Args:
        root: as the store was. stops: whether nothing is replaced.

    Raises:
        GroupsUnreadable: the error, where nothing is replaced, or a share was handed out.
        StoreAway: the store is what is wrong, or as many were replaced. StoreError: it cannot be
            read.
    """
    if lost is None:
        return command
    asked: Command[Any] = command
    assert isinstance(asked, BatchCommand | AskRecorded), asked
    step = error.step
    if lost.retired:
        raise GroupsUnreadable(
            f"groups {sorted(lost.groups)} of the batch of step {step} cannot be read any more: "
            "their files were retired (`rollstream retain`), since the batch is final; replay_step "
            f"recomputes what was chosen, and after resume({step - 1 if step else None}, "
            "later='release') the step gets other groups",
            step=step,
            digest=error.digest,
            groups=error.groups,
            reasons={slot: f"{one.file.path} was retired" for slot, one in lost.groups.items()},
        )
    _check_store_is_there(step, lost, store, root)
    # Once more, now that the store is there: it may have been away when they were read.
    failed = payloads.failing(step, lost.groups.values(), asked.columns)
    groups = {slot: one for slot, one in lost.groups.items() if one.ref in failed}
    if not groups:
        return command
    # Without the store's remedies: what is replaced is not served when it is restored.
    why = {
        group.file.path: f"{group.file.path} is "
        + ("missing" if isinstance(failed[group.ref], BlobMissing) else "damaged")
        for group in groups.values()
    }
    finding = describe_unreadable(step, groups, why)
    if any(slot >= lost.chosen for slot in groups):
        raise GroupsUnreadable(
            f"{finding}; some of them are carried from the step before, and no others can take "
            "their places: restore the files, then ask for the step again; or, after "
            f"resume({step - 1}, later='release'), the step carries the others",
            step=step,
            digest=error.digest,
            groups=error.groups,
            finding=finding,
            reasons={slot: why[group.file.path] for slot, group in groups.items()},
        )
    may_change = payloads.handed_out.is_undelivered(step, error.digest)
    if not isinstance(asked, BatchCommand) or stops or not may_change:
        raise error
    return cast(Command[R], _replacing(asked, error, sorted(groups), finding))


def _check_store_is_there(step: int, lost: Lost, store: Blobs, root: StoreRoot) -> None:
    """Returns where the groups' files are what is wrong, and not the store: it is the one that it
    was, and of each environment of which a file is missing another one is there."""
    if read_root_id(store).root_id != root.root_id:
        raise StoreAway(
            f"{root.root} is not the folder that it was: root_id.json is missing or another one. "
            "No group is dropped; mount or restore the root, then repeat the call"
        )
    missing = {
        group.file.path: group.key.environment
        for group in lost.groups.values()
        if store.info(group.file.path) is None
    }
    for environment in sorted(set(missing.values())):
        others = [path for path in lost.paths[environment] if path not in missing]
        # Spread over all of them: files of one time may be lost together.
        some = others[:: -(-len(others) // WITNESSES_MAX) or 1]
        if not any(store.info(path) for path in some):
            raise StoreAway(
                f"{min(missing)} is missing below {root.root}, and none of {len(some)} other files "
                f"of environment {environment!r} is there, so the store counts as away. No group "
                "is dropped; mount or restore it, then repeat the call, or, where the files are "
                f"lost for good, replace({step}, {list(lost.groups)}, reason) on one rank"
            )


def _replacing(
    command: BatchCommand, error: GroupsUnreadable, slots: Sequence[int], finding: str
) -> Replace:
    before = 0
    if isinstance(command, Replace) and command.outcome == "unreadable":
        before = command.replaced_before + len(command.slots)
    if before >= REPLACED_MAX:
        raise StoreAway(
            f"{finding}; this call replaced {before} groups before, and replaces no more since the "
            "store may be what fails; see that it is whole, then repeat the call"
        )
    places = tuple(slots[: REPLACED_MAX - before])
    _log.error("%s; others are looked for, to be served in the places %s", finding, [*places])
    return Replace(
        step=error.step,
        digest=error.digest,
        slots=places,
        reason=finding[:REASON_CHARS_MAX],
        outcome="unreadable",
        replaced_before=before,
        trainer_epoch=command.trainer_epoch,
        dp_rank=command.dp_rank,
        dp_size=command.dp_size,
        columns=command.columns,
        payloads=command.payloads,
    )
