"""Records of ``admission.<env>``, as short as a test can say them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any, cast

import numpy as np

from harness.brokers import TIMEOUT_S
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.codec import decode, encode
from rollstream.schemas.events import PolicyAnnounced, SharesGranted
from rollstream.streams.broker import EARLIEST, Broker, TopicPartition
from rollstream.streams.reading import read_between


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
        "sampler": "a",
        "lineage": "",
        "epoch": 0,
        "number": number,
        "valid_s": 30.0,
        "idle_s": 600.0,
        "idle_groups": 1,
        "capacity": sum(totals.values()),
        "producer_ids": tuple(totals),
        "totals": np.array([*totals.values()], np.int64),
        "needed": np.array([*needed.values()], np.int64),
    }
    return SharesGranted(**{**fields, **overrides})


def announce(broker: Broker, topic: str, *events: PolicyAnnounced | SharesGranted) -> None:
    """Writes them, and returns once they are in the log."""
    writer = broker.writer(linger_ms=0.0)
    for event in events:
        kind = "policy" if isinstance(event, PolicyAnnounced) else "shares"
        key = f"{kind}/{event.sampler}".encode()
        writer.append(topic, encode(event), key=key, partition=0)
    assert writer.flush(TIMEOUT_S) == 0
    writer.abandon()


def told(broker: Broker, topic: str) -> list[PolicyAnnounced | SharesGranted]:
    """All that stands in the log, in order."""
    where = TopicPartition(topic, 0)
    with closing(broker.reader({where: EARLIEST})) as reader:
        end = reader.bounds(where, TIMEOUT_S)[1]
        records = read_between(reader, where, 0, end, Deadline(TIMEOUT_S))
        events = [decode(record.value) for record in records]
    assert all(isinstance(event, PolicyAnnounced | SharesGranted) for event in events)
    return cast(list[PolicyAnnounced | SharesGranted], events)
