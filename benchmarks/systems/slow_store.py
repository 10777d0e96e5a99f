"""A proxy on loopback before an object store: counts the requests by kind, and delays each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.one_round import Child, child
from benchmarks.progress import MEASURING, Progress
from benchmarks.systems.interface import START_TIMEOUT_S

KINDS = ("PUT", "GET", "LIST", "HEAD", "DELETE")
PIECE = 1 << 18


class SlowStore:
    """A proxy that runs in a process of its own.

    Attributes:
        port: where it listens.
    """

    def __init__(self, process: Child) -> None:
        self._process = process
        self.port: int = process.receive(START_TIMEOUT_S)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def counts(self) -> Counter[str]:
        """How many requests of each kind came while the round was measured."""
        self._process.pipe.send("counts")
        found: Counter[str] = self._process.receive(START_TIMEOUT_S)
        return found


@contextmanager
def slow_store(port: int, delay_s: float, progress: Path | None = None) -> Iterator[SlowStore]:
    """Starts it before the server at this port.

    Args:
        delay_s: how long each request waits before it is passed on.
        progress: of the round whose requests are counted; None: all are.
    """
    with child("slow-store", run_proxy, (port, delay_s, progress)) as process:
        yield SlowStore(process)


def run_proxy(port: int, delay_s: float, progress: Path | None, pipe: Connection) -> None:
    """Sends its port, and then the counts whenever it is asked, until the pipe is closed."""
    asyncio.run(_Proxy(port, delay_s, progress).run(pipe))


class _Proxy:
    def __init__(self, port: int, delay_s: float, progress: Path | None) -> None:
        self._port, self._delay_s = port, delay_s
        self._progress = None if progress is None else Progress(progress)
        self._counts: Counter[str] = Counter()

    async def run(self, pipe: Connection) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=PIECE)
        pipe.send(server.sockets[0].getsockname()[1])
        while True:
            try:
                await asyncio.to_thread(pipe.recv)
            except EOFError:
                return
            pipe.send(self._counts)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        above = await asyncio.open_connection("127.0.0.1", self._port, limit=PIECE)
        answers = asyncio.create_task(_copy(above[0], writer))
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self._count(head)
                left = _length(head)
                await asyncio.sleep(self._delay_s)
                above[1].write(head)
                while left:
                    piece = await reader.read(min(left, PIECE))
                    if not piece:
                        break
                    left -= len(piece)
                    above[1].write(piece)
                    await above[1].drain()
        above[1].close()
        await answers

    def _count(self, head: bytes) -> None:
        if self._progress is not None and self._progress.phase != MEASURING:
            return
        method, target, _ = head.partition(b"\r\n")[0].decode().split(" ")
        self._counts["LIST" if "list-type=" in target else method] += 1


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
    writer.close()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"content-length":
            return int(value)
    return 0
