"""One model for each section of ``rollstream.toml``. A section is handed on as it is: the assembler
takes its ``EnvironmentConfig``, the decider its ``SamplerConfig``. Unknown keys are refused, and so
are settings with which nothing could progress."""

from __future__ import annotations

from math import ceil, floor
from typing import Literal, Self

from pydantic import (
    Field,
    FiniteFloat,
    field_validator,
    model_validator,
)

from rollstream.runtime.addresses import check_bootstrap, local_folder
from rollstream.runtime.client_properties import contradictions
from rollstream.runtime.config.gateway import GatewayConfig
from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.runtime.config.section import Section

# Two of the largest records of a topic (streams' RECORD_BYTES_MAX), since each is held whole.
_PENDING_BYTES_MIN = 32 * 1024 * 1024
_FILE_BYTES_MAX = 1 << 30  # A column of a file is one page, and a page's size is an int32.


class KafkaConfig(Section):
    """The Kafka cluster and the topics."""

    bootstrap: str = Field(min_length=1)
    """Addresses of brokers as host:port, separated by commas."""
    namespace: str = "rollstream"
    """First part of every topic's name."""
    generation: int = Field(default=1, ge=1)
    """Last part of every topic's name; a layout that changes partitions takes a new one."""
    retention_hours: float = Field(default=168.0, gt=0)
    """Hours for which rollouts stay in the ingest log."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Time-out of each request to the broker."""
    client: dict[str, str] = Field(default_factory=dict, repr=False)
    """Any librdkafka properties, but those that Rollstream's promises rest on. Passwords are among
    them, so no ``repr`` shows it."""

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


class StoreConfig(Section):
    """The files of sealed rollouts."""

    root: str = Field(min_length=1)
    """A local folder, as file:///an/absolute/folder."""

    @field_validator("root")
    @classmethod
    def _is_supported(cls, root: str) -> str:
        local_folder(root)
        return root


