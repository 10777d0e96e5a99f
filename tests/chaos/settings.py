"""The numbers of a run, each with its reason, and its configuration."""

from __future__ import annotations

from rollstream.runtime.config.store import StoreConfig

SAMPLER = "chaos"
ENVIRONMENT = "math"
VERIFIER = "verifier"
GROUP_SIZE = 4
LATE_EVERY = 16  # Of so many groups the verifiers score one: they read its rows, and it waits.
BATCH_GROUPS = 64
PROMPT_TOKENS, OUTPUT_TOKENS = 16, 48
PRODUCERS = 2
SEALERS = 2
VERIFIERS = 2
RATE = 2_500.0  # Rollouts a second of all producers, so that 2,000 are left with one of them dead.
CHECKPOINT_EVERY = 5  # Steps: so that a rewind repeats some.
STOP_S = 4.0  # The longest that a process sleeps: longer than a session.
DRAIN_S = 300.0  # Only a hang takes so long.
ANSWER_S = 600.0  # Several actors in a row may be killed before one of them answers.


def config_text(bootstrap: str, store: StoreConfig) -> str:
    """The run's ``rollstream.toml``."""
    return f"""[kafka]
bootstrap = "{bootstrap}"

[kafka.client]
# Short: the partitions of a killed sealer move at once.
"session.timeout.ms" = "1500"
"heartbeat.interval.ms" = "200"

[store]
root = "{store.root}"
endpoint = "{store.endpoint}"
region = "{store.region}"

[environments.{ENVIRONMENT}]
partitions = 4
target_group_size = {GROUP_SIZE}
flush_interval_s = 0.5
seal_timeout_s = 5.0
expire_after_s = 10.0

[samplers.{SAMPLER}]
environments = ["{ENVIRONMENT}"]
max_policy_lag = 200
capacity_groups = 4096
timeout_s = {ANSWER_S}
"""
