"""The sections of ``rollstream.toml``, a frozen model for each.

Unknown keys are refused. So are settings with which nothing could make progress.
"""

from __future__ import annotations

from math import ceil, floor
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    FiniteFloat,
    field_validator,
    model_validator,
)

from rollstream.runtime.addresses import check_bootstrap
from rollstream.runtime.client_properties import contradictions
from rollstream.runtime.config.gateway import GatewayConfig
from rollstream.runtime.config.metrics import MetricsConfig
from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.runtime.config.section import Section
from rollstream.runtime.config.store import StoreConfig

PolicyVersion = Annotated[str, Field(min_length=1)]
# Two of the largest records of a topic (streams' RECORD_BYTES_MAX), since each is held whole.
_PENDING_BYTES_MIN = 32 * 1024 * 1024
_FILE_BYTES_MAX = 1 << 30  # A column of a file is one page, and a page's size is an int32.


class KafkaConfig(Section):
    """Says where Kafka is, and how topics are named."""

    bootstrap: str = Field(min_length=1)
    """Addresses of brokers as `host:port`, separated by commas."""
    namespace: str = "rollstream"
    """First part of every topic's name. Each experiment has its own."""
    generation: int = Field(default=1, ge=1)
    """Last part of every topic's name. Take the next one if partitions change."""
    retention_hours: float = Field(default=168.0, gt=0)
    """Hours for which Kafka keeps published rollouts."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Seconds that each request to the broker may take."""
    client: dict[str, str] = Field(default_factory=dict, repr=False)
    """Properties of librdkafka, such as those of TLS and SASL. Properties that would break a
    promise are refused. `repr` hides all of them, since passwords are among them."""

    @field_validator("bootstrap")
    @classmethod
    def _names_brokers(cls, bootstrap: str) -> str:
        check_bootstrap(bootstrap)
        return bootstrap

    @field_validator("client")
    @classmethod
    def _contradicts_nothing(cls, client: dict[str, str]) -> dict[str, str]:
        if wrong := contradictions(client):
            raise ValueError("; ".join(wrong))
        return client


class SealersConfig(Section):
    """Bounds each sealer."""

    memory_bytes: int = Field(default=1024 * 1024 * 1024, ge=0)
    """Most bytes of records in memory, and of their objects, of all partitions. Above it payloads
    go to files in `TMPDIR`, and partitions that were taken over are read one by one."""


