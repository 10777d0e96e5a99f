"""Starts the Ray of a round."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private import ray_constants

from benchmarks.systems.interface import Services

NAMESPACE = "benchmark"
STORE_BYTES = 512 * 1024 * 1024
DAEMONS = ("gcs_server", "raylet")  # The names of Ray's own processes.


@contextmanager
def fresh_ray(folder: Path) -> Iterator[Services]:
    """Starts Ray as children of this process, and ends it."""
    # Workers import this package by its name, wherever the benchmark was started.
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    _loopback_only()
    context: Any = ray.init(
        address="local",
        namespace=NAMESPACE,
        include_dashboard=False,
        # By default Ray gives its workers a lower priority than the round's other processes.
        _system_config={"worker_niceness": 0},
        _node_ip_address="127.0.0.1",
        object_store_memory=STORE_BYTES,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    try:
        children = psutil.Process().children()
        pids = {child.name(): child.pid for child in children if child.name() in DAEMONS}
        yield Services(context.address_info["gcs_address"], pids)
    finally:
        ray.shutdown()


def connect(address: str) -> None:
    """Connects this process to that Ray as a driver."""
    _loopback_only()
    ray.init(address=address, namespace=NAMESPACE, logging_level=logging.ERROR, log_to_driver=False)


def _loopback_only() -> None:
    """Makes Ray, in this process and those that it starts, listen on 127.0.0.1 only."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False
