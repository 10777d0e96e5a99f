"""The whole way, from an env worker's publish to a trainer's batch, with a sealer's process and
commands as users run them; which Kafka carries it is the caller's choice."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from typer.testing import CliRunner

from rollstream.console.app import build
from rollstream.producers import RolloutProducer
from rollstream.runtime.config.load import load_config
from rollstream.runtime.config.store import StoreConfig
from rollstream.sampler import Batch, SamplerClient
from rollstream.sampler.actor.loopback_ray import RAY_NAMESPACE
from rollstream.sampler.api.client import actor_name

TIMEOUT_S = 90.0
GROUPS = 6
GROUP_SIZE = 4
FAILING = 2  # The group whose last member fails.
POLICY = "step-0"

CONFIG = """
[kafka]
bootstrap = "{bootstrap}"
namespace = "{namespace}"
[store]
{store}
[environments.math]
partitions = 2
target_group_size = 8
flush_interval_s = 0.15
compression = "{compression}"
[samplers.{sampler}]
environments = ["math"]
"""


class Deployment:
    """One configuration, in a namespace and a folder of its own.

    Attributes:
        config: the file.
        namespace: of its topics.
        sampler: the name of its one sampler.
    """

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        store: StoreConfig | None = None,
        compression: str = "none",
    ) -> None:
        store = store or StoreConfig(root=(folder / "store").as_uri())
        given = store.model_dump(exclude_defaults=True).items()
        self.bootstrap = bootstrap
        self.namespace = f"test-{uuid.uuid4().hex[:12]}"
        self.sampler = f"trainer-{uuid.uuid4().hex[:12]}"
        self.config = folder / "rollstream.toml"
        self.config.write_text(
            CONFIG.format(
                bootstrap=bootstrap,
                namespace=self.namespace,
                store="\n".join(f'{name} = "{value}"' for name, value in given),
                compression=compression,
                sampler=self.sampler,
            ),
            encoding="utf-8",
        )

    def run(self, *arguments: str) -> str:
        """What a command that succeeds prints; in this process, since a new one takes longer to
        import everything than most commands take."""
        done = CliRunner().invoke(build(), [*arguments, "--config", str(self.config)])
        assert done.exit_code == 0, f"{arguments}: {done.output}\n{done.exception!r}"
        return done.stdout

    @contextmanager
    def sealer(self) -> Iterator[None]:
        """``rollstream seal`` as a process; at the end it is told to stop, and must leave well."""
        with (self.config.parent / "sealer.log").open("w+b") as log:
            command = [sys.executable, "-m", "rollstream.console.entry", "seal"]
            process = subprocess.Popen(
                [*command, "--config", str(self.config)], stdout=log, stderr=log
            )
            try:
                yield
                process.send_signal(signal.SIGTERM)
                code = process.wait(TIMEOUT_S)
            finally:
                process.kill()
                process.wait()
            log.seek(0)
            assert code == 0, log.read().decode(errors="replace")

    def attach(self) -> SamplerClient:
        """A trainer's client, as each process makes its own."""
        return SamplerClient.attach(self.sampler, config=self.config)

    def close(self) -> None:
        """Ends the sampler's actor, which would outlive every client."""
        with contextlib.suppress(ValueError):  # It never was.
            actor = actor_name(self.sampler, load_config(self.config))
            ray.kill(ray.get_actor(actor, namespace=RAY_NAMESPACE))