class EnvironmentConfig(Section):
    """Says how rollouts of one environment become groups."""

    partitions: int = Field(default=4, ge=1, le=1024)
    """Partitions of its topics. Fixed for a generation."""
    grouping: Literal["strict", "mixed"] = "strict"
    """Which rollouts without a `group_uid` share a group: `strict`: those of one example and policy
    version; `mixed`: those of one example."""
    target_group_size: int = Field(default=8, ge=1)
    """Members with which a group is sealed, if the producer names no `group_size`."""
    min_group_size: int = Field(default=2, ge=1)
    """Fewest members with which a group is sealed after `seal_timeout_s`. A group is full
    when its members came or failed. It is then sealed with those that came, however few."""
    seal_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds of log time from its first member until a group with `min_group_size` members is
    sealed."""
    expire_after_s: float = Field(default=1800.0, gt=0)
    """Seconds of log time until a group that is too small expires, from its first member, or an
    unfinished trajectory, from its first segment. Not below `seal_timeout_s`."""
    prompt_idle_s: float = Field(default=30.0, gt=0)
    """Seconds of log time without a new trajectory until a prompt without `n_rollouts` is sealed.
    All its trajectories must have ended. If `seal_timeout_s` is shorter, it holds instead."""
    partial_trajectories: Literal["drop", "train"] = "drop"
    """What becomes of a trajectory without an end when its group is sealed at `seal_timeout_s`, or
    would expire. `drop`: it expires. `train`: it is a member, if no segment is missing and the
    newest one has a reward. Later segments expire. A group that is full is sealed without such
    trajectories, and they may still end until they expire."""
    fresh_for: str = ""
    """A sampler, by whose limits old groups are settled as `stale`, `too_old` or `off_branch`
    before they are stored. No sampler gets them. Empty: all groups are stored, and each sampler
    drops its own."""
    max_per_replica: int | None = Field(default=None, ge=1)
    """Most members of a group from one env replica. None: no limit."""
    accept_policy_versions: tuple[PolicyVersion, ...] | None = Field(default=None, min_length=1)
    """Policy versions that are admitted. None: all."""
    max_pending_rollouts: int = Field(default=65_536, ge=64)
    """Most unsealed entries of a partition. Above it the oldest groups expire."""
    max_pending_bytes: int = Field(
        default=256 * 1024 * 1024, ge=_PENDING_BYTES_MIN, le=_FILE_BYTES_MAX
    )
    """Most bytes of unsealed records of a partition, at least 32 MiB. Above it the oldest groups
    expire."""
    dedupe_horizon: int = Field(default=262_144, ge=1)
    """How many later entries of its partition a uid is remembered for. A retry within them counts
    once."""
    flush_interval_s: float = Field(default=2.0, ge=0)
    """Longest wait of a complete group for its flush. A flush starts earlier with 1,024 segments or
    8 MiB, and after 0.15 s with 128 segments."""
    max_flush_rollouts: int = Field(default=4_096, ge=1, le=65_536)
    """Most entries in one flush."""
    max_flush_bytes: int = Field(default=64 * 1024 * 1024, ge=1024 * 1024, le=_FILE_BYTES_MAX)
    """Most bytes of payload in one flush."""
    max_unreadable_share: float = Field(default=0.1, ge=0, le=1)
    """Share of a minute's entries that may be unreadable. Above it `rollstream status` calls the
    sealers stuck."""
    compression: Literal["none", "lz4", "zstd"] = "none"
    """Codec of the Parquet files."""
    tokenizer: str | None = None
    """Tokenizer of its models, for `rollstream show`. None: the top-level one."""
    retain_after_hours: float | None = Field(default=None, allow_inf_nan=False)
    """Hours of log time, above 0, after which files are deleted, if every sampler is done with
    their groups. None: no limit. Without one of these limits only `rollstream retain` deletes."""
    retain_groups: int | None = Field(default=None, ge=1)
    """Groups that are kept at most, those of split `eval` too. Above it the oldest files whose
    groups every sampler is done with are deleted. Each partition keeps an equal share, rounded up.
    None: no limit."""
    retain_groups_per_policy: int | None = Field(default=None, ge=1)
    """The same for the groups of each policy version."""

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
        if self.retain_after_hours is not None and self.retain_after_hours <= 0:
            raise ValueError(
                f"retain_after_hours {self.retain_after_hours:g} would delete files as soon as "
                "their groups were trained on; use hours above 0, or leave it out so that files "
                "are deleted only when `rollstream retain` asks"
            )
        return self


class SamplerConfig(Section):
    """Says which groups one sampler serves, and in which order."""

    environments: tuple[str, ...] = Field(min_length=1)
    """Environments whose groups it serves."""
    lineage: str = ""
    """Name of the model that its trainer trains. Policies are compared only within one lineage."""
    seed: int = 0
    """Seed of the draws by `recency` and `reward_weighting`."""
    order: Literal["age", "ready"] = "age"
    """`age`: examples take turns, and those that waited longest come first. `ready`: groups are
    served in the order in which they were sealed."""
    recency: Literal["uniform", "linear", "exp"] = "uniform"
    """`uniform`: examples take turns, with the oldest group of each. `linear`, `exp`: groups are
    drawn one by one among all examples. A group's weight follows the rank of its oldest policy:
    `linear` is the rank, `exp` doubles the weight from rank to rank."""
    alpha: float = Field(default=1.0, gt=0, le=32)
    """Power of the weights of `recency`. Above 1, newer policies are preferred more."""
    on_policy_fraction: float = Field(default=0.0, ge=0, le=1)
    """Least share of a batch from the newest policy, rounded up: with 0.3, 20 of 64 groups. With
    `mix` it holds for the part of each environment."""
    prefer_policy_versions: tuple[PolicyVersion, ...] = ()
    """Published versions whose groups come first. Others follow if these are too few."""
    recent_n_versions: int | None = Field(default=None, ge=1)
    """Groups older than the last so many published versions are dropped as `stale`. Before the
    first version, each step counts as one. None: no limit."""
    max_policy_lag: int = 8
    """Groups of weights older than so many steps are dropped as `stale`. Without a known
    `weight_step` they are dropped as `no_weight_step`, and of weights that the trainer cannot have
    made yet as `ahead`. Negative: no limit, so groups of any age, of unknown weights and of other
    lineages are served."""
    max_rollout_step_delay: int = -1
    """Single rollouts of weights older than so many steps are left out. A group below
    `min_group_size` is then dropped. The narrower of this and `max_policy_lag` holds. Negative: no
    limit."""
    max_rollout_timestamp_delay: float = Field(default=-1.0, allow_inf_nan=False)
    """Single rollouts that were made more than so many seconds ago, by the clock of their worker,
    are left out likewise. Negative: no limit."""
    max_samples: int = 1
    """How often one group is served, each time in another batch. It is ready again once its batch
    is acked. `resume` with `release` gives a use back. A lower value ends groups that were used as
    often. Negative: no limit, and every file is kept."""
    capacity_groups: int = Field(default=65_536, ge=1)
    """Most ready groups. Above it groups that wait for something are dropped first, then the
    oldest. Open batches keep theirs."""
    capacity: int | None = Field(default=None, ge=1)
    """Most ready groups of an environment. Above it the oldest are dropped. Several environments
    share its multiple by their part of the last 8 batches. None: only `capacity_groups` bounds."""
    admission: bool = True
    """Whether `dispatch` in workers waits while the trainer has enough groups, ready or begun."""
    target_policy_lag: int = Field(default=2, ge=0)
    """Steps that workers may be ahead of the trainer: groups of so many steps and one more may be
    ready or begun. The smaller of this and `max_policy_lag` counts."""
    groups_per_step: int | None = Field(default=None, ge=1)
    """Groups a step, for admission. None: the most of the last 8 batches and of waiting requests,
    and 64 before the first. Several environments without `mix` divide one half of a step evenly,
    the other as in the last 8 batches."""
    admission_idle_s: float = Field(default=600.0, gt=0)
    """Seconds without a new policy after which admission ends. Then each producer may begin one
    share of groups in every such time."""
    samples_per_insert: FiniteFloat | None = Field(default=None, ge=1)
    """How often a group that becomes ready is used on average, within a trainer epoch. Needs
    `error_buffer`. None: no limit."""
    error_buffer: tuple[FiniteFloat, FiniteFloat] | None = None
    """Least and most of `samples_per_insert` × groups that became ready − uses. Below the first
    `next_batch` waits, above the second workers wait. It is at least as wide as a batch and one
    insert. Groups that are `stale`, `too_old`, dropped by `capacity` or by the trainer count as
    inserts; `filtered` and `off_branch` groups do not. A replayed batch is no use."""
    max_open_batches: int = Field(default=64, ge=1)
    """Most served batches that are not final. Above it `next_batch` raises until `checkpointed`."""
    off_branch: Literal["drop", "keep"] = "drop"
    """What becomes of groups of weights that a resume gave up. `keep` serves them, marked in the
    batch."""
    scorer: str = ""
    """Whose late scores replace rewards. Empty: the newest score of anybody, but only for rollouts
    that were published without a reward."""
    score_version: int | None = Field(default=None, ge=1)
    """The only version of the scorer's scores that counts, from 1. None: the newest at each batch.
    """
    score_timeout_s: float = Field(default=1800.0, gt=0)
    """Seconds after its seal after which a group without all its rewards is dropped as `unscored`.
    """
    min_mean_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Groups with a lower mean reward are dropped as `filtered`: too hard. None: no limit."""
    max_mean_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Groups with a higher mean reward are dropped as `filtered`: too easy. None: no limit."""
    exclude_flags: tuple[str, ...] = ()
    """Groups with one of these flags in the score of a rollout are dropped as `filtered`."""
    require_flags: tuple[str, ...] = ()
    """Groups with a rollout whose score lacks one of these flags, or that has no score, are dropped
    as `filtered`. They wait for a score only if a rollout has no reward."""
    reward_weighting: Literal["uniform", "spread"] = "uniform"
    """`uniform`: the groups that waited longest. `spread`: draws among four times as many, by the
    standard deviation of a group's rewards."""
    ack_timeout_s: float = Field(default=1800.0, gt=0)
    """Seconds after which an unacked batch is reported. Nobody else gets it."""
    cache_bytes: int = Field(default=256 * 1024 * 1024, ge=0)
    """Bytes of payloads that are cached in memory."""
    on_unreadable: Literal["replace", "stop"] = "replace"
    """If a group of a new batch has a missing or damaged file: `replace` serves another one and
    counts it, `stop` raises an error (for network mounts)."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Seconds that `next_batch` waits if the call names no time."""
    ready_packs: ReadyPacksConfig | None = None
    """Settings of `ReadyPacks`. None: it is not used."""

    @model_validator(mode="after")
    def _can_progress(self) -> Self:
        if self.max_samples == 0:
            raise ValueError(
                "max_samples 0 would never serve a group; use 1 or more, or a negative number for "
                "no limit"
            )
        if self.max_rollout_timestamp_delay == 0:
            raise ValueError(
                "max_rollout_timestamp_delay 0 would leave every rollout out, since each is older; "
                "use seconds above 0, or a negative number for no limit"
            )
        self._order_is_one()
        self._admission_can_progress()
        self._rewards_can_progress()
        self._ratio_can_progress()
        if self.alpha != 1 and self.recency == "uniform":
            raise ValueError(
                f"alpha {self.alpha:g} has no effect with recency 'uniform'; set recency to "
                "'linear' or 'exp', or leave alpha out"
            )
        if self.prefer_policy_versions and self.recent_n_versions is not None:
            raise ValueError(
                "prefer_policy_versions names versions that recent_n_versions leaves out as soon "
                "as newer ones are ready; set one of them"
            )
        if self.score_version is not None and not self.scorer:
            raise ValueError(
                f"score_version {self.score_version} counts within one scorer; name it as scorer, "
                "or leave score_version out"
            )
        if self.prefer_policy_versions and self.on_policy_fraction == 1:
            raise ValueError(
                "on_policy_fraction 1 leaves no group that prefer_policy_versions could choose; "
                "lower it, or leave prefer_policy_versions out"
            )
        return self

    def _order_is_one(self) -> None:
        others = ("recency", "on_policy_fraction", "prefer_policy_versions", "reward_weighting")
        for name in others if self.order == "ready" else ():
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} {value!r} chooses in another order than order 'ready', by which what "
                    f"was sealed first comes first; leave out {name}, or order"
                )

    def _admission_can_progress(self) -> None:
        given = self.model_fields_set
        lag = self.max_policy_lag
        if "target_policy_lag" in given and 0 <= lag < self.target_policy_lag:
            raise ValueError(
                f"target_policy_lag {self.target_policy_lag} is above max_policy_lag {lag}: what "
                "it lets workers generate ahead would be dropped as stale; lower it, or raise "
                "max_policy_lag"
            )
        most = self._ready_most()
        if self.groups_per_step is not None and self.groups_per_step > most:
            raise ValueError(
                f"groups_per_step {self.groups_per_step} is above the {most} groups that may be "
                "ready (capacity_groups and capacity): no step could ever have so many; lower it, "
                "or raise these"
            )
        drawn = {name: getattr(self, name) for name in ("recency", "reward_weighting")}
        draws = [f"{name} {value!r}" for name, value in drawn.items() if value != "uniform"]
        if (
            self.admission
            and draws
            and self.capacity is None
            and max(lag, self.max_rollout_step_delay) < 0
        ):
            raise ValueError(
                f"{draws[0]} without a bound on lag leaves old groups unserved for "
                "ever, and by admission what is ready keeps others from being begun; set capacity, "
                "above which the oldest are dropped (capacity = 192), or max_policy_lag"
            )
        for name in sorted({"target_policy_lag", "groups_per_step", "admission_idle_s"} & given):
            if not self.admission:
                raise ValueError(
                    f"{name} {getattr(self, name):g} has no effect with admission false; set "
                    f"admission to true, or leave {name} out"
                )

    def _rewards_can_progress(self) -> None:
        low, high = self.min_mean_reward, self.max_mean_reward
        if low is not None and high is not None and low > high:
            raise ValueError(
                f"min_mean_reward {low:g} is above max_mean_reward {high:g}: every group would be "
                "dropped; lower it, or raise the other"
            )
        both = sorted({*self.exclude_flags} & {*self.require_flags})
        if both:
            raise ValueError(
                f"exclude_flags and require_flags both name {both[0]!r}: every group would be "
                "dropped; leave it out of one"
            )
        if self.reward_weighting != "uniform" and self.recency != "uniform":
            raise ValueError(
                f"reward_weighting {self.reward_weighting!r} weighs an example's oldest group, and "
                f"recency {self.recency!r} draws any; set one of them"
            )

    def _ready_most(self) -> int:
        """The most groups that may be ready."""
        if self.capacity is None:
            return self.capacity_groups
        return min(self.capacity_groups, self.capacity * len(self.environments))

    def _ratio_can_progress(self) -> None:
        spi, buffer = self.samples_per_insert, self.error_buffer
        if spi is None or buffer is None:
            if (spi, buffer) != (None, None):
                raise ValueError(
                    f"samples_per_insert {spi} and error_buffer {buffer} need one another: write "
                    "samples_per_insert = 2 and error_buffer = [0, 512], or leave both out"
                )
            return
        least, most = buffer
        shown = f"error_buffer [{least:g}, {most:g}]"
        if least >= most:
            raise ValueError(
                f"{shown} does not end above where it begins: its first number has to be below its "
                "second; for example error_buffer = [0, 512]"
            )
        groups, ready = self.groups_per_step or 1, self._ready_most()
        if not self.admission:
            raise ValueError(
                f"samples_per_insert {spi:g} holds env workers back by admission, which is false: "
                "set admission to true, or leave samples_per_insert out"
            )
        if 0 < self.max_samples < spi:
            raise ValueError(
                f"samples_per_insert {spi:g} is above max_samples {self.max_samples}: no group is "
                "used as often, so workers would wait for uses that never come, and batches for "
                f"them; set max_samples to {ceil(spi)} or more, or samples_per_insert lower"
            )
        if least + groups > spi * ready:
            raise ValueError(
                f"{shown} begins above what may be ready: the first batch, of {groups} groups or "
                f"more, waits for {ceil((least + groups) / spi)}, and capacity_groups and capacity "
                f"keep {ready}; lower its first number to {floor(spi * ready - groups)}, or raise "
                "these"
            )
        if most < spi * groups:
            raise ValueError(
                f"{shown} ends below what one batch needs: {groups} groups that become ready allow "
                f"{spi:g} × {groups} uses, and workers would wait before; raise its second number "
                f"to {ceil(spi * groups)} or more"
            )
        if most - least < groups + spi:
            raise ValueError(
                f"{shown} is smaller than one batch needs: a batch takes {groups} of it and a "
                f"group that becomes ready gives {spi:g}, so that both sides could wait at one "
                f"time; raise its second number to {ceil(least + groups + spi)} or more"
            )


