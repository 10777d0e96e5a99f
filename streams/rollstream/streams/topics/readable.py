"""Finds seal logs that cannot be read on."""

from __future__ import annotations

from collections.abc import Mapping

from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.errors import UnreadableLog
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.adoption import find_starts
from rollstream.streams.owned.follow import fold_logs
from rollstream.streams.topics.check import Difference
from rollstream.streams.topics.layout import Layout

WHAT = "records"  # `Difference.what` of a log that cannot be read.


def unreadable_logs(
    broker: Broker, layout: Layout, partitions: Mapping[str, int], deadline: Deadline
) -> list[Difference]:
    """Returns the seal logs that sealers put aside, each with its record and the reason. The logs
    must exist. Reads what a sealer reads to adopt each of them.

    Args:
        partitions: how many each environment has.

    Raises:
        BrokerUnavailable: not read in time.
    """
    remedy = "until then nothing is sealed there, and all other partitions go on"
    logs = sorted(map(layout.groups_log, layout.addresses(partitions)))
    return [
        Difference(str(where), WHAT, "", str(error), remedy)
        for where in logs
        if (error := why_unreadable(broker, where, deadline)) is not None
    ]


def why_unreadable(
    broker: Broker, where: TopicPartition, deadline: Deadline
) -> UnreadableLog | None:
    """Why a seal log cannot be read on; None: it can. Reads what a sealer reads to adopt it.

    Raises:
        BrokerUnavailable: not read in time.
    """
    fold, starts = SealFold(dedupe_horizon=0), find_starts(broker, {where: None}, deadline)
    aside = fold_logs(broker, starts, lambda one: fold.apply(*one[1:]), deadline).aside
    return aside[where].error if where in aside else None
