"""Other groups in the places of those whose files are missing or damaged."""

from __future__ import annotations

import logging
from typing import cast

from rollstream.sampler.deciding.batches import BatchCommand, Replace
from rollstream.sampler.deciding.command import Command, R
from rollstream.sampler.errors import GroupsUnreadable, SamplerError
from rollstream.store.blobs import Blobs
from rollstream.store.root_id import read_root_id

REASON_CHARS_MAX = 1_000
_log = logging.getLogger("rollstream.sampler")


def repaired(
    command: Command[R], error: GroupsUnreadable, store: Blobs, root_id: str
) -> Command[R]:
    """The command that puts others into the places of groups that cannot be read, and returns what
    ``command`` was to return.

    Args:
        root_id: that the store had; where it is another one, files are missing since the store is.

    Raises:
        SamplerError: the store is away, so that nothing is replaced. StoreError: it cannot be read.
    """
    assert isinstance(command, BatchCommand), command
    if read_root_id(store) != root_id:
        raise SamplerError(
            f"{error}; but store.root is not the folder that it was, so nothing is replaced: mount "
            "it again, then repeat the call"
        ) from error
    _log.error("%s; others are served in their places", error)
    repair = Replace(
        step=error.step,
        digest=error.digest,
        slots=tuple(sorted(error.groups)),
        reason=str(error)[:REASON_CHARS_MAX],
        outcome="unreadable",
        trainer_epoch=command.trainer_epoch,
        dp_rank=command.dp_rank,
        dp_size=command.dp_size,
        columns=command.columns,
    )
    return cast(Command[R], repair)
