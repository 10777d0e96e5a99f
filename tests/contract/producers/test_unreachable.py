"""A real broker that is not there, or not any more; and a process that is forked off."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from harness.brokers import TIMEOUT_S, nobody_listens
from harness.kafka import KafkaFactory
from harness.producers import new_layout, published, sampled, segments_of
from rollstream.producers import (
    AsyncRolloutProducer,
    DeliveryFailed,
    FlushTimedOut,
    ForkedProducer,
    RolloutProducer,
)
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.kafka import KafkaBroker

SHORT_S = 0.5
KNOWN_S = 3.0  # A client knows by then that nobody listens.
ANSWER_S = 5.0  # A broker that is there answers by then.


@pytest.fixture
def address() -> Iterator[str]:
    """Where nobody listens."""
    with nobody_listens() as nobody:
        yield nobody


@pytest.mark.proves("F17")
def test_a_publish_that_finds_no_broker_says_so_within_the_deadline(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    with RolloutProducer(address, environment="math", timeout_s=KNOWN_S) as producer:
        with pytest.raises(BrokerUnavailable, match=rf"{address} did not say within 3 s .* check"):
            producer.publish(example_id="ex", **sampled())
        # While it waited, not only when it gave up.
        assert f"Kafka at {address} cannot be reached" in caplog.text


def test_an_awaited_publish_that_finds_no_broker_says_so_within_the_deadline(address: str) -> None:
    async def scenario() -> None:
        async with AsyncRolloutProducer(address, environment="math", timeout_s=SHORT_S) as producer:
            with pytest.raises(BrokerUnavailable, match=rf"{address} did not say within 0\.5 s"):
                await producer.publish(example_id="ex", **sampled())

    asyncio.run(scenario())


@pytest.mark.proves("F17")
def test_a_dispatch_that_finds_no_broker_ends_by_its_own_deadline(address: str) -> None:
    long_s = 1000 * SHORT_S
    unanswered = pytest.raises(BrokerUnavailable, match=rf"within {SHORT_S:g} s .*topic")
    producer = RolloutProducer(address, environment="math", timeout_s=long_s)
    with unanswered, producer.dispatch(example_id="ex", group_size=1, timeout_s=SHORT_S):
        pass
    producer.close()

    async def work() -> None:
        async with AsyncRolloutProducer(address, environment="math", timeout_s=long_s) as awaited:
            with unanswered:
                async with awaited.dispatch(example_id="ex", group_size=1, timeout_s=SHORT_S):
                    pass

    asyncio.run(work())


@pytest.mark.broker
@pytest.mark.proves("F1")
def test_what_a_killed_broker_did_not_take_is_named(own_kafka: KafkaFactory) -> None:
    kafka = own_kafka()
    layout = new_layout(KafkaBroker(kafka.bootstrap))
    producer = RolloutProducer(
        kafka.bootstrap, environment="math", namespace=layout.namespace, timeout_s=ANSWER_S
    )
    producer.publish(example_id="ex", **sampled())
    producer.flush(TIMEOUT_S)
    kafka.kill()
    uids = [producer.publish(example_id="ex", **sampled()) for _ in range(3)]
    with pytest.raises(FlushTimedOut, match=f"3 rollouts .* {kafka.bootstrap}") as late:
        producer.flush(SHORT_S)
    assert late.value.outstanding == 3
    with pytest.raises(DeliveryFailed) as failed:
        producer.close()
    assert sorted(failed.value.uids) == sorted(uids)


PROGRAM = """
import sys
from rollstream.producers import RolloutProducer

producer = RolloutProducer(sys.argv[1], environment="math", namespace=sys.argv[2])
producer.publish(example_id="ex", policy_version="v", weight_step=1, output_tokens=[1], reward=1.0)
"""


@pytest.mark.broker
def test_what_a_process_published_that_never_closed_is_in_the_log(kafka_bootstrap: str) -> None:
    broker = KafkaBroker(kafka_bootstrap)
    layout = new_layout(broker)
    command = [sys.executable, "-c", PROGRAM, kafka_bootstrap, layout.namespace]
    process = subprocess.run(command, timeout=TIMEOUT_S, check=False, capture_output=True)
    assert (process.returncode, process.stderr) == (0, b"")
    assert len(segments_of(published(broker, layout))) == 1
    broker.close()


ASKING = {
    "sync": """
import sys
from rollstream.producers import NoPolicy, RolloutProducer

producer = RolloutProducer(sys.argv[1], environment="math", namespace=sys.argv[2])
try:
    producer.policy(timeout_s=0.5)
except NoPolicy:
    print("none")
""",
    "async": """
import asyncio, sys
from rollstream.producers import AsyncRolloutProducer, NoPolicy

async def ask():
    producer = AsyncRolloutProducer(sys.argv[1], environment="math", namespace=sys.argv[2])
    try:
        await producer.policy(timeout_s=0.5)
    except NoPolicy:
        print("none")
    return producer

producer = asyncio.run(ask())
""",
}


@pytest.mark.broker
@pytest.mark.parametrize("kind", ASKING)
def test_a_process_that_follows_policies_and_never_closed_ends(
    kafka_bootstrap: str, kind: str
) -> None:
    with KafkaBroker(kafka_bootstrap) as broker:
        layout = new_layout(broker)
    command = [sys.executable, "-c", ASKING[kind], kafka_bootstrap, layout.namespace]
    process = subprocess.run(command, timeout=TIMEOUT_S, check=False, capture_output=True)
    assert (process.returncode, process.stdout, process.stderr) == (0, b"none\n", b"")


@pytest.mark.broker
def test_a_forked_child_is_told_and_the_parent_goes_on(kafka_bootstrap: str) -> None:
    broker = KafkaBroker(kafka_bootstrap)
    layout = new_layout(broker)
    with RolloutProducer(
        kafka_bootstrap, environment="math", namespace=layout.namespace
    ) as producer:
        producer.publish(example_id="ex", **sampled())
        child = os.fork()
        if child == 0:
            _exit_with(0 if _refused(producer) else 1)
        assert _status_of(child) == 0
        producer.publish(example_id="ex", **sampled())
    assert len(segments_of(published(broker, layout))) == 2
    broker.close()


def _refused(producer: RolloutProducer) -> bool:
    """Whether calls in the child raise, and leaving its ``with`` block does not."""
    for call in (producer.policy, lambda: producer.publish(example_id="ex", **sampled())):
        try:
            call()
        except ForkedProducer:
            continue
        return False
    producer.close()
    return True


def _exit_with(status: int) -> None:
    os._exit(status)


def _status_of(child: int) -> int:
    for _ in range(3000):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -9
