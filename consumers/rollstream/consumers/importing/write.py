"""Stages groups that a program has in hand, and asks the owners of their partitions to append them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rollstream.runtime.clock import Clock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.schemas.errors import RollstreamError
from rollstream.schemas.records import RolloutGroup
from rollstream.store import Blobs
from rollstream.streams.broker import Broker

TIMEOUT_S = 600.0
Compression = Literal["none", "lz4", "zstd"]


class InvalidGroup(RollstreamError, ValueError):
    """A group cannot be imported; nothing of it was staged."""


class ImportUnfinished(RollstreamError):
    """Owners refused groups, or did not answer in time.

    Attributes:
        report: what was imported until then.
    """

    def __init__(self, message: str, report: ImportReport) -> None:
        super().__init__(message)
        self.report = report


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What became of the groups.

    Attributes:
        imported: groups that samplers are served from now on.
        skipped: groups that were there already, or a rollout of which is in another group.
        details: of each partition that skipped any, why, in words.
    """

    imported: int
    skipped: int
    details: tuple[str, ...] = ()


def write_rollout_groups(
    root: str | Path,
    groups: Iterable[RolloutGroup],
    compression: Compression = "zstd",
    *,
    config: RollstreamConfig | None = None,
    broker: Broker | None = None,
    store: Blobs | None = None,
    clock: Clock | None = None,
    timeout_s: float = TIMEOUT_S,
) -> ImportReport:
    """Makes groups part of the deployment's data, each once by its id: samplers serve them, and the
    audit counts them as ``imported``. You may repeat the call after any failure.

    Sealers must run, since only the owner of a partition appends to its log. A group's id follows
    from its key and its rollouts' uids, whatever ``RolloutGroup.id`` says. A group is skipped if it
    was ever sealed, also if its files are retired by now, or if one of its rollouts is in another
    group or waits for one, as far back as ``dedupe_horizon`` reaches.

    Args:
        root: ``store.root`` of the deployment, ``file:///an/absolute/folder``.
        groups: each names its policy: ``policy_version`` is that of all of its rollouts, or
            ``mixed`` if they share a ``group_uid`` or the environment's ``grouping`` is mixed. They
            are taken one after the other, and only those of one request are kept in memory.
        compression: of the row files: ``none``, ``lz4`` or ``zstd``.
        config: of the deployment.
        broker: instead of the configured one.
        store: instead of what is at ``root``.
        clock: instead of the system's.
        timeout_s: how long the owners may take to answer a request.

    Raises:
        InvalidGroup, InvalidRollout: a group or a rollout breaks a rule. Groups before it may be
            imported.
        UnknownEnvironment: the configuration has no such environment.
        ImportUnfinished: an owner refused, or did not answer in time; its request then stands.
        RootMismatch: the root is not the deployment's.
        BrokerUnavailable: Kafka does not answer.
    """
    raise NotImplementedError