class EnvironmentConfig(Section):
    """How rollouts of one environment become groups."""

    partitions: int = Field(default=4, ge=1, le=1024)
    """Partitions of its topics; fixed for a generation."""
    grouping: Literal["strict", "mixed"] = "strict"
    """Whether rollouts without a group_uid must have equal policy versions to share a group."""
    target_group_size: int = Field(default=8, ge=1)
    """Members at which a group is sealed, where the producer names no group_size."""
    min_group_size: int = Field(default=2, ge=1)
    """Fewest members with which a group is sealed at seal_timeout_s."""
    seal_timeout_s: float = Field(default=300.0, gt=0)
    """Log time after its first member at which a group of min_group_size members is sealed."""
    expire_after_s: float = Field(default=1800.0, gt=0)
    """Log time after its first member at which a group that is still too small expires, and after
    its first segment at which an unfinished trajectory expires."""
    prompt_idle_s: float = Field(default=30.0, gt=0)
    """Log time after the begin of its newest trajectory at which a prompt whose steps give no
    n_rollouts is sealed, once all that began have ended."""
    partial_trajectories: Literal["drop", "train"] = "drop"
    """Whether a trajectory whose end has not come is a member of its group when that is sealed at
    seal_timeout_s, or would expire: train: with the segments that came, where none is missing
    between and the newest has a reward of its own; segments that come later expire."""
    fresh_for: str = ""
    """The sampler by whose policies and limits whole groups that are too old when they are to be
    sealed are settled as stale, too_old or off_branch, and never stored: no other sampler gets them
    either. Empty: all are sealed, and each sampler drops its own."""
    max_per_replica: int | None = Field(default=None, ge=1)
    """Most members of a group from one env replica; none: no limit."""
    accept_policy_versions: tuple[str, ...] | None = None
    """The policy versions that are admitted; none: all."""
    max_pending_rollouts: int = Field(default=65_536, ge=64)
    """Most unsealed entries of a partition (rollouts, and what is said about groups); above it the
    oldest groups expire."""
    max_pending_bytes: int = Field(
        default=256 * 1024 * 1024, ge=_PENDING_BYTES_MIN, le=_FILE_BYTES_MAX
    )
    """Most bytes of a partition's records that are held for unsealed rollouts, at least 32 MiB, two
    of the largest; above it the oldest groups expire."""
    dedupe_horizon: int = Field(default=262_144, ge=1)
    """Entries of its partition that are settled after a uid before the uid is forgotten."""
    flush_interval_s: float = Field(default=2.0, ge=0)
    """Longest time for which a complete group waits for its flush, where its partition has too few
    for a file: 1,024 segments or 8 MiB go at once, and 128 segments after 0.15 s."""
    max_flush_rollouts: int = Field(default=4_096, ge=1, le=65_536)
    """Most entries in one flush, so that its event fits a message."""
    max_flush_bytes: int = Field(default=64 * 1024 * 1024, ge=1024 * 1024, le=_FILE_BYTES_MAX)
    """Most payload bytes in one flush."""
    max_unreadable_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the entries settled within a minute that may be unreadable; beyond it status names
    the sealers as stuck."""
    compression: Literal["none", "lz4", "zstd"] = "none"
    """The codec of Parquet files."""
    tokenizer: str | None = None
    """The tokenizer of its models, for `rollstream show`; none: the top-level one."""
    retain_after_hours: float | None = Field(default=None, allow_inf_nan=False)
    """Hours of log time, above 0, after which files are retired and deleted whose groups every
    sampler is done with; none: only when `rollstream retain` asks."""

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
    """What one sampler serves, and in which order."""

    environments: tuple[str, ...] = Field(min_length=1)
    """The environments whose groups it serves."""
    lineage: str = ""
    """The lineage of the policies that its trainer publishes; lag is measured within a lineage."""
    seed: int = 0
    """Seed of every random choice: of draws by recency and reward_weighting."""
    order: Literal["age", "ready"] = "age"
    """age: examples take turns, by the age of what waits; ready: first come, first served, by when
    groups were sealed."""
    recency: Literal["uniform", "linear", "exp"] = "uniform"
    """uniform: examples take turns, and the oldest group of each is served first; linear, exp:
    groups are drawn whatever their example is, those of newer policies more often."""
    alpha: float = Field(default=1.0, gt=0, le=32)
    """Power of the weights of recency linear or exp: above 1, newer policies are preferred more."""
    on_policy_fraction: float = Field(default=0.0, ge=0, le=1)
    """Least share of a batch that the newest policy sampled; the rest may be of any."""
    prefer_policy_versions: tuple[str, ...] = ()
    """Published versions whose groups come first; others follow where these are too few."""
    recent_n_versions: int | None = Field(default=None, ge=1)
    """Groups of versions before so many that were published last are dropped as stale; before the
    first was published each step counts as a version. None: no limit."""
    max_policy_lag: int = 8
    """Groups sampled by weights older than this many steps are dropped as stale, those that name no
    weight_step as no_weight_step, and those that name one that the trainer cannot have reached yet
    as ahead; negative: no limit."""
    max_rollout_step_delay: int = -1
    """Rollouts sampled by weights older than this many steps are left out of their group, which is
    dropped below its environment's min_group_size; negative: no limit. Of this and max_policy_lag
    the narrower one holds."""
    max_rollout_timestamp_delay: float = Field(default=-1.0, allow_inf_nan=False)
    """The same for rollouts that were made more than so many seconds ago, by their workers' clocks;
    negative: no limit."""
    max_samples: int = 1
    """How often one group is served, in another batch each time; negative: no limit."""
    capacity_groups: int = Field(default=65_536, ge=1)
    """Most ready groups; above it those that wait are dropped first, then the oldest. Open batches
    keep theirs."""
    capacity: int | None = Field(default=None, ge=1)
    """Most ready groups of an environment, the oldest dropped above it; several environments divide
    its multiple by what the last 8 batches had of each. None: only capacity_groups bounds."""
    admission: bool = True
    """Whether env workers' dispatch waits while as many groups are ready and in flight as the
    trainer can use within target_policy_lag."""
    target_policy_lag: int = Field(default=2, ge=0)
    """Steps that generation may be ahead of the trainer by admission: groups of so many steps and
    one more may be ready or in flight. Of this and max_policy_lag the smaller one counts."""
    groups_per_step: int | None = Field(default=None, ge=1)
    """Groups a step by which admission counts; none: the most of the last 8 batches and of the
    requests that wait, and before the first 64."""
    admission_idle_s: float = Field(default=600.0, gt=0)
    """Seconds after the newest policy was published after which the sampler no longer says how much
    may be generated; from then on each producer may begin its share of groups once in this time."""
    samples_per_insert: FiniteFloat | None = Field(default=None, ge=1)
    """How often a group that becomes ready is used on average, within a trainer epoch: the batch
    waits, or env workers do, where error_buffer is left. None: no limit."""
    error_buffer: tuple[FiniteFloat, FiniteFloat] | None = None
    """The least and the most that samples_per_insert times the groups that became ready, less the
    groups in batches, may be: next_batch waits below the first, env workers above the other."""
    max_open_batches: int = Field(default=64, ge=1)
    """Most served batches that are not final; then next_batch refuses until checkpointed."""
    off_branch: Literal["drop", "keep"] = "drop"
    """What becomes of groups that were sampled by weights which a resume went back behind: keep
    serves them, marked in the batch, to trainers that correct for it by their log-probs."""
    scorer: str = ""
    """Whose late scores are rewards, also of rollouts that were published with one; empty: of those
    that were published without, whoever gives the newest."""
    score_version: int | None = Field(default=None, ge=1)
    """Only this version of the scorer's scores counts, from 1; none: its newest at each batch."""
    score_timeout_s: float = Field(default=1800.0, gt=0)
    """A group with a rollout that has no reward and no score is dropped as unscored so many seconds
    after its seal."""
    min_mean_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Groups whose rollouts earned less on average are dropped as filtered, being too hard; none:
    no limit."""
    max_mean_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Groups whose rollouts earned more on average are dropped as filtered, being too easy; none:
    no limit."""
    exclude_flags: tuple[str, ...] = ()
    """Groups with a rollout whose score in effect has one of these flags are dropped as
    filtered."""
    require_flags: tuple[str, ...] = ()
    """Groups with a rollout that has no score in effect, or one without all of these flags, are
    dropped as filtered; they wait for a score only where a rollout was published without a reward.
    """
    reward_weighting: Literal["uniform", "spread"] = "uniform"
    """spread: among examples that waited longest, four times as many as are wanted, those are drawn
    whose rewards differ: by the standard deviation of what the group's rollouts earned; uniform:
    those that waited longest."""
    ack_timeout_s: float = Field(default=1800.0, gt=0)
    """A batch that is neither acked nor released after so many seconds is reported; it is given to
    nobody else."""
    cache_bytes: int = Field(default=256 * 1024 * 1024, ge=0)
    """Bytes of payloads that are cached in memory."""
    on_unreadable: Literal["replace", "stop"] = "replace"
    """A group of a new batch whose file is missing or damaged: replace serves another one in its
    place for good and counts it, stop raises an error that names it (for network mounts)."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Time-out of next_batch where the caller passes none."""
    ready_packs: ReadyPacksConfig | None = None
    """Packs that are ready when an optimizer step begins; none: ReadyPacks is not used."""

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
    """All sections of the file."""

    kafka: KafkaConfig
    store: StoreConfig
    environments: dict[str, EnvironmentConfig] = Field(min_length=1)
    samplers: dict[str, SamplerConfig] = Field(default_factory=dict)
    gateway: GatewayConfig = Field(default_factory=GatewayConfig)
    tokenizer: str | None = None
    """A tokenizer.json of Hugging Face `tokenizers`, or a folder with one, by which
    `rollstream show` makes tokens readable; none: it shows their ids."""

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
