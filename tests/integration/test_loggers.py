"""The examples that log the metrics of batches, and what stands in the files that they write."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto import event_pb2
from wandb.proto import wandb_internal_pb2

from examples.loggers.run import STEPS, batches
from harness.source_tree import ROOT

TIMEOUT_S = 120.0
BLOCK = 32_768  # Of a file of W&B, which is a log as LevelDB writes it.

Logged = dict[int, dict[str, float]]  # By step and name.


@pytest.fixture(scope="module")
def expected() -> Logged:
    return {step: batch.metrics() for step, batch in enumerate(batches())}


def run(example: str, target: Path) -> None:
    """Runs it without any connection of its own."""
    quiet = {"DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_SILENT": "true"}
    done = subprocess.run(
        [sys.executable, "-m", f"examples.loggers.{example}", str(target)],
        cwd=ROOT,
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr


def test_tensorboard_has_each_metric_of_each_step(tmp_path: Path, expected: Logged) -> None:
    run("to_tensorboard", tmp_path)
    (file,) = tmp_path.glob("events.*")
    logged: Logged = defaultdict(dict)
    for data in records_of_tensorboard(file.read_bytes()):
        event = event_pb2.Event.FromString(data)
        for value in event.summary.value:
            logged[event.step][value.tag] = value.simple_value
    assert len(logged) == STEPS
    for step, metrics in expected.items():
        assert logged[step] == pytest.approx(metrics)


def test_wandb_has_each_metric_of_each_step_without_a_connection(
    tmp_path: Path, expected: Logged
) -> None:
    run("to_wandb", tmp_path)
    (file,) = tmp_path.rglob("offline-run-*/*.wandb")
    logged: Logged = {}
    for data in records_of_wandb(file.read_bytes()):
        items = wandb_internal_pb2.Record.FromString(data).history.item
        metrics = {(*item.nested_key, item.key)[0]: json.loads(item.value_json) for item in items}
        if metrics:
            step = metrics["_step"]
            logged[step] = {name: of for name, of in metrics.items() if name[0] != "_"}
    assert logged == expected


def test_mlflow_has_each_metric_of_each_step(tmp_path: Path, expected: Logged) -> None:
    run("to_mlflow", tmp_path / "mlflow.db")
    logged: Logged = defaultdict(dict)
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        for step, name, value in database.execute("SELECT step, key, value FROM metrics"):
            logged[step][name] = value
    assert logged == expected


def records_of_tensorboard(data: bytes) -> Iterator[bytes]:
    """Each after its length and a sum, and before another sum."""
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        yield data[at + 12 : at + 12 + size]
        at += size + 16


def records_of_wandb(data: bytes) -> Iterator[Any]:
    """Those that lie in one block whole, or in parts in several."""
    record, at = b"", 7  # Behind the file's own header.
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # Whole, or the last part.
            yield record
            record = b""
