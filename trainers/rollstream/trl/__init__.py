"""Batches for TRL; needs ``pip install '.[trl]'``. Tested with TRL 1.16.

- ``grpo``       ``grpo_inputs``: examples as the inputs of ``GRPOTrainer``'s loss
- ``checkpoint`` ``checkpointed_step``: the sampler's step in a checkpoint's folder
- ``trainer``    ``RolloutTrainer``, ``SamplerCallback``; imports TRL
"""

from __future__ import annotations

from rollstream.trl.grpo import grpo_inputs

__all__ = ["grpo_inputs"]
