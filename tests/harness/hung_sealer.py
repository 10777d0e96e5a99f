"""``python -m harness.hung_sealer FILE``: ``rollstream seal`` with this configuration, over a
broker in memory. Its store hangs at the first file that it writes, and it prints ``HANGS`` then."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from harness.rollouts import encode_record, make_entry
from rollstream.console.app import build
from rollstream.console.services import Services
from rollstream.consumers import create_deployment
from rollstream.runtime.clock import SystemClock
from rollstream.runtime.config.load import load_config
from rollstream.store import LocalBlobs
from rollstream.store.calls import CalledBlobs
from rollstream.streams.broker import TopicPartition
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.topics.layout import Layout

T = TypeVar("T")
HANGS = "the store hangs now"
CONFIG = """
[kafka]
bootstrap = "unused:9092"
timeout_s = {timeout_s}
[store]
root = "file://{root}"
[environments.math]
partitions = 1
target_group_size = 2
flush_interval_s = 0.15
"""


class HangsAtRows(CalledBlobs):
    """A call that writes rows never ends."""

    def _call(self, name: str, path: str, run: Callable[[], T]) -> T:
        if name == "create" and path.endswith(".parquet"):
            sys.stdout.write(f"{HANGS}\n")
            sys.stdout.flush()
            threading.Event().wait()
        return run()


def configured(folder: Path, timeout_s: float) -> Path:
    """The configuration of the command, as a file."""
    file = folder / "rollstream.toml"
    file.write_text(CONFIG.format(root=folder / "store", timeout_s=timeout_s), encoding="utf-8")
    return file


def main(file: Path) -> None:
    config = load_config(file, environ={})
    logs, blobs = MemoryLogs(SystemClock()), LocalBlobs(file.parent / "store")
    create_deployment(config, broker=MemoryBroker(logs), store=blobs)
    members = [make_entry(rollout_uid=uid, group_uid="g", group_size=2) for uid in "ab"]
    source = TopicPartition(Layout.of(config.kafka).rollouts("math"), 0)
    logs.append(source, None, encode_record(members, partitions=1))
    services = Services(broker=lambda _: MemoryBroker(logs), store=lambda _: HangsAtRows(blobs))
    build()(["seal", "--config", str(file)], obj=services)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
