"""Redis streams in memory, without persistence: the trainer's process reads, joins and packs.

Nothing survives a crash of Redis or of the reader.
"""

from __future__ import annotations

import shutil
import signal
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from benchmarks.scenarios import GROUPS_PER_BATCH, Scenario
from benchmarks.systems.interface import (
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    TAKE_TIMEOUT_S,
    Services,
    Taken,
)
from benchmarks.systems.packing import Joiner, Member, pack
from benchmarks.workload import Rollout, Workload
from rollstream.console.broker.child import BoundChild

STREAM = "rollouts"
PIPELINED = 64
READ_COUNT = 512
PROBE_S = 0.02


class RedisPublisher:
    def __init__(self, address: str) -> None:
        self._pipeline = redis.Redis(unix_socket_path=address).pipeline(transaction=False)

    def publish(self, rollout: Rollout) -> None:
        self._pipeline.xadd(
            STREAM,
            {
                "u": rollout.uid,
                "g": rollout.group_uid,
                "r": struct.pack("<f", rollout.reward),
                "p": rollout.prompt.tobytes(),
                "o": rollout.output.tobytes(),
                "l": rollout.logprobs.tobytes(),
            },
        )
        if len(self._pipeline) >= PIPELINED:
            self._pipeline.execute()

    def idle(self) -> None:
        if len(self._pipeline):
            self._pipeline.execute()

    def close(self) -> None:
        self.idle()
        self._pipeline.close()


class RedisSource:
    def __init__(self, address: str) -> None:
        self._redis: Any = redis.Redis(unix_socket_path=address)
        self._last = b"0-0"
        self._joiner = Joiner()

    def take(self) -> Taken:
        while self._joiner.ready < GROUPS_PER_BATCH:
            self._read()
        members = self._joiner.take(GROUPS_PER_BATCH)
        return Taken([m.uid for m in members], pack(members))

    def _read(self) -> None:
        block_ms = round(TAKE_TIMEOUT_S * 1000)
        found = self._redis.xread({STREAM: self._last}, count=READ_COUNT, block=block_ms)
        if not found:
            raise TimeoutError(f"redis: no entry within {TAKE_TIMEOUT_S} s")
        ((_, entries),) = found.items() if isinstance(found, dict) else found
        for entry_id, entry in entries:
            (reward,) = struct.unpack("<f", entry[b"r"])
            member = Member(entry[b"u"].decode(), entry[b"p"], entry[b"o"], entry[b"l"], reward)
            self._joiner.add(entry[b"g"].decode(), member)
            self._last = entry_id
        # Entries that were read are removed, so that Redis holds only those on their way.
        self._redis.xtrim(STREAM, minid=self._last, approximate=True)

    def pids(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        self._redis.close()


@dataclass(frozen=True)
class RedisStreams:
    name: str = "redis"

    def missing(self) -> str | None:
        return None if shutil.which("redis-server") else "no redis-server on this machine"

    @contextmanager
    def services(self, folder: Path, scenario: Scenario) -> Iterator[Services]:
        program = shutil.which("redis-server")
        assert program is not None
        socket = folder / "redis.sock"
        options = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no"]
        server = BoundChild([program, *options], cwd=folder, output=folder / "redis.log")
        try:
            _wait_until_it_answers(str(socket))
            yield Services(str(socket), {"redis": server.pid})
        finally:
            server.signal(signal.SIGKILL)
            server.wait(STOP_TIMEOUT_S)

    def publisher(self, address: str, number: int, workload: Workload) -> RedisPublisher:
        return RedisPublisher(address)

    def source(self, address: str, workload: Workload) -> RedisSource:
        return RedisSource(address)


def _wait_until_it_answers(socket: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            redis.Redis(unix_socket_path=socket).ping()
            return
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(PROBE_S)
