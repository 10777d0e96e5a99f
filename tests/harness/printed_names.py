"""What pages of the docs leave to the reader, such as a model: Python that runs before theirs.

By page, then by the title of the file; ``""`` is the program of the blocks without a title.
"""

from __future__ import annotations

_README_WORKER = """
import itertools
from types import SimpleNamespace

import numpy as np

def sampled(prompt, n):
    each = [SimpleNamespace(ids=[3, 4], logprobs=[-0.5, -0.25]) for _ in range(n)]
    return each

model = SimpleNamespace(load=np.load, sample=sampled)
problems = (
    SimpleNamespace(id=f"aime-{n}", prompt=[1, 2], score=lambda completion: float(n % 2))
    for n in range(144)
)
"""

_README_TRAINER = """
import numpy as np

steps = 2
checkpointed_step = None

def save(step):
    np.save(f"{step}.npy", np.zeros(3))
    return f"{step}.npy"

def train(batch):
    assert batch.num_groups == 64
"""

# The quickstart's trainer, for a step.
_TRAINED = """
from pathlib import Path

import numpy as np

from rollstream.sampler import Sampler

weights = Path("weights.npy").resolve()
np.save(weights, np.zeros((10, 10, 19)))
with Sampler("trainer-a", config="rollstream.toml") as sampler:
    sampler.resume(None)
    sampler.publish_policy(0, policy_version="step-0", weights=weights)
    sampler.ack(sampler.next_batch(0, num_groups=8, timeout_s=60))
    sampler.checkpointed(0)
"""

NAMES: dict[str, dict[str, str]] = {
    "guides/reading_the_data.md": {"query.py": _TRAINED},
    "../README.md": {"worker.py": _README_WORKER, "trainer.py": _README_TRAINER},
}
