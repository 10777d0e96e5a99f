"""Batches for trainers in PyTorch; needs ``pip install '.[torch]'``.

- ``dataset``   ``RolloutDataset``: the batches of a sampler for ``torch.utils.data.DataLoader``
- ``transport`` how a batch gets from a loader's worker process to the trainer: in shared memory

Tensors of what is in hand are ``to_torch()`` of ``Batch``, ``Padded``, ``Examples`` and ``Packs``.
"""

from __future__ import annotations

from importlib.util import find_spec

from rollstream.runtime.extras import how_to_install
from rollstream.schemas.errors import MissingExtra

if find_spec("torch") is None:
    raise MissingExtra(f"rollstream.torch needs PyTorch ({how_to_install('torch')})")

from rollstream.torch.dataset import RolloutDataset

__all__ = ["RolloutDataset"]