def goes_the_whole_way(deployment: Deployment) -> list[Batch]:
    """Topics, a sealer's process, groups of which one has a failed member, batches, ack,
    checkpoint, policy, a second trainer's client, the audit, replay, lineage, show and report: each
    as promised, or it raises. Returns the batches."""
    assert json.loads(deployment.run("topics", "create", "--json"))
    assert json.loads(deployment.run("topics", "create", "--json")) == []
    deployment.run("topics", "check")
    try:
        with deployment.sealer():
            published = publish(deployment)
            batches = train(deployment, published)
            with deployment.attach() as second:
                for batch in batches:
                    again = second.next_batch(batch.step, GROUPS // 2)
                    assert contents(again) == contents(batch)
    finally:
        deployment.close()
    _accounted_for(deployment)
    _explained(deployment, batches[0])
    return batches


def publish(deployment: Deployment) -> Mapping[str, NDArray[np.int32]]:
    """Tokens, prompt first, by uid."""
    random = np.random.default_rng(7)
    published: dict[str, NDArray[np.int32]] = {}
    with RolloutProducer(
        deployment.bootstrap,
        environment="math",
        replica_id="replica-1",
        namespace=deployment.namespace,
    ) as producer:
        for number in range(GROUPS):
            with producer.dispatch(example_id=f"ex-{number}", group_size=GROUP_SIZE) as group:
                members = GROUP_SIZE - (number == FAILING)
                for member in range(members):
                    tokens = random.integers(1000, size=16 + 5 * member, dtype=np.int32)
                    uid = group.publish(
                        policy_version=POLICY,
                        weight_step=0,
                        prompt_tokens=tokens[:8],
                        output_tokens=tokens[8:],
                        logprobs=-random.random(len(tokens) - 8, dtype=np.float32),
                        reward=float(member),
                    )
                    published[uid] = tokens
                if members < GROUP_SIZE:
                    group.fail("the verifier never answered")
    return published


def train(deployment: Deployment, published: Mapping[str, NDArray[np.int32]]) -> list[Batch]:
    """Two steps that train on every rollout once."""
    with deployment.attach() as sampler:
        step = sampler.resume(None)
        batches = []
        for _ in range(2):
            batch = sampler.next_batch(step, GROUPS // 2, timeout_s=TIMEOUT_S)
            for i, uid in enumerate(batch.uids):
                served = batch.tokens[batch.offsets[i] : batch.offsets[i + 1]]
                np.testing.assert_array_equal(served, published[uid])
            sampler.ack(batch)
            policy = sampler.publish_policy(step + 1, policy_version=f"step-{step + 1}")
            assert policy.step == step + 1
            batches.append(batch)
            step += 1
        sampler.checkpointed(batches[0].step)
        trained = [uid for batch in batches for uid in batch.uids]
        assert sorted(trained) == sorted(published)
        sizes = [int(n) for batch in batches for n in np.bincount(batch.group_index)]
        assert sorted(sizes) == [GROUP_SIZE - 1] + [GROUP_SIZE] * (GROUPS - 1)
        progress = sampler.progress()
        for found in (progress.trained["math"], progress.handed_out["math"]):
            assert sum(found.values()) == GROUPS // 2
    return batches


def contents(batch: Batch) -> tuple[object, ...]:
    """What is the same whoever reads a batch."""
    arrays = {name: array.tobytes() for name, array in batch.arrays().items()}
    return batch.batch_id, batch.digest, batch.uids, arrays


def _accounted_for(deployment: Deployment) -> None:
    report: dict[str, Any] = json.loads(deployment.run("audit", "--digests", "--json"))
    assert report["holds"], report["problems"]
    partitions = report["partitions"]
    assert sum(p["sealed"] for p in partitions) == GROUPS * GROUP_SIZE - 1
    assert sum(p["groups"] for p in partitions) == GROUPS
    assert sum(p["pending"] for p in partitions) == 0
    settled: dict[str, int] = {}
    for partition in partitions:
        for reason, count in partition["settled"].items():
            settled[reason] = settled.get(reason, 0) + count
    assert settled == {"dispatched": GROUPS, "failed": 1}


def _explained(deployment: Deployment, batch: Batch) -> None:
    """The batch is decided again, its rows are found in the files, a rollout of it is traced."""
    step = ("--sampler", deployment.sampler, "--step", str(batch.step))
    assert json.loads(deployment.run("replay", *step, "--json"))["same"]
    files = json.loads(deployment.run("replay", *step, "--from-files", "--json"))
    assert (files["same"], files["found"]) == (True, batch.digest.hex())
    made_of = json.loads(deployment.run("lineage", *step, "--json"))["groups"]
    rows = [row for group in made_of for row in group["origin"]["segments"]]
    assert [row["rollout_uid"] for row in rows] == list(batch.uids)
    assert {row["replica_id"] for row in rows} == {"replica-1"}
    (back,) = json.loads(deployment.run("lineage", "--uid", batch.uids[0], "--json"))
    (entry,), (sampler,) = back["entries"], back["samplers"]
    (use,) = sampler["uses"]
    assert (use["step"], use["state"]) == (batch.step, "trained")
    assert entry["group"]["segments"] == rows[:1]
    _shown(deployment, batch)


def _shown(deployment: Deployment, batch: Batch) -> None:
    """Its rollouts as text, by the logs and by files alone, and what became of all of them."""
    for alone, state in (((), "trained"), (("--from-files",), "in_batch")):
        (found,) = json.loads(deployment.run("show", batch.uids[0], "--json", *alone))
        (segment,) = found["segments"]
        tokens = segment["prompt_tokens"] + segment["output_tokens"]
        assert tokens == batch.tokens[: batch.offsets[1]].tolist()
        (became,) = found["became"]
        assert (became["step"], became["state"]) == (batch.step, state)
        best = ("show", "--sampler", deployment.sampler, "--step", str(batch.step), *alone)
        shown = json.loads(deployment.run(*best, "--highest-reward", "1", "--json"))
        assert [one["reward"] for one in shown] == [float(GROUP_SIZE - 1)]
    report = json.loads(deployment.run("report", "--sampler", deployment.sampler, "--json"))
    totals = report["totals"]
    assert (totals["trained"], totals["waiting"]) == (GROUPS * GROUP_SIZE - 1, 0)
    assert (totals["unsealed"], totals["unfinished"]) == ({}, {"failed": 1})
    assert sum(row["trained"] for row in report["by_length"]) == totals["trained"]
