"""The command line over a broker in memory and a store in a folder."""

from __future__ import annotations

import threading
from pathlib import Path

from typer.testing import CliRunner, Result

from harness.kept_logging import kept_logging
from rollstream.console.app import build
from rollstream.console.services import Services
from rollstream.consumers import create_deployment
from rollstream.runtime.clock import ManualClock
from rollstream.runtime.config.load import load_config
from rollstream.store import Blobs, LocalBlobs
from rollstream.streams.memory import MemoryBroker, MemoryLogs
from rollstream.streams.topics.layout import Layout

CONFIG = """
[kafka]
bootstrap = "unused:9092"
[store]
root = "file:///unused"
[environments.math]
partitions = 2
target_group_size = 2
flush_interval_s = 0.15
[samplers.trainer-a]
environments = ["math"]
"""
TIMEOUT_S = 30.0


class CommandLine:
    """Runs ``rollstream ARGUMENTS --config …`` in this process, over the services below.

    Attributes:
        config_file: passed as ``--config``.
        logs: of the broker.
        blobs: of the store.
        opened: what commands open instead of it; None: it is that.
        clock: of the command and the broker.
        stopping: once set, commands that run until they are stopped end at once.
    """

    def __init__(self, folder: Path, text: str = CONFIG) -> None:
        self.config_file = folder / "rollstream.toml"
        self.config_file.write_text(text, encoding="utf-8")
        self.config = load_config(self.config_file, environ={})
        self.layout = Layout.of(self.config.kafka)
        self.clock = ManualClock()
        self.logs = MemoryLogs(self.clock)
        self.blobs = LocalBlobs(folder / "store")
        self.opened: Blobs | None = None
        self.stopping = threading.Event()

    def broker(self) -> MemoryBroker:
        """Another handle on the same logs."""
        return MemoryBroker(self.logs)

    def create_topics(self) -> None:
        """Creates the configured topics and the root's id."""
        create_deployment(self.config, broker=self.broker(), store=self.blobs, clock=self.clock)

    def run(self, *arguments: str, columns: str = "160") -> Result:
        """Runs a command to its end and returns its exit code, stdout and stderr.

        Args:
            columns: of the terminal, for its help and errors.
        """
        services = Services(
            broker=lambda _: self.broker(),
            store=lambda _: self.opened or self.blobs,
            clock=self.clock,
            stopping=lambda: self.stopping,
        )
        command = [*arguments, "--config", str(self.config_file)]
        with kept_logging():
            return CliRunner().invoke(build(), command, obj=services, env={"COLUMNS": columns})
