"""One model a section of ``rollstream.toml``. A section is the policy: the assembler takes its
``EnvironmentConfig``, the decider its ``SamplerConfig``. Unknown keys are refused, and so are
settings that could never make progress."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Recency = Literal["uniform", "linear", "exp"]
_FILE_BYTES_MAX = 1 << 30  # A column of a file is one page, and sizes of pages are int32.


class Section(BaseModel):
    """Frozen; unknown keys are refused; each field is explained by the string below it."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, strict=False
    )


class KafkaConfig(Section):
    """Where the logs live."""

    bootstrap: str = Field(min_length=1)
    """host:port, several with commas."""
    namespace: str = "rollstream"
    """First part of every topic's name."""
    generation: int = Field(default=1, ge=1)
    """Last part of every topic's name; a new one is a new layout."""
    retention_hours: float = Field(default=168.0, gt=0)
    """How long rollouts stay in the ingest log."""
    timeout_s: float = Field(default=30.0, gt=0)
    """How long any one request to the broker may take."""
    client: dict[str, str] = Field(default_factory=dict)
    """Any librdkafka property."""


class StoreConfig(Section):
    """Where the files live."""

    root: str = Field(min_length=1)
    """file:///… today."""


class EnvironmentConfig(Section):
    """How rollouts of one environment become groups."""

    partitions: int = Field(default=4, ge=1, le=1024)
    """Of its topics; fixed for a generation."""
    grouping: Literal["strict", "mixed"] = "strict"
    """For rollouts without group_uid: does the policy version belong to the group's key?"""
    target_group_size: int = Field(default=8, ge=1)
    """SealedSegments at which a group is sealed, where the producer names no group_size."""
    min_group_size: int = Field(default=2, ge=1)
    """With fewer members a group is not sealed by time-out."""
    seal_timeout_s: float = Field(default=300.0, gt=0)
    """Log time after a group's first member at which it is sealed with what it has, if enough."""
    expire_after_s: float = Field(default=1800.0, gt=0)
    """Log time after a group's first member at which one that is still too small expires; after a
    trajectory's first segment, one that is not whole."""
    max_per_replica: int | None = Field(default=None, ge=1)
    """Most members that one env replica may have in one group; none: no limit."""
    accept_policy_versions: tuple[str, ...] | None = None
    """Only these are admitted; none: all."""
    max_pending_rollouts: int = Field(default=65_536, ge=64)
    """Unsealed rollouts a partition; beyond it the oldest groups expire."""
    max_pending_bytes: int = Field(default=256 * 1024 * 1024, ge=1024 * 1024, le=_FILE_BYTES_MAX)
    """Unsealed payload bytes a partition; beyond it the oldest groups expire."""
    dedupe_horizon: int = Field(default=262_144, ge=1)
    """A uid is remembered until this many further records of its partition are settled."""
    flush_interval_s: float = Field(default=0.15, ge=0)
    """Flushes of a partition begin at least this long after one another, unless one is full: a
    complete group waits about as long for its flush."""
    max_flush_rollouts: int = Field(default=4_096, ge=1, le=65_536)
    """Rollouts in one flush, so that its event fits a message."""
    max_flush_bytes: int = Field(default=64 * 1024 * 1024, ge=1024 * 1024, le=_FILE_BYTES_MAX)
    """Payload bytes in one flush."""
    compression: Literal["none", "lz4", "zstd"] = "none"
    """Of Parquet files."""

    @model_validator(mode="after")
    def _can_progress(self) -> Self:
        if self.min_group_size > self.target_group_size:
            raise ValueError(
                f"min_group_size {self.min_group_size} is above target_group_size "
                f"{self.target_group_size}: no time-out could ever seal a group; lower it"
            )
        if self.expire_after_s < self.seal_timeout_s:
            raise ValueError(
                f"expire_after_s {self.expire_after_s} is below seal_timeout_s "
                f"{self.seal_timeout_s}: groups would expire before they could be sealed; raise it"
            )
        return self


class SamplerConfig(Section):
    """What one sampler serves, and in which order."""

    environments: tuple[str, ...] = Field(min_length=1)
    """The environments that it draws from."""
    lineage: str = ""
    """Of the policies that its trainer publishes; lag is measured within a lineage only."""
    seed: int = 0
    """Of every random choice."""
    recency: Recency = "uniform"
    """How much newer policies are preferred among the groups that are ready."""
    max_policy_lag: int | None = Field(default=None, ge=0)
    """Groups sampled by weights older than this many steps are dropped as stale; none: no limit."""
    capacity_groups: int = Field(default=65_536, ge=1)
    """Ready groups kept; beyond it the oldest are dropped, never one of an open batch."""
    max_open_batches: int = Field(default=64, ge=1)
    """Served batches that are not final; at the bound next_batch refuses until checkpointed."""
    cache_bytes: int = Field(default=256 * 1024 * 1024, ge=0)
    """Payloads kept in memory."""
    timeout_s: float = Field(default=300.0, gt=0)
    """How long next_batch waits unless it is told otherwise."""


class RollstreamConfig(Section):
    """The whole file."""

    kafka: KafkaConfig
    store: StoreConfig
    environments: dict[str, EnvironmentConfig] = Field(min_length=1)
    samplers: dict[str, SamplerConfig] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_agree(self) -> Self:
        for name, sampler in self.samplers.items():
            for environment in sampler.environments:
                if environment not in self.environments:
                    raise ValueError(
                        f"samplers.{name}.environments names {environment!r}, but there is no "
                        f"[environments.{environment}]; add the section or correct the name"
                    )
        return self
