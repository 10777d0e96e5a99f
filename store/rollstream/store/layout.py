"""Every path below a store's root (docs/architecture.md, "Files"). Pure."""

from __future__ import annotations

from urllib.parse import quote

GROUPS = "groups"
INCOMPLETE = "incomplete"
MANIFESTS = "manifests"
BATCHES = "batches"


def _value(text: str) -> str:
    """A hive partition value that is safe in a path, as Spark and Arrow escape it."""
    return quote(text, safe=" _-.+@,") or "__HIVE_DEFAULT_PARTITION__"


def rows_path(
    kind: str, environment: str, policy_version: str, segment_idx: int, epoch: int, name: str
) -> str:
    """A Parquet file under ``groups/`` or ``incomplete/``."""
    return (
        f"{kind}/environment={_value(environment)}/policy_version={_value(policy_version)}"
        f"/segment={segment_idx}/{epoch}-{name}.parquet"
    )


def manifest_path(environment: str, generation: int, partition: int, offset: int) -> str:
    """The manifest of the flush at this offset of the seal log."""
    return f"{manifests_prefix(environment, generation, partition)}{offset:020d}.json"


def manifests_prefix(environment: str, generation: int, partition: int) -> str:
    return (
        f"{MANIFESTS}/environment={_value(environment)}/generation={generation}"
        f"/partition={partition}/"
    )


def batch_path(sampler: str, trainer_epoch: int, step: int) -> str:
    """A decision of a sampler, projected."""
    return f"{BATCHES}/sampler={_value(sampler)}/trainer_epoch={trainer_epoch}/{step:012d}.json"
