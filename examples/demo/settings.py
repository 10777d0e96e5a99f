"""The demo's numbers, each with its reason."""

from __future__ import annotations

from pathlib import Path

from examples.demo.tasks import TASK_NAMES

SAMPLER = "demo"
# Its replicas publish what is trained on without rewards; a verifier scores it once it is sealed.
SCORED_LATE = TASK_NAMES[1]
PROBLEMS_PER_TASK = 80
# The last of them are never trained on: every so many steps one replica of the task answers them
# with the newest weights, as split eval.
EVAL_PROBLEMS = 16
EVAL_EVERY = 25
GROUP_SIZE = 8
BATCH_GROUPS = 64
REPLICAS_PER_TASK = 2
SEALERS = 2
SEED = 7
# Most problems that a replica answers side by side: enough that NumPy, not Python, does the work.
PROBLEMS_PER_ROUND = 8
STEPS_MIN = 150
STEPS_MAX = 700
TIME_LIMIT_S = 165.0
# The run ends when the mean reward of the last batches is there in each environment.
REWARD_GOAL = 0.9
REWARD_FLOOR = 0.8  # Below it the demo has failed.
REWARD_WINDOW = 20
CHECKPOINT_EVERY = 10
BATCH_TIMEOUT_S = 60.0
PAGE_S = 60.0  # For the logs of the run's page.


def config_text(bootstrap: str, root: Path) -> str:
    """The run's ``rollstream.toml``."""
    environments = "\n".join(
        f"""
[environments.{name}]
partitions = 2
target_group_size = {GROUP_SIZE}
# Short: a trainer this fast waits for every group.
flush_interval_s = 0.15
# Short: a member that died with its replica should not hold its group back for long.
seal_timeout_s = 5.0
expire_after_s = 15.0
"""
        for name in TASK_NAMES
    )
    names = ", ".join(f'"{name}"' for name in TASK_NAMES)
    return f"""[kafka]
bootstrap = "{bootstrap}"

[kafka.client]
# Short: the partitions of a killed sealer move within seconds.
"session.timeout.ms" = "6000"

[store]
root = "{root.as_uri()}"
{environments}
[samplers.{SAMPLER}]
environments = [{names}]
seed = {SEED}
"""
