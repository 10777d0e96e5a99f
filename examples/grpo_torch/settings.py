"""The run's numbers, each with its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from examples.grpo_torch.words import ENVIRONMENT

SAMPLER = "grpo"
RANKS = 2
WORKERS = 2
STEPS = 300
GROUP_SIZE = 8
BATCH_GROUPS = 64
# Most problems that a worker answers side by side; a round is then a quarter of a batch.
PROBLEMS_PER_ROUND = 16
# They are never trained on; one worker answers each of them so often, every so many steps.
HELD_OUT = 64
HELD_OUT_ANSWERS = 4
EVALUATE_EVERY = 25
# An example has up to 8 tokens, so a pack some sixteen examples.
PACK_LENGTH = 128
# Dr. GRPO's advantage. Divided by the group's standard deviation, the small differences that the
# scorer makes between wrong answers count as much as being right, and the policy settles for them.
ADVANTAGE: Final = "dr_grpo"
LEARNING_RATE = 3e-3
# Clip-higher (DAPO): an unlikely token may gain more than a likely one may lose.
CLIP = (0.2, 0.28)
# Without it every seed settles for one letter early.
ENTROPY_BONUS = 0.01
GRADIENT_NORM_MAX = 1.0
# No multiple of the step at which a rank is killed, so that steps are taken a second time.
CHECKPOINT_EVERY = 8
BATCH_TIMEOUT_S = 120.0
# Longer than any rank's part of a step takes; a rank whose peer stands still gives up after it.
PEER_TIMEOUT_S = 60.0
HELD_OUT_TIMEOUT_S = 120.0
# What the policy is to have earned on the held-out problems, at first and at the end.
REWARD_BEFORE, REWARD_AFTER = 0.3, 0.6


def config_text(bootstrap: str, root: Path, seed: int) -> str:
    """The run's ``rollstream.toml``."""
    return f"""[kafka]
bootstrap = "{bootstrap}"

[store]
root = "{root.as_uri()}"

[environments.{ENVIRONMENT}]
partitions = 2
# Short: a trainer this fast waits for every group.
flush_interval_s = 0.15
# Short: a member that died with its worker should not hold its group back for long.
seal_timeout_s = 5.0
expire_after_s = 15.0

[samplers.{SAMPLER}]
environments = ["{ENVIRONMENT}"]
seed = {seed}
groups_per_step = {BATCH_GROUPS}
"""
