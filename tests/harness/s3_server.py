"""An S3 server on loopback, for tests: versitygw over a folder; moto's where it cannot be built."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollstream.runtime.clock import SystemClock
from rollstream.runtime.config.store import StoreConfig
from rollstream.runtime.deadline import Deadline

ACCESS_KEY, SECRET_KEY = "rollstream-tests", "kept-by-nobody-1234"
REGION = "us-east-1"
BUCKET = "runs"
VERSION = "v1.8.0"
START_S = 60.0
BUILD_S = 240.0  # A test may last for 300 s. What Go has compiled so far stays in its cache.
BUILT = Path.home() / ".cache" / "rollstream-tests" / f"versitygw-{VERSION}"


@dataclass(slots=True)
class S3Server:
    """A server that a test may kill, stop and start again; versitygw's data stays."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def variables(self) -> dict[str, str]:
        """The environment of processes that use it."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def start(self) -> None:
        """Starts it, and waits until it accepts connections."""
        (self.folder / BUCKET).mkdir(parents=True, exist_ok=True)
        program = versitygw()
        if program is None:
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        else:
            command = [str(program), "--port", f"127.0.0.1:{self.port}", "posix", str(self.folder)]
        keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env={**os.environ, **keys}, stdout=log, stderr=log
            )
        self._wait_until_up()
        if program is None:
            client(self.endpoint).create_bucket(Bucket=BUCKET)

    def store(self, prefix: str) -> StoreConfig:
        """The section of a configuration with a root in the bucket."""
        return StoreConfig(root=f"s3://{BUCKET}/{prefix}", endpoint=self.endpoint, region=REGION)

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self.process is not None
        return self.process.pid

    def restart(self) -> None:
        """Starts it again once somebody has killed it."""
        self.kill()
        self.start()

    def kill(self) -> None:
        """Kills it with -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(START_S)

    def _wait_until_up(self) -> None:
        deadline = Deadline(START_S, SystemClock())
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
                return
            except OSError:
                assert self.process is not None
                assert self.process.poll() is None, "the S3 server ended"
                assert not deadline.passed(), f"the S3 server is not up after {START_S:.0f} s"
                time.sleep(0.05)


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """A server with an empty bucket ``BUCKET``, whose data is below the folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    server = S3Server(folder, port)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def versitygw() -> Path | None:
    """The server's program, which is built once a machine; None: it cannot be built here."""
    program, go = BUILT / "versitygw", shutil.which("go")
    if program.exists() or go is None:
        return program if program.exists() else None
    BUILT.mkdir(parents=True, exist_ok=True)
    deadline = Deadline(BUILD_S, SystemClock())
    with (BUILT / "lock").open("w") as lock, tempfile.TemporaryDirectory(dir=BUILT) as made:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Of several processes of a run one builds it.
        if program.exists():
            return program
        command = [go, "install", f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"]
        variables = {**os.environ, "GOBIN": made}
        try:
            subprocess.run(command, env=variables, check=True, timeout=deadline.left_s())
        except subprocess.SubprocessError:
            return None
        os.replace(Path(made) / "versitygw", program)
    return program


def client(endpoint: str) -> Any:
    """Amazon's own client of a server."""
    import boto3  # noqa: PLC0415 - it takes a quarter of a second to load

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name=REGION,
    )
