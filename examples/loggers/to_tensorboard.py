"""Writes the metrics of each batch to event files.

pip install tensorboardX
python -m examples.loggers.to_tensorboard runs/tensorboard
tensorboard --logdir runs/tensorboard
"""

from __future__ import annotations

import sys

from tensorboardX import SummaryWriter

from examples.loggers.run import batches

if __name__ == "__main__":
    with SummaryWriter(sys.argv[1]) as writer:
        for step, batch in enumerate(batches()):
            for name, value in batch.metrics().items():
                writer.add_scalar(name, value, step)
