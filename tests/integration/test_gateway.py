"""The gateway as processes, over a real Kafka."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from harness.brokers import until
from harness.kafka import KafkaFactory
from harness.pages import snippets
from harness.printed_pages import PRINTED_GATEWAY, printed
from harness.producers import published, segments_of
from harness.sealing import SealWorld
from harness.step_writers import STEP, STEPS, TOKENS, bearer
from harness.verifying import score_records
from rollstream.schemas.ingest.entry import EntryKind
from rollstream.store import open_dataset

pytestmark = pytest.mark.broker
TIMEOUT_S = 60.0
TESTS = Path(__file__).resolve().parents[1]
STEPS_OF_ONE = 4
GUIDE = "guides/http_gateway.md"


class GatewayProcess:
    """``rollstream gateway`` over the world's topics, once it listens.

    Attributes:
        address: where it listens.
        client: sends to it.
    """

    def __init__(self, world: SealWorld, folder: Path, **gateway: float) -> None:
        kafka = world.config.kafka
        settings = "".join(
            f"{name} = {value}\n" for name, value in {"shutdown_delay_s": 0.0, **gateway}.items()
        )
        file = folder / "gateway.toml"
        file.write_text(
            f'[kafka]\nbootstrap = "{kafka.bootstrap}"\nnamespace = "{kafka.namespace}"\n'
            f'[store]\nroot = "{world.config.store.root}"\n[environments.math]\n'
            f'[gateway]\n{settings}[gateway.tokens]\nmath = ["{TOKENS["math"]}"]\n'
        )
        program = [sys.executable, "-m", "rollstream.console.entry", "gateway"]
        self.process = subprocess.Popen(
            [*program, "--port", "0", "--config", str(file)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), *sys.path))},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log: list[str] = []
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"listening on (http://\S+),", line):
                break
        else:
            raise AssertionError(f"the gateway ended: {self.log}")
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self.address = ("127.0.0.1", int(found[1].rpartition(":")[2]))
        self.client = httpx2.Client(base_url=found[1], headers=bearer(), timeout=TIMEOUT_S)

    def post(self, steps: list[dict[str, Any]], *, durable: bool = True) -> httpx2.Response:
        return self.client.post(STEPS, params={"durable": durable}, json={"steps": steps})

    def ended(self) -> int:
        """Its exit code, once it has ended."""
        code = self.process.wait(TIMEOUT_S)
        self._reading.join(TIMEOUT_S)
        self.client.close()
        return code

    def kill(self) -> None:
        """While others may still send to it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(TIMEOUT_S)

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log += self.process.stderr


@pytest.fixture
def world(kafka_bootstrap: str, tmp_path: Path) -> Iterator[SealWorld]:
    with SealWorld(kafka=kafka_bootstrap, root=tmp_path / "store") as world:
        yield world


def trajectory(number: int) -> list[dict[str, Any]]:
    """All steps of one; two trajectories are a group."""
    return [
        {
            **STEP,
            "trajectory_uid": f"t-{number}",
            "prompt_uid": f"p-{number // 2}",
            "n_rollouts": 2,
            "step_index": index,
            "is_last": index == STEPS_OF_ONE - 1,
            "reward": float(number),
        }
        for index in range(STEPS_OF_ONE)
    ]


def rows(world: SealWorld) -> list[tuple[str, int]]:
    """Trajectory and step of each sealed row, once everything is settled."""
    with world.sealer(workers=None) as sealer:
        world.until(sealer)
    table = open_dataset(world.config.store.root).to_table(
        columns=["trajectory_uid", "segment_idx"]
    )
    return sorted((row["trajectory_uid"], row["segment_idx"]) for row in table.to_pylist())


def steps_of(numbers: range) -> list[tuple[str, int]]:
    return sorted((f"t-{number}", index) for number in numbers for index in range(STEPS_OF_ONE))


