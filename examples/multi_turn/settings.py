"""The run's numbers, each with its reason."""

from __future__ import annotations

from pathlib import Path

from examples.multi_turn.lake import ENVIRONMENT

POOL = "pool"
WORKERS = 2
# A policy that knows nothing reaches the goal in one of 70 walks.
GROUP_SIZE = 16
STEPS_MAX = 300
# The run ends when the mean return of the last prompts is there.
RETURN_GOAL = 0.95
# The pool keeps so few finished prompts, the newest, that their steps are not much older.
POOL_PROMPTS = 4
STALENESS_THRESHOLD = 4
FETCH_TIMEOUT_S = 60.0
SEED = 7


def config_text(bootstrap: str, root: Path) -> str:
    """The run's ``rollstream.toml``."""
    return f"""[kafka]
bootstrap = "{bootstrap}"

[store]
root = "{root.as_uri()}"

[environments.{ENVIRONMENT}]
partitions = 1
# Short: a trainer this fast waits for every prompt.
flush_interval_s = 0.05
# Short: a trajectory that died with its worker should not hold its prompt back for long.
seal_timeout_s = 5.0
expire_after_s = 15.0

[samplers.{POOL}]
environments = ["{ENVIRONMENT}"]
order = "ready"
max_policy_lag = -1
off_branch = "keep"
capacity_groups = {POOL_PROMPTS}
"""
