"""``rollstream status --watch`` in a terminal, whose broker does not answer."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

CONFIG = """
[kafka]
bootstrap = "{bootstrap}"
[store]
root = "{root}"
[environments.math]
partitions = 2
"""
ENTERS = b"\x1b[?1049h"  # The full screen of a terminal.
LEAVES = b"\x1b[?1049l"


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    """Of a broker that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        file = tmp_path / "rollstream.toml"
        file.write_text(CONFIG.format(bootstrap=f"{host}:{port}", root=tmp_path.as_uri()))
        yield file


def read_until(terminal: int, found: bytes) -> bytes:
    """What the program writes, up to these bytes."""
    written = b""
    while found not in written:
        written += os.read(terminal, 65_536)
    return written


@pytest.mark.parametrize(
    "end",
    [
        lambda terminal, process: os.write(terminal, b"q"),
        lambda terminal, process: os.write(terminal, b"\x03"),
        lambda terminal, process: process.send_signal(signal.SIGTERM),
    ],
    ids=["q", "ctrl-c", "SIGTERM"],
)
def test_it_ends_at_once_while_the_broker_does_not_answer_and_leaves_the_terminal_as_it_was(
    config: Path, end: Callable[[int, subprocess.Popen[bytes]], object]
) -> None:
    terminal, of_process = pty.openpty()
    program = [sys.executable, "-m", "rollstream.console.entry"]
    command = [*program, "status", "--watch", "--config", str(config), "--timeout", "3600"]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(
        command, stdin=of_process, stdout=of_process, stderr=of_process, env=environment
    ) as process:
        os.close(of_process)
        try:
            assert ENTERS in read_until(terminal, b"looking")
            end(terminal, process)
            read_until(terminal, LEAVES)
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(terminal)