class RollstreamConfig(Section):
    """Holds all sections of the file."""

    kafka: KafkaConfig
    store: StoreConfig
    sealers: SealersConfig = Field(default_factory=SealersConfig)
    environments: dict[str, EnvironmentConfig] = Field(min_length=1)
    samplers: dict[str, SamplerConfig] = Field(default_factory=dict)
    gateway: GatewayConfig = Field(default_factory=GatewayConfig)
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)
    tokenizer: str | None = None
    """A `tokenizer.json` of Hugging Face `tokenizers`, or a folder with one, for `rollstream show`
    (`'.[tokenizer]'`). None: it shows token ids."""

    @model_validator(mode="after")
    def _names_agree(self) -> Self:
        for name, sampler in self.samplers.items():
            for environment in sampler.environments:
                if environment not in self.environments:
                    raise ValueError(
                        f"samplers.{name}.environments names {environment!r}, but there is no "
                        f"[environments.{environment}]; add the section or correct the name"
                    )
        for name in self.gateway.tokens:
            if name not in self.environments:
                raise ValueError(
                    f"gateway.tokens names {name!r}, but there is no [environments.{name}]; add "
                    "the section or correct the name"
                )
        for name, section in self.environments.items():
            if section.fresh_for:
                self._check_fresh_for(name, section.fresh_for)
        return self

    def _check_fresh_for(self, name: str, sampler: str) -> None:
        key = f"environments.{name}.fresh_for names {sampler!r}"
        section = self.samplers.get(sampler)
        if section is None:
            raise ValueError(
                f"{key}, but there is no [samplers.{sampler}]; add the section or correct the name"
            )
        if name not in section.environments:
            raise ValueError(
                f"{key}, which does not serve {name}; add {name} to samplers.{sampler}.environments"
                ", or leave fresh_for out"
            )
        limits = ("max_policy_lag", "max_rollout_step_delay", "max_rollout_timestamp_delay")
        if max(getattr(section, limit) for limit in limits) < 0:
            raise ValueError(
                f"{key}, whose max_policy_lag {section.max_policy_lag} is no limit, nor are those "
                "on rollouts, so that no group is too old for it; set one, or leave fresh_for out"
            )
