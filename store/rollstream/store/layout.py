"""Every path below a store's root (docs/architecture.md, "Files"). Pure."""

from __future__ import annotations

from urllib.parse import quote

from rollstream.schemas.ids import PartitionAddress

GROUPS = "groups"
INCOMPLETE = "incomplete"
MANIFESTS = "manifests"
BATCHES = "batches"
ROOT_ID = "root_id.json"


def _value(text: str) -> str:
    """A hive partition value, escaped for paths as Spark and Arrow do."""
    return quote(text, safe=" _-.+@,") or "__HIVE_DEFAULT_PARTITION__"


def rows_path(
    kind: str, environment: str, policy_version: str, segment_idx: int, epoch: int, name: str
) -> str:
    """A Parquet file under ``groups/`` or ``incomplete/``."""
    return (
        f"{kind}/environment={_value(environment)}/policy_version={_value(policy_version)}"
        f"/segment={segment_idx}/{epoch}-{name}.parquet"
    )


def manifest_path(address: PartitionAddress, offset: int) -> str:
    """The manifest of the flush at this offset of the partition's seal log."""
    return f"{manifests_prefix(address)}{offset:020d}.json"


def manifests_prefix(address: PartitionAddress) -> str:
    """What the paths of all manifests of a partition begin with."""
    return (
        f"{MANIFESTS}/environment={_value(address.environment)}/generation={address.generation}"
        f"/partition={address.partition}/"
    )


def batch_path(sampler: str, trainer_epoch: int, step: int) -> str:
    """The JSON file of a batch that a sampler served."""
    return f"{BATCHES}/sampler={_value(sampler)}/trainer_epoch={trainer_epoch}/{step:012d}.json"
