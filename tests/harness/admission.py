"""Records of ``admission.<env>``, as short as a test can say them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any, cast

import numpy as np

from harness.brokers import TIMEOUT_S
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.codec import decode, encode
from rollstream.schemas.events import (
    AdmissionEvent,
    PolicyAnnounced,
    ProducerShare,
    SharesGranted,
    SharesValid,
    share_key,
)
from rollstream.streams.broker import EARLIEST, Broker, TopicPartition
from rollstream.streams.reading import read_between

_KINDS: Mapping[type[Any], str] = {
    PolicyAnnounced: "policy",
    SharesGranted: "shares",
    SharesValid: "validity",
}


def announced(step: int = 1, **overrides: Any) -> PolicyAnnounced:
    """A policy; each step is a decision of its own."""
    branches = overrides.pop("branches", {})
    fields: dict[str, Any] = {
        "sampler": "a",
        "offset": step,
        "lineage": "",
        "policy_epoch": 0,
        "step": step,
        "policy_version": f"step-{step}",
        "weights": f"/weights/{step}",
        "metadata": "{}",
        "max_policy_lag": -1,
        "branch_epochs": np.array([*branches], np.int32),
        "branch_steps": np.array([*branches.values()], np.int64),
    }
    return PolicyAnnounced(**{**fields, **overrides})


SHARES = {
    "sampler": "a",
    "lineage": "",
    "epoch": 0,
    "valid_s": 30.0,
    "idle_s": 600.0,
    "idle_groups": 1,
}


def granted(
    number: int = 1,
    totals: Mapping[str, int] | None = None,
    needed: Mapping[str, int] | None = None,
    **overrides: Any,
) -> SharesGranted:
    """Shares of these producers; where any is needed, of the same ones."""
    totals, needed = totals or {}, needed or {}
    assert not needed or [*needed] == [*totals]
    fields: dict[str, Any] = {
        **SHARES,
        "number": number,
        "capacity": sum(totals.values()),
        "producer_ids": tuple(totals),
        "totals": np.array([*totals.values()], np.int64),
        "needed": np.array([*needed.values()], np.int64),
    }
    return SharesGranted(**{**fields, **overrides})


def valid(number: int = 1, **overrides: Any) -> SharesValid:
    """For how long the shares of ``share`` are valid."""
    fields: dict[str, Any] = {
        **SHARES,
        "number": number,
        "capacity": 0,
        "limit": "",
        "most": 0,
    }
    return SharesValid(**{**fields, **overrides})


def share(number: int = 1, total: int = 0, needed: int = 0, epoch: int = 0) -> ProducerShare:
    """Of one producer."""
    return ProducerShare(epoch=epoch, number=number, total=total, needed=needed)


def announce(
    broker: Broker,
    topic: str,
    *events: PolicyAnnounced | SharesGranted | SharesValid,
    partition: int = 0,
    shares: Mapping[str, ProducerShare | None] | None = None,
) -> None:
    """Writes them, and the shares of sampler ``a`` by producer, None being a tombstone; returns
    once they are in the log."""
    writer = broker.writer(linger_ms=0.0)
    for event in events:
        key = f"{_KINDS[type(event)]}/{event.sampler}".encode()
        writer.append(topic, encode(event), key=key, partition=partition)
    for producer_id, one in (shares or {}).items():
        value = None if one is None else encode(one)
        writer.append(topic, value, key=share_key("a", producer_id), partition=partition)
    assert writer.flush(TIMEOUT_S) == 0
    writer.abandon()


def told(broker: Broker, topic: str, partition: int = 0) -> list[AdmissionEvent]:
    """All that stands in the partition, in order, but for tombstones."""
    where = TopicPartition(topic, partition)
    with closing(broker.reader({where: EARLIEST})) as reader:
        end = reader.bounds(where, TIMEOUT_S)[1]
        records = read_between(reader, where, 0, end, Deadline(TIMEOUT_S))
        events = [decode(record.value) for record in records if record.value]
    assert all(isinstance(event, AdmissionEvent) for event in events)
    return cast(list[AdmissionEvent], events)