def test_kill_9_loses_nothing_that_was_answered_and_retries_add_nothing(
    world: SealWorld, tmp_path: Path
) -> None:
    numbers = range(200)
    answered: set[int] = set()
    gateway = GatewayProcess(world, tmp_path)
    some = threading.Event()

    def post(number: int) -> None:
        try:
            if gateway.post(trajectory(number)).status_code == 200:
                answered.add(number)
        except httpx2.TransportError:
            pass  # Killed: nobody knows whether it is in the log.
        if len(answered) >= 20:
            some.set()

    with ThreadPoolExecutor(8) as clients:
        posts = [clients.submit(post, number) for number in numbers]
        assert some.wait(TIMEOUT_S)
        gateway.kill()
        for one in posts:
            one.result()
    assert gateway.ended() == -signal.SIGKILL
    assert 20 <= len(answered) < len(numbers), "it was killed in the middle"
    in_log = set(logged(world))
    for number in answered:
        assert {(f"t-{number}", index) for index in range(STEPS_OF_ONE)} <= in_log

    gateway = GatewayProcess(world, tmp_path)
    for number in numbers:  # Those that were answered, too.
        assert gateway.post(trajectory(number)).status_code == 200
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.ended() == 0
    assert rows(world) == steps_of(numbers)


def logged(world: SealWorld) -> list[tuple[str, int]]:
    """Trajectory and step of each segment in the ingest log."""
    found = published(world.broker, world.layout, "math", world.environment.partitions)
    return [(one["trajectory_uid"], one["segment_idx"]) for one in segments_of(found)]


def test_two_gateways_share_trajectories_and_sigterm_drains_them(
    world: SealWorld, tmp_path: Path
) -> None:
    gateways = [GatewayProcess(world, tmp_path) for _ in range(2)]
    numbers = range(10)
    for number in numbers:
        for index, step in enumerate(trajectory(number)):
            answer = gateways[(number + index) % 2].post([step], durable=False)
            assert answer.status_code == 202, answer.text
    for gateway in gateways:
        gateway.process.send_signal(signal.SIGTERM)
    assert [gateway.ended() for gateway in gateways] == [0, 0]
    assert rows(world) == steps_of(numbers)
    for gateway in gateways:
        assert not any(token in line for line in gateway.log for token in TOKENS.values())


