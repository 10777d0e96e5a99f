"""The fields of a rollout of an old batch, as JSON or Parquet has them. Pure.

Its values follow the rules of every import: they are written as an entry and read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rollstream.consumers.importing.entries import entry_of, number
from rollstream.schemas import rules
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.fields import array_fields
from rollstream.schemas.ingest.encode import encode_entries
from rollstream.schemas.ingest.record import decode_record
from rollstream.schemas.records import RolloutRecord

METADATA = ("worker_id", "timestamp", "weight_step")
_REQUIRED = ("environment", "example_id", "policy_version", "output_tokens")
FIELDS = (
    *_REQUIRED,
    *("rollout_uid", "group_uid", "group_size", "replica_id", "lineage", "policy_epoch"),
    *("prompt_tokens", "logprobs", "logprob_sum", "old_logprobs", "old_policy_version"),
    *("ref_logprobs", "token_rewards", "loss_mask", "reward", "rewards", "split", "stop_reason"),
)


def old_record(given: dict[str, Any], shared: Mapping[str, Any]) -> RolloutRecord:
    """Returns the rollout of these fields, with what its metadata lacks from the batch's.

    Raises:
        InvalidRollout: names field, value and remedy.
    """
    metadata = {**shared, **known("metadata", given.pop("metadata", {}))}
    check_names(given, FIELDS)
    for name in (name for name in _REQUIRED if name not in given):
        raise InvalidRollout(name, None, "give it", "is missing")
    for name in (name for name in METADATA if name not in metadata):
        remedy = "give it in the metadata of the batch or of the rollout"
        raise InvalidRollout(f"metadata.{name}", None, remedy, "is missing")
    worker_id = metadata.pop("worker_id")
    for name, value in (("metadata.worker_id", worker_id), ("environment", given["environment"])):
        if not isinstance(value, str):
            raise InvalidRollout(name, value, "give a string")
    timestamp = number("metadata.timestamp", metadata.pop("timestamp"))
    if not 0 <= timestamp * 1e6 <= rules.CREATED_TS_MAX:
        raise InvalidRollout("metadata.timestamp", timestamp, "give seconds since 1970, UTC")
    given.setdefault("replica_id", worker_id or "unknown")
    record = RolloutRecord(
        **{**given, "rewards": known("rewards", given.get("rewards", {}))},
        worker_id=worker_id,
        created_ts=round(timestamp * 1e6),
        weight_step=metadata.pop("weight_step"),
        metadata=metadata,
    )
    _check(record)
    arrays: dict[str, Any] = {
        name: np.asarray(one, array_fields()[name])
        for name, one in given.items()
        if isinstance(one, list)
    }
    return replace(
        record,
        prompt_count=len(record.prompt_tokens),
        token_count=len(record.output_tokens),
        **arrays,
    )


def known(name: str, value: Any) -> dict[str, Any]:
    """A copy of the object without what is null."""
    if not isinstance(value, dict):
        raise InvalidRollout(name, value, "give an object")
    return {key: one for key, one in value.items() if one is not None}


def check_names(given: Iterable[str], names: Iterable[str]) -> None:
    """The object has fields of these names alone."""
    for name in {*given} - {*names}:
        remedy = f"leave it out, or put it into metadata; the fields are: {', '.join(names)}"
        raise InvalidRollout(name, name, remedy, "is not a field here")


def _check(record: RolloutRecord) -> None:
    """Raises ``InvalidRollout`` if a value breaks a rule of its field."""
    written = encode_entries(
        [entry_of(record)],
        environment=record.environment,
        worker_id=record.worker_id,
        partitions=1,
    )
    for broken in decode_record(written).broken.values():
        raise broken
