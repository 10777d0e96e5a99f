"""Logs the metrics of each batch to MLflow, in a file of SQLite.

pip install '.[loggers]'
python -m examples.loggers.to_mlflow runs/mlflow.db
mlflow ui --backend-store-uri sqlite:///runs/mlflow.db
"""

from __future__ import annotations

import sys

import mlflow

from examples.loggers.run import batches

if __name__ == "__main__":
    mlflow.set_tracking_uri(f"sqlite:///{sys.argv[1]}")
    with mlflow.start_run():
        for step, batch in enumerate(batches()):
            mlflow.log_metrics(batch.metrics(), step=step)