def test_after_sigterm_it_is_not_ready_takes_calls_for_the_delay_and_ends_with_0(
    world: SealWorld, tmp_path: Path
) -> None:
    delay_s = 3.0
    gateway = GatewayProcess(world, tmp_path, shutdown_delay_s=delay_s)
    assert gateway.client.get("/readyz").status_code == 200
    waiting = socket.create_connection(gateway.address, TIMEOUT_S)
    body = json.dumps({"steps": [trajectory(0)[0]]}).encode()
    sent = (
        f"POST {STEPS}?durable=true HTTP/1.1\r\nHost: x\r\nAuthorization: "
        f"{bearer()['Authorization']}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    waiting.sendall(sent + body[:10])
    gateway.process.send_signal(signal.SIGTERM)
    signalled_s = time.monotonic()
    until(lambda: gateway.client.get("/readyz").status_code == 503)
    assert time.monotonic() < signalled_s + delay_s, "long before connections are refused"
    with httpx2.Client(base_url=gateway.client.base_url, headers=bearer()) as new:
        answer = new.post(STEPS, params={"durable": True}, json={"steps": trajectory(1)})
        assert answer.status_code == 200
        assert answer.headers["Connection"] == "close", "the client's next call goes elsewhere"
    until(lambda: not accepts(gateway.address))
    assert time.monotonic() >= signalled_s + delay_s
    waiting.sendall(body[10:])  # A request that began before is answered.
    assert waiting.recv(15) == b"HTTP/1.1 200 OK"
    waiting.close()
    assert gateway.ended() == 0
    assert sorted(logged(world)) == [("t-0", 0), *steps_of(range(1, 2))]


def accepts(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, TIMEOUT_S):
            return True
    except ConnectionError:
        return False


def test_open_prompts_are_bounded_as_configured(world: SealWorld, tmp_path: Path) -> None:
    gateway = GatewayProcess(world, tmp_path, max_open_prompts=1)
    first, second = ({**STEP, "trajectory_uid": uid, "prompt_uid": uid} for uid in ("p-1", "p-2"))
    assert gateway.post([first]).status_code == 200
    refused = gateway.post([second])
    assert refused.status_code == 429
    assert "max_open_prompts, 1" in refused.json()["detail"]
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.ended() == 0


def test_the_guides_program_submits_a_trajectory(world: SealWorld, tmp_path: Path) -> None:
    gateway = GatewayProcess(world, tmp_path)
    client = printed(GUIDE, "client.py")
    for shown, here in (
        (PRINTED_GATEWAY, gateway.client.base_url.netloc.decode()),
        ("a-long-random-token", TOKENS["math"]),
    ):
        assert shown in client
        client = client.replace(shown, here)
    (tmp_path / "client.py").write_text(client)
    program = "\n".join(snippets(GUIDE, "python"))
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=TIMEOUT_S)
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.ended() == 0
    logged = published(world.broker, world.layout, "math", world.environment.partitions)
    found = [one for one in logged if one.fields["group_uid"] == "prompt-3"]
    assert [(one.entry.kind, one.fields["segment_idx"]) for one in found] == [
        (EntryKind.STEP, 0),
        (EntryKind.STEP, 1),
        (EntryKind.ENDED, 2),
    ]
    assert {one.fields["trajectory_uid"] for one in found} == {"agent-0"}
    compact = found[1].fields
    assert np.frombuffer(compact["prompt_tokens"], "<i4").tolist() == [101, 7592, 2748]
    assert np.frombuffer(compact["logprobs"], "<f4").tolist() == [np.float32(-0.02)]
    masked, failed = (one for one in logged if one.fields["group_uid"] == "prompt-4")
    assert np.frombuffer(masked.fields["loss_mask"], np.bool_).tolist() == [True]
    assert masked.fields["token_arrays"]["entropies"].data == np.float32(0.7).tobytes()
    assert failed.entry.failure is not None
    assert failed.entry.failure.reason == "the browser crashed"
    ((_, _, score),) = score_records(world.config, "math", world.broker)
    assert [one.reward for one in score.scores] == [0.5]


def test_while_the_broker_is_away_calls_end_by_their_deadline(
    own_kafka: KafkaFactory, tmp_path: Path
) -> None:
    kafka = own_kafka()
    with SealWorld(kafka=kafka.bootstrap, root=tmp_path / "store") as world:
        gateway = GatewayProcess(world, tmp_path, timeout_s=3.0, drain_timeout_s=1.0)
        # A broker that has just started may take longer for its first answer than the deadline.
        until(lambda: gateway.post(trajectory(0)).status_code == 200)
        until(lambda: gateway.client.get("/readyz").status_code == 200)
        kafka.kill()
        refused = gateway.post(trajectory(1))
        assert refused.status_code in (503, 504), refused.text
        assert refused.headers["Retry-After"]
        assert "harmless" in refused.json()["detail"]
        assert gateway.client.get("/readyz").status_code == 503
        assert gateway.client.get("/healthz").status_code == 200
        score = {"prompt_uid": "p-0", "reward": 1.0, "scorer": "tests"}
        scored = gateway.client.post("/v1/environments/math/trajectories/t-0/score", json=score)
        assert scored.status_code in (503, 504), scored.text
        accepted = gateway.post(trajectory(2), durable=False)
        assert accepted.status_code == 202
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.ended() == 0
        assert any("answered 202: 4" in line for line in gateway.log), json.dumps(gateway.log)
