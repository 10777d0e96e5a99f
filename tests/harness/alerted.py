"""A deployment of real processes that a Prometheus scrapes, to be hurt and mended."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from harness.prometheus import Prometheus, prometheus
from harness.s3_server import S3Server
from harness.scraping import free_port
from rollstream.console.broker import EmbeddedKafka
from rollstream.producers import RolloutProducer
from rollstream.runtime.config.load import load_config
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.metrics.watched import LOOPBACK
from rollstream.sampler import Sampler

END_S = 60.0
ROLLSTREAM = (sys.executable, "-m", "rollstream.console.entry")
ENVIRONMENTS = ("math", "quiet", "scored", "spare")
SHOWN = ("monitor", "sealer", "gateway", "here")
DEPLOYMENT = """
[kafka]
bootstrap = "{bootstrap}"
namespace = "{namespace}"
timeout_s = 10
client = {{ "session.timeout.ms" = "6000", "heartbeat.interval.ms" = "500" }}
[store]
root = "{root}"
endpoint = "{endpoint}"
region = "{region}"
timeout_s = 12
[metrics]
stalled_after_s = 4
[gateway]
allow_anonymous = true
max_connections = 10
"""
"""Sessions and stalls are short; what is quiet has to be quiet for a minute, as with users."""
ENVIRONMENT = """
[environments.{name}]
partitions = 1
target_group_size = 1
min_group_size = 1
flush_interval_s = 0
"""
SAMPLERS = """
[samplers.shown]
environments = ["math"]
[samplers.slow]
environments = ["math"]
ack_timeout_s = 3
max_open_batches = 1
[samplers.hungry]
environments = ["quiet"]
[samplers.hung]
environments = ["quiet"]
[samplers.idle]
environments = ["quiet"]
[samplers.unscored]
environments = ["scored"]
[samplers.full]
environments = ["scored"]
capacity_groups = 1
[samplers.other]
environments = ["quiet"]
lineage = "another"
[samplers.lost]
environments = ["math"]
[samplers.damaged]
environments = ["math"]
[samplers.away]
environments = ["spare"]
[samplers.aside]
environments = ["spare"]
"""


class Alerted:
    """One configuration, and the processes that a test started on it.

    Args:
        kafka: may be stopped; so may the store.

    Attributes:
        config: of all processes, as the file has it.
        prometheus: scrapes the processes of ``SHOWN``, whether they run or not, and ``here``: what
            this process shows.
    """

    def __init__(self, kafka: EmbeddedKafka, s3: S3Server, folder: Path) -> None:
        self.kafka, self.s3, self.folder = kafka, s3, folder
        self.ports = {name: free_port() for name in (*SHOWN, "calls")}
        self._file, self._other_file = folder / "rollstream.toml", folder / "another.toml"
        store = s3.store(uuid.uuid4().hex)
        head = DEPLOYMENT.format(
            bootstrap=kafka.bootstrap,
            namespace=f"test-{uuid.uuid4().hex[:12]}",
            root=store.root,
            endpoint=store.endpoint,
            region=store.region,
        )
        math, quiet, *others = (ENVIRONMENT.format(name=one) for one in ENVIRONMENTS)
        whole = "".join((head, math, quiet, *others, SAMPLERS))
        self._file.write_text(whole, encoding="utf-8")
        self._other_file.write_text(head + quiet, encoding="utf-8")
        variables = {"ROLLSTREAM_METRICS__PORT": str(self.ports["here"])}
        self.config: RollstreamConfig = load_config(self._file, environ=variables)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ends = ExitStack()

    def _start(self, name: str, *command: str, file: Path, **variables: str) -> None:
        log = self._ends.enter_context((self.folder / f"{name}.log").open("ab"))
        self._processes[name] = subprocess.Popen(
            [*ROLLSTREAM, *command, "--config", str(file)],
            env={**os.environ, "ROLLSTREAM_METRICS__PORT": str(self.ports[name]), **variables},
            stdout=log,
            stderr=log,
        )

    def run(self, *command: str) -> None:
        """Runs a command to its end."""
        whole = [*ROLLSTREAM, *command, "--config", str(self._file)]
        subprocess.run(whole, check=True, timeout=END_S, stdout=subprocess.DEVNULL)

    def start_monitor(self) -> None:
        """It looks each second."""
        often = ("--every-s", "1", "--timeout", "5")
        self._start("monitor", "monitor", *often, file=self._file)

    def start_sealer(self, *options: str, of_another: bool = False, **variables: str) -> None:
        """The only one; of another environment alone where that is said.

        Args:
            variables: override its configuration.
        """
        file = self._other_file if of_another else self._file
        self._start("sealer", "seal", *options, file=file, **variables)

    def start_gateway(self) -> None:
        """It answers calls at the port ``calls``."""
        port = str(self.ports["calls"])
        self._start("gateway", "gateway", "--port", port, file=self._file)

    def kill(self, name: str) -> None:
        """With -9."""
        self._processes[name].kill()
        self._processes[name].wait(END_S)

    def pid(self, name: str) -> int:
        """Of the process of this name."""
        return self._processes[name].pid

    def sampler(self, name: str) -> Sampler:
        """One in this process, as trainers have it."""
        sampler = Sampler(name, config=self.config)
        self._ends.callback(sampler.close)
        return sampler

    def publish(self, environment: str, groups: int = 1, reward: float | None = 1.0) -> list[str]:
        """Publishes so many groups of one rollout, and returns their uids."""
        kafka = self.config.kafka
        with RolloutProducer(
            kafka.bootstrap, environment=environment, namespace=kafka.namespace
        ) as producer:
            return [producer.publish(**rollout(), reward=reward) for _ in range(groups)]

    def __enter__(self) -> Self:
        targets = [f"{LOOPBACK}:{self.ports[name]}" for name in SHOWN]
        self._ends.enter_context(self._all_killed())
        self.prometheus: Prometheus = self._ends.enter_context(prometheus(self.folder, *targets))
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.close()

    @contextmanager
    def _all_killed(self) -> Iterator[None]:
        yield
        for name in self._processes:
            self.kill(name)


def rollout() -> dict[str, Any]:
    """A rollout of an example of its own, but for its reward."""
    return {
        "example_id": uuid.uuid4().hex,
        "policy_version": "step-0",
        "weight_step": 0,
        "prompt_tokens": [1, 2],
        "output_tokens": [3, 4],
        "logprobs": [-0.1, -0.2],
    }


@contextmanager
def limited(pid: int, limit: int, most: int) -> Iterator[None]:
    """The process has this limit until the end of the block, as ``ulimit`` sets it."""
    soft, hard = resource.prlimit(pid, limit)
    resource.prlimit(pid, limit, (most, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, limit, (soft, hard))
