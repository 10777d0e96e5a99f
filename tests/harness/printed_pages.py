"""Runs a page of the docs as a reader would: its files, commands and Python, as they are printed.

A page's blocks are taken in their order, in an empty folder:

- a block with ``title="worker.py"`` becomes that file;
- ``sh`` runs to its end, and must succeed; with ``title="terminal 2"`` it runs beside the rest,
  until the page ends;
- the ``python`` blocks without a title are one program, which runs where the last of them stands.

Only the ports of Kafka and of the gateway, and the page's folder, differ from what is printed.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from harness.pages import page
from rollstream.consumers import create_deployment
from rollstream.runtime.config.load import load_config
from rollstream.runtime.deadline import Deadline

PRINTED_ADDRESS = "localhost:9092"
PRINTED_GATEWAY = "127.0.0.1:8080"
PRINTED_FOLDER = "/tmp/quickstart"
COMMAND_TIMEOUT_S = 240.0
START_TIMEOUT_S = 120.0  # Of a Kafka, on a busy machine.
STOP_TIMEOUT_S = 30.0
CONFIGURATION = "rollstream.toml"
WORKER = "worker.py"
QUICKSTART = "quickstart.md"
# Commands that install something; ``test_printed_pages`` checks what they name.
INSTALLS = ("git clone ", "pip install ", "python3 -m venv ", ". .venv/", "cd ", "make ", "docker ")

_FENCE = re.compile(r"^( *)```(\w+)([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')


class Block(NamedTuple):
    """A fenced block: its language, title and text, and the line where the text begins."""

    language: str
    title: str
    text: str
    line: int

    @property
    def beside(self) -> bool:
        """Whether it runs in a terminal of its own."""
        return self.language == "sh" and self.title.startswith("terminal")

    @property
    def installs(self) -> bool:
        """Whether it only installs something."""
        lines = [line for line in self.text.splitlines() if line and not line.startswith("#")]
        return self.language == "sh" and all(line.startswith(INSTALLS) for line in lines)


def blocks(name: str) -> list[Block]:
    """The fenced blocks of a page, in their order."""
    text = page(name)
    found = []
    for fence in _FENCE.finditer(text):
        indent, language, rest, body = fence.groups()
        title = _TITLE.search(rest)
        lines = [line.removeprefix(indent) for line in body.splitlines(keepends=True)]
        line = text.count("\n", 0, fence.start()) + 2
        found.append(Block(language, title[1] if title else "", "".join(lines), line))
    return found


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def printed(name: str, title: str) -> str:
    """The file of that title that a page prints first."""
    return next(block.text for block in blocks(name) if block.title == title)


class PrintedPage:
    """A page that is run in a folder, against a Kafka.

    Args:
        name: the page, by its path under ``docs/``.
        folder: an empty folder.
        port: of the Kafka, on this machine; the page starts it, or it runs.
        before: Python that runs before the page's own, and gives it names: by a file's title;
            ``""`` for the program of the blocks without one.
    """

    def __init__(
        self, name: str, folder: Path, port: int, before: Mapping[str, str] | None = None
    ) -> None:
        self._name = name
        self._folder = folder
        self._port = port
        self._gateway_port = free_port()
        self._before = before or {}
        self._logs = 0
        # Ray finds Ray there: a page meets no actor of another page. The name is short, since Ray
        # makes sockets in it. The process of the tests removes the folder that it lies in.
        self._temporary = tempfile.mkdtemp(prefix="p-")

    def run(self) -> None:
        """Runs all of it.

        Raises:
            AssertionError: a command failed; with what it, and those beside it, printed.
        """
        each = blocks(self._name)
        session = [block for block in each if block.language == "python" and not block.title]
        program = "\n".join(block.text for block in session)
        with ExitStack() as beside:
            for block in each:
                if block.beside:
                    beside.enter_context(self.beside(block.text))
                elif block.title and block.language in ("python", "toml"):
                    self.write(block.title, self._before.get(block.title, "") + block.text)
                elif block.language == "sh" and not block.installs:
                    self.finish(
                        ["bash", "-euo", "pipefail", "-c", self._here(block.text)], block.line
                    )
                elif block in session[-1:]:
                    self.write(".session.py", self._before.get("", "") + program)
                    self.finish([sys.executable, ".session.py"], block.line)

    def write(self, title: str, text: str) -> None:
        """A file as it is printed."""
        (self._folder / title).write_text(self._here(text), encoding="utf-8")

    def finish(self, command: list[str], line: int) -> str:
        """Runs a command to its end, and returns what it printed."""
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=self._environment(),
            timeout=COMMAND_TIMEOUT_S,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        logs = sorted(self._folder.glob(".beside-*.log"))
        others = "\n".join(f"{log.name}: {log.read_text(encoding='utf-8')[-2000:]}" for log in logs)
        where = f"{self._name}, line {line}"
        print(done.stdout)  # noqa: T201 - pytest shows it where the page fails.
        assert done.returncode == 0, f"{where}: {done.returncode}\n{done.stdout}\n{others}"
        return done.stdout

    @contextmanager
    def beside(self, text: str) -> Iterator[None]:
        """Runs commands meanwhile; they have not failed when the block ends."""
        self._logs += 1
        log = self._folder / f".beside-{self._logs}.log"
        with log.open("w", encoding="utf-8") as output:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", self._here(text)],
                cwd=self._folder,
                env=self._environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            deadline = Deadline(START_TIMEOUT_S)
            while text.startswith("rollstream up") and "data in" not in log.read_text("utf-8"):
                assert process.poll() is None, log.read_text(encoding="utf-8")
                assert not deadline.passed(), log.read_text(encoding="utf-8")
                time.sleep(0.1)
            yield
            ended = process.poll()
            assert ended in (None, 0), f"{text!r}: {ended}\n{log.read_text(encoding='utf-8')}"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(STOP_TIMEOUT_S)

    def _here(self, text: str) -> str:
        here = text.replace(PRINTED_ADDRESS, f"localhost:{self._port}")
        here = here.replace(PRINTED_GATEWAY, f"127.0.0.1:{self._gateway_port}")
        here = here.replace(PRINTED_FOLDER, str(self._folder))
        gateway = f"rollstream gateway --port {self._gateway_port}"
        here = re.sub(r"^rollstream gateway\b", gateway, here, flags=re.M)
        return re.sub(r"^rollstream up\b", f"rollstream up --port {self._port}", here, flags=re.M)

    def _environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        reader = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
        return {**reader, "PATH": path, "TMPDIR": self._temporary}

    @contextmanager
    def after_the_quickstart(self) -> Iterator[None]:
        """What a guide's reader has: the quickstart's topics on a Kafka that runs, and its sealer
        and worker, which run too. The quickstart's own test proves how they are started.

        A page that prints a configuration, or a worker, has that one instead, and starts its worker
        itself.
        """
        titles = [block.title for block in blocks(self._name)]
        source = self._name if CONFIGURATION in titles else QUICKSTART
        self.write(CONFIGURATION, printed(source, CONFIGURATION))
        create_deployment(load_config(self._folder / CONFIGURATION))
        with ExitStack() as beside:
            beside.enter_context(self.beside("rollstream seal"))
            if WORKER not in titles:
                self.write(WORKER, printed(QUICKSTART, WORKER))
                beside.enter_context(self.beside(f"python {WORKER}"))
            yield
