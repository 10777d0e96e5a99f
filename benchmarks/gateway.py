"""Measures how many durable steps a second the HTTP gateway takes, beside ``AsyncRolloutProducer``.

``python -m benchmarks.gateway``: four processes post batches of 16 steps over HTTP, one call after
another, and each waits until the broker has its batch; in turns with lists of numbers and in the
compact form. In turns with them one process publishes rollouts of the same arrays from 64
coroutines, as many as the others have on their way. The first second of each turn is not counted.
Processor time is that of the gateway alone, and of the producer alone: it says the same on a
machine that does other things as well.

``python -m benchmarks.gateway --tenants``: four processes post a durable step a call, in turns
alone and beside 64 connections of another token that announce 4 MiB each and send nothing. It
prints the 99th percentile of the answers' times, and the share of calls that were answered 200.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import http.client
import itertools
import re
import secrets
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import orjson
import psutil

from benchmarks.one_round import Child, child
from benchmarks.systems.interface import START_TIMEOUT_S, STOP_TIMEOUT_S
from benchmarks.systems.kafka_broker import fresh_kafka
from benchmarks.workload import ENVIRONMENT
from rollstream.console.broker.child import BoundChild
from rollstream.consumers import create_deployment
from rollstream.producers import AsyncRolloutProducer
from rollstream.runtime.config.load import load_config

CLIENTS, BATCH = 4, 16
PROMPT_TOKENS = 128
RESPONSE_TOKENS = (128, 256)
FORMS = ("lists", "compact")
WARM_UP_S = 1.0
VOCABULARY = 150_000
POLICY = {"policy_version": "step-1", "weight_step": 1}
SILENT_CONNECTIONS, SILENT_BYTES = 64, 4 * 1024 * 1024
SILENT = "silent"  # Their environment.
LISTENING = re.compile(r"listening on http://([\w.:]+),")


class Turn(NamedTuple):
    """Steps a second that were answered, and processor time of a step, in microseconds."""

    rate: float
    cpu_us: float


def main() -> None:
    arguments = _arguments()
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="bench-gateway-") as name, ExitStack() as stack:
        folder = Path(name)
        kafka = stack.enter_context(fresh_kafka(folder))
        address, pid = stack.enter_context(_gateway(folder, kafka.bootstrap, token))
        if arguments.tenants:
            print(_beside_silent_clients(address, token, arguments, stack))
            return
        http = [
            stack.enter_context(child(f"client-{number}", _post, (address, token)))
            for number in range(CLIENTS)
        ]
        direct = [stack.enter_context(child("producer", _publish, (kafka.bootstrap,)))]
        turns: dict[tuple[int, str], list[Turn]] = {}
        producer_pid = direct[0].process.pid
        assert producer_pid is not None
        for _, tokens in itertools.product(range(arguments.rounds), RESPONSE_TOKENS):
            for form in (*FORMS, "producer"):
                children, process = (direct, producer_pid) if form == "producer" else (http, pid)
                turn = _turn(children, process, (arguments.seconds, tokens, form))
                turns.setdefault((tokens, form), []).append(turn)
        for one in (*http, *direct):
            one.pipe.send(None)
            one.process.join(STOP_TIMEOUT_S)
    print(_report(turns))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each turn")
    parser.add_argument("--tenants", action="store_true", help="beside clients that send nothing")
    return parser.parse_args()


def _turn(children: list[Child], pid: int, wanted: tuple[float, int, str]) -> Turn:
    before = psutil.Process(pid).cpu_times()
    for one in children:
        one.pipe.send(wanted)
    counts = [one.receive(START_TIMEOUT_S + wanted[0]) for one in children]
    after = psutil.Process(pid).cpu_times()
    used_s = after.user + after.system - before.user - before.system
    return Turn(sum(rate for rate, _ in counts), 1e6 * used_s / sum(total for _, total in counts))


@contextmanager
def _gateway(folder: Path, bootstrap: str, token: str) -> Iterator[tuple[str, int]]:
    """Yields its host and port, and its process."""
    config, log = folder / "rollstream.toml", folder / "gateway.log"
    config.write_text(
        f'[kafka]\nbootstrap = "{bootstrap}"\n[store]\nroot = "{(folder / "store").as_uri()}"\n'
        f"[environments.{ENVIRONMENT}]\n[environments.{SILENT}]\n"
        f'[gateway.tokens]\n{ENVIRONMENT} = ["{token}"]\n{SILENT} = ["{SILENT}-{token}"]\n'
    )
    create_deployment(load_config(config), timeout_s=START_TIMEOUT_S)
    program = Path(sys.executable).with_name("rollstream")
    command = [str(program), "gateway", "--config", str(config), "--port", "0"]
    gateway = BoundChild(command, cwd=folder, output=log)
    try:
        until = time.monotonic() + START_TIMEOUT_S
        while not (found := LISTENING.search(log.read_text())):
            if time.monotonic() > until:
                raise TimeoutError(f"the gateway does not listen: {log.read_text()}")
            time.sleep(0.05)
        yield found[1], gateway.pid
    finally:
        gateway.signal(signal.SIGTERM)
        if gateway.wait(STOP_TIMEOUT_S) is None:
            gateway.signal(signal.SIGKILL)


def _post(address: str, token: str, pipe: Connection) -> None:
    """A client: posts batches for as long as it is told, and sends back its rate."""
    path = f"/v1/environments/{ENVIRONMENT}/steps?durable=true"
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    uid = uuid4().hex
    numbers = itertools.count()
    while (wanted := pipe.recv()) is not None:
        seconds, tokens, form = wanted
        step = {**_sent(_arrays(tokens), form), **POLICY}
        connection = http.client.HTTPConnection(address, timeout=START_TIMEOUT_S)
        counted = total = 0
        begun_s, end_s = None, time.monotonic() + WARM_UP_S + seconds
        while (now_s := time.monotonic()) < end_s:
            if begun_s is None and now_s >= end_s - seconds:
                counted, begun_s = 0, now_s
            steps = [
                {**step, "trajectory_uid": f"{uid}-{number}", "prompt_uid": f"{uid}-{number // 8}"}
                | {"step_index": 0, "n_rollouts": 8, "is_last": True, "reward": 1.0}
                for number in itertools.islice(numbers, BATCH)
            ]
            connection.request("POST", path, orjson.dumps({"steps": steps}), headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
            counted += BATCH
            total += BATCH
        connection.close()
        assert begun_s is not None
        pipe.send((counted / (time.monotonic() - begun_s), total))


def _beside_silent_clients(
    address: str, token: str, arguments: argparse.Namespace, stack: ExitStack
) -> str:
    children = [
        stack.enter_context(child(f"client-{number}", _post_singly, (address, token)))
        for number in range(CLIENTS)
    ]
    calls: dict[str, list[tuple[float, int]]] = {"alone": [], "beside them": []}
    ratios = []
    for _ in range(arguments.rounds):
        p99_ms = []
        for name, kept in calls.items():
            with ExitStack() as silent:
                if name != "alone":
                    silent.enter_context(_silent_connections(address, f"{SILENT}-{token}"))
                for one in children:
                    one.pipe.send(arguments.seconds)
                found = [
                    call
                    for one in children
                    for call in one.receive(START_TIMEOUT_S + arguments.seconds)
                ]
            p99_ms.append(_p99_ms(found))
            kept.extend(found)
        ratios.append(p99_ms[1] / p99_ms[0])
    for one in children:
        one.pipe.send(None)
        one.process.join(STOP_TIMEOUT_S)
    lines = [f"{'':12}{'calls':>10}{'answered 200':>14}{'p99 ms':>10}"]
    for name, kept in calls.items():
        answered = sum(status == 200 for _, status in kept) / len(kept)
        lines.append(f"{name:12}{len(kept):10,}{answered:14.2%}{_p99_ms(kept):10.1f}")
    lines.append(f"p99 beside them / alone, median of {len(ratios)}: {np.median(ratios):.2f}")
    return "\n".join(lines)


def _p99_ms(calls: list[tuple[float, int]]) -> float:
    return 1e3 * float(np.percentile([took_s for took_s, _ in calls], 99))


@contextmanager
def _silent_connections(address: str, token: str) -> Iterator[None]:
    """Keeps them open; one that is closed is opened again."""
    host, port = address.rsplit(":", 1)
    head = (
        f"POST /v1/environments/{SILENT}/steps HTTP/1.1\r\nHost: {address}\r\n"
        f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {SILENT_BYTES}\r\n\r\n{{"
    ).encode()

    def opened() -> socket.socket:
        connection = socket.create_connection((host, int(port)), START_TIMEOUT_S)
        connection.sendall(head)
        return connection

    connections = [opened() for _ in range(SILENT_CONNECTIONS)]
    ending = threading.Event()

    def reopen() -> None:
        while not ending.is_set():
            answered, _, _ = select.select(connections, [], [], 0.1)
            for one in answered:
                if not one.recv(65_536):
                    one.close()
                    connections[connections.index(one)] = opened()

    reopening = threading.Thread(target=reopen)
    reopening.start()
    try:
        yield
    finally:
        ending.set()
        reopening.join(STOP_TIMEOUT_S)
        for one in connections:
            one.close()


def _post_singly(address: str, token: str, pipe: Connection) -> None:
    """A client: posts a step a call for so many seconds, and sends back times and statuses."""
    path = f"/v1/environments/{ENVIRONMENT}/steps?durable=true"
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    step = {**_sent(_arrays(RESPONSE_TOKENS[0]), "compact"), **POLICY, "step_index": 0}
    step |= {"n_rollouts": 1, "is_last": True, "reward": 1.0}
    uid, numbers = uuid4().hex, itertools.count()
    while (seconds := pipe.recv()) is not None:
        connection = http.client.HTTPConnection(address, timeout=START_TIMEOUT_S)
        calls, begun_s = [], time.monotonic()
        while (sent_s := time.monotonic()) < begun_s + WARM_UP_S + seconds:
            name = f"{uid}-{next(numbers)}"
            steps = [{**step, "trajectory_uid": name, "prompt_uid": name}]
            connection.request("POST", path, orjson.dumps({"steps": steps}), headers)
            answer = connection.getresponse()
            answer.read()
            if sent_s >= begun_s + WARM_UP_S:
                calls.append((time.monotonic() - sent_s, answer.status))
        connection.close()
        pipe.send(calls)


def _publish(bootstrap: str, pipe: Connection) -> None:
    """The same without HTTP, from coroutines of one process."""
    while (wanted := pipe.recv()) is not None:
        pipe.send(asyncio.run(_publish_for(bootstrap, *wanted[:2])))


async def _publish_for(bootstrap: str, seconds: float, tokens: int) -> tuple[float, int]:
    end_s = time.monotonic() + WARM_UP_S + seconds
    arrays, uid, numbers, counted = _arrays(tokens), uuid4().hex, itertools.count(), 0

    async def work(producer: AsyncRolloutProducer) -> None:
        nonlocal counted
        while (now_s := time.monotonic()) < end_s:
            number = next(numbers)
            await producer.publish(
                example_id=f"{uid}-{number // 8}",
                group_uid=f"{uid}-{number // 8}",
                rollout_uid=f"{uid}-{number}",
                group_size=8,
                reward=1.0,
                **POLICY,  # type: ignore[arg-type]
                **arrays,
            )
            counted += now_s >= end_s - seconds

    async with AsyncRolloutProducer(bootstrap, environment=ENVIRONMENT) as producer:
        await asyncio.gather(*(work(producer) for _ in range(CLIENTS * BATCH)))
    return counted / seconds, next(numbers)


def _arrays(response_tokens: int) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    return {
        "prompt_tokens": rng.integers(0, VOCABULARY, PROMPT_TOKENS, dtype=np.int32),
        "output_tokens": rng.integers(0, VOCABULARY, response_tokens, dtype=np.int32),
        "logprobs": -rng.random(response_tokens, dtype=np.float32),
    }


def _sent(arrays: dict[str, Any], form: str) -> dict[str, Any]:
    """The same in a step's fields."""
    named = zip(("prompt_ids", "response_ids", "logprobs"), arrays.values(), strict=True)
    if form == "lists":
        return {name: array.tolist() for name, array in named}
    return {
        name: {"dtype": str(array.dtype), "base64": base64.b64encode(array).decode()}
        for name, array in named
    }


def _report(turns: dict[tuple[int, str], list[Turn]]) -> str:
    head = f"{'response':>8} {'form':10}{'p50':>10}{'least':>10}{'most':>10}{'cpu us/step':>14}"
    lines = [f"{head}{'of producer, p50':>18}{'least':>8}"]
    for (tokens, form), each in turns.items():
        rates, cpu = [one.rate for one in each], np.median([one.cpu_us for one in each])
        pairs = zip(each, turns[tokens, "producer"], strict=True)
        ratios = [one.rate / producer.rate for one, producer in pairs]
        numbers = f"{np.median(rates):10,.0f}{min(rates):10,.0f}{max(rates):10,.0f}{cpu:14.0f}"
        of_producer = f"{np.median(ratios):18.2f}{min(ratios):8.2f}"
        lines.append(f"{tokens:8} {form:10}{numbers}{of_producer}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
