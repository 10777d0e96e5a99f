"""Logs the metrics of each batch to Weights & Biases, without a connection.

pip install '.[loggers]'
python -m examples.loggers.to_wandb runs
wandb sync runs/wandb/offline-run-*
"""

from __future__ import annotations

import sys

import wandb

from examples.loggers.run import batches

if __name__ == "__main__":
    with wandb.init(project="rollstream", mode="offline", dir=sys.argv[1]) as run:
        for step, batch in enumerate(batches()):
            run.log(batch.metrics(), step=step)
