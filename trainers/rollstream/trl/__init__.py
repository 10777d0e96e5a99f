"""Batches for TRL; needs ``pip install '.[trl]'``. Tested with TRL 1.16.

- ``grpo``    ``grpo_inputs``: examples as the inputs of ``GRPOTrainer``'s loss
- ``trainer`` ``RolloutTrainer``, ``SamplerCallback``, ``checkpointed_step``; imports TRL
"""

from __future__ import annotations

from rollstream.trl.grpo import grpo_inputs

__all__ = ["grpo_inputs"]
