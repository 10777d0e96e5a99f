"""Faults that are made for real: each alert turns true while they last, and false afterwards.

Asked are the expressions of ``deploy/prometheus/alerts.yml``, in a Prometheus that scrapes
``rollstream monitor``, a sealer, a gateway and samplers.
"""

from __future__ import annotations

import os
import resource
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as Records
from confluent_kafka.admin import AdminClient

from harness.alerted import Alerted, limited, rollout
from harness.backup import Backup
from harness.halting import halted
from harness.kafka import REQUEST_TIMEOUT_S, topics_deleted_after
from harness.newer_records import NEWER_HEADERS, NEWER_PREFIX, newer
from harness.raw_connections import connection
from harness.rollouts import encode_record, make_entry
from harness.s3_server import S3Server
from rollstream.console.broker import EmbeddedKafka
from rollstream.producers import DeliveryFailed, RolloutProducer, ScoreProducer, serve_metrics
from rollstream.runtime.deadline import Deadline
from rollstream.status.verdict import QUIET_S
from rollstream.store import hand_root_over, open_store, read_root_id
from rollstream.streams.broker import Headers
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.topics.layout import Layout

pytestmark = pytest.mark.broker
ENVIRONMENT, SPARE = "math", "spare"
SERVED_S = 60.0
JOINS_S = 30.0
SEALS = 'rollstream_ready{part="sealer"}'
DECIDED = f'rollstream_sealer_decided_entries{{environment="{ENVIRONMENT}"}} > bool 0'


@pytest.fixture
def bare(kafka: EmbeddedKafka, s3: S3Server, tmp_path: Path) -> Iterator[Alerted]:
    """Nothing of it exists so far but the monitor."""
    with topics_deleted_after(kafka.bootstrap), Alerted(kafka, s3, tmp_path) as made:
        made.start_monitor()
        yield made


@pytest.fixture(scope="module")
def hurt(
    kafka: EmbeddedKafka, s3: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Alerted]:
    """All of it runs."""
    folder = tmp_path_factory.mktemp("alerted")
    with topics_deleted_after(kafka.bootstrap), Alerted(kafka, s3, folder) as made:
        made.run("topics", "create")
        made.start_sealer()
        made.start_monitor()
        made.start_gateway()
        shown = made.sampler("shown")
        shown.resume(None)
        shown.finish()
        made.publish(ENVIRONMENT)
        yield made


def test_a_deployment_of_which_the_next_part_is_always_missing(bare: Alerted) -> None:
    asked = bare.prometheus
    asked.until_true("RollstreamMissingTopics")
    bare.run("topics", "create")
    asked.until_true("RollstreamNeverPublished")
    asked.until_false("RollstreamMissingTopics")
    bare.publish(ENVIRONMENT)
    asked.until_true("RollstreamNoSealer")
    asked.until_false("RollstreamNeverPublished")
    bare.start_sealer()
    asked.until_false("RollstreamNoSealer")


@contextmanager
def sealer_killed(world: Alerted) -> Iterator[None]:
    """-9; rollouts go on to come."""
    world.kill("sealer")
    world.publish(ENVIRONMENT)
    yield
    world.start_sealer()


@contextmanager
def sealer_of_another_environment(world: Alerted) -> Iterator[None]:
    """Only one runs, whose configuration lacks this one."""
    world.kill("sealer")
    world.start_sealer(of_another=True)
    world.publish(ENVIRONMENT)
    yield
    world.kill("sealer")
    world.start_sealer()


@contextmanager
def newer_producer(world: Alerted) -> Iterator[None]:
    """It writes what this version cannot read, until a sealer is told to go on without it."""
    value = newer(encode_record([make_entry()], partitions=1))
    _append(world, Layout.of(world.config.kafka).rollouts(ENVIRONMENT), value, NEWER_HEADERS)
    yield
    world.kill("sealer")
    world.start_sealer("--dead-letter")
    world.publish(ENVIRONMENT, 40)  # The dead letter is a small share of what is settled.


@contextmanager
def records_deleted(world: Alerted) -> Iterator[None]:
    """Retention deletes what nobody has sealed."""
    world.kill("sealer")
    world.publish(ENVIRONMENT, 3)
    _delete_records(world, Layout.of(world.config.kafka).rollouts(ENVIRONMENT))
    yield
    world.start_sealer()


def _delete_records(world: Alerted, topic: str) -> None:
    log = Records(topic, 0, -1)
    admin = AdminClient({"bootstrap.servers": world.kafka.bootstrap})
    admin.delete_records([log])[log].result(REQUEST_TIMEOUT_S)


@contextmanager
def store_hangs(world: Alerted) -> Iterator[None]:
    """It takes connections and answers nothing."""
    with halted(world.s3.pid):
        world.publish(ENVIRONMENT)
        yield


@contextmanager
def disk_full(world: Alerted) -> Iterator[None]:
    """The server of the store can write no byte more."""
    with limited(world.s3.pid, resource.RLIMIT_FSIZE, 0):
        world.publish(ENVIRONMENT)
        yield


@contextmanager
def unreadable(world: Alerted) -> Iterator[None]:
    """A producer writes what is no record of ours, more than a tenth of what the faults before
    published within a minute, until others write more."""
    _append(world, Layout.of(world.config.kafka).rollouts(ENVIRONMENT), b"no record", times=20)
    yield
    world.publish(ENVIRONMENT, 200)


@contextmanager
def stranger(world: Alerted) -> Iterator[None]:
    """Somebody else writes to a seal log."""
    _append(world, Layout.of(world.config.kafka).groups(ENVIRONMENT), b"no event")
    world.publish(ENVIRONMENT)
    yield


def _append(
    world: Alerted, topic: str, value: bytes, headers: Headers = (), times: int = 1
) -> None:
    with KafkaBroker(world.kafka.bootstrap) as broker:
        writer = broker.writer()
        for _ in range(times):
            writer.append(topic, value, partition=0, headers=headers)
        assert writer.flush(REQUEST_TIMEOUT_S) == 0


@contextmanager
def files_open(world: Alerted) -> Iterator[None]:
    """The sealer may have hardly more files open than it has."""
    pid = world.pid("sealer")
    with limited(pid, resource.RLIMIT_NOFILE, len(os.listdir(f"/proc/{pid}/fd")) + 4):
        yield


@contextmanager
def gateway_full(world: Alerted) -> Iterator[None]:
    """Connections stay open."""
    with ExitStack() as opened:
        for _ in range(world.config.gateway.max_connections):
            opened.enter_context(connection(world.ports["calls"]))
        yield


@contextmanager
def trainer_holds_batches(world: Alerted) -> Iterator[None]:
    """It acks nothing, and never saves."""
    world.publish(ENVIRONMENT)
    trainer = world.sampler("slow")
    trainer.resume(None)
    batch = trainer.next_batch(0, 1, timeout_s=SERVED_S)
    yield
    trainer.ack(batch)
    trainer.checkpointed(0)
    trainer.finish()


@contextmanager
def broker_stopped(world: Alerted) -> Iterator[None]:
    """Kafka answers nothing, and a worker gives its rollouts up."""
    kafka = world.config.kafka
    hasty = KafkaBroker(kafka.bootstrap, {"message.timeout.ms": "3000"})
    producer = RolloutProducer(broker=hasty, environment=ENVIRONMENT, namespace=kafka.namespace)
    with hasty, ExitStack() as away:
        away.callback(serve_metrics(producer, port=world.ports["here"]))
        with halted(world.s3.pid):  # The sealer has read the group when nobody takes its event.
            producer.publish(**rollout(), reward=1.0)
            producer.flush()
            world.prometheus.value(DECIDED, 1)
            away.enter_context(halted(world.kafka.pid))
        producer.publish(**rollout(), reward=1.0)
        yield
        with pytest.raises(DeliveryFailed):
            producer.close()


@contextmanager
def root_of_another(world: Alerted) -> Iterator[None]:
    """The store's root is given to another deployment."""
    store = open_store(world.config.store)
    mine = read_root_id(store)
    hand_root_over(store, mine._replace(namespace="another"))
    yield
    hand_root_over(store, mine)


@contextmanager
def sealer_reads_another(world: Alerted) -> Iterator[None]:
    """The only member of the sealers' group reads the topic of another environment."""
    layout = Layout.of(world.config.kafka)
    group, topics = layout.sealer_group(ENVIRONMENT), [layout.rollouts(SPARE)]
    world.kill("sealer")
    world.publish(ENVIRONMENT)
    deadline = Deadline(JOINS_S)
    with (
        KafkaBroker(world.kafka.bootstrap) as broker,
        closing(broker.group_reader(group, topics, on_revoked=lambda _: None)) as reader,
    ):
        while not reader.assigned():
            assert not deadline.passed(), f"nothing of {topics} is assigned"
            reader.poll(1, deadline.slice_s(1.0))
        yield
    world.start_sealer()


@contextmanager
def memory_used_up(world: Alerted) -> Iterator[None]:
    """A group waits for a member in a sealer that may use next to no memory."""
    world.kill("sealer")
    world.start_sealer(ROLLSTREAM_SEALERS__MEMORY_BYTES="1")
    kafka, group = world.config.kafka, {"group_uid": uuid.uuid4().hex, "group_size": 2}
    with RolloutProducer(
        kafka.bootstrap, environment=ENVIRONMENT, namespace=kafka.namespace
    ) as producer:
        member = rollout() | group
        producer.publish(**member, reward=1.0)
        yield
        producer.publish(**member, reward=1.0)
    world.kill("sealer")
    world.start_sealer()


@contextmanager
def decisions_lost(world: Alerted) -> Iterator[None]:
    """Kafka's disk loses what a sampler decided, until the log is restored."""
    world.publish(ENVIRONMENT)
    with world.sampler("lost") as trainer:
        trainer.resume(None)
        trainer.ack(trainer.next_batch(0, 1, timeout_s=SERVED_S))
        trainer.checkpointed(0)
        trainer.finish()
    log = Backup.of(world.kafka.bootstrap, Layout.of(world.config.kafka).sampler("lost"))
    log.lose()
    yield
    log.restore()


@contextmanager
def decisions_of_newer(world: Alerted) -> Iterator[None]:
    """A newer version writes to a decision log, until that is restored."""
    topic = Layout.of(world.config.kafka).sampler("damaged")
    log = Backup.of(world.kafka.bootstrap, topic)
    _append(world, topic, NEWER_PREFIX)
    yield
    log.restore()


@contextmanager
def seal_log_of_newer(world: Alerted) -> Iterator[None]:
    """A newer version writes to a seal log that a sampler reads, until that is restored."""
    topic = Layout.of(world.config.kafka).groups(SPARE)
    world.kill("sealer")
    log = Backup.of(world.kafka.bootstrap, topic)
    _append(world, topic, NEWER_PREFIX)
    with world.sampler("aside") as sampler:
        sampler.resume(None)
        yield
        sampler.finish()
    log.restore()
    world.start_sealer()


@contextmanager
def scores_deleted(world: Alerted) -> Iterator[None]:
    """Retention deletes scores that no file has, until their log is made anew."""
    kafka = world.config.kafka
    topic = Layout.of(kafka).scores(SPARE)
    world.kill("sealer")
    log = Backup.of(kafka.bootstrap, topic)
    with ScoreProducer(
        kafka.bootstrap, environment=SPARE, scorer="verifier", namespace=kafka.namespace
    ) as scores:
        scores.publish(rollout_uid="nobody", reward=0.0)
        scores.flush()
        _delete_records(world, topic)
        scores.publish(rollout_uid="nobody", reward=1.0)
    world.start_sealer()
    yield
    world.kill("sealer")
    log.restore()
    world.start_sealer()


@contextmanager
def trainer_away(world: Alerted) -> Iterator[None]:
    """It closed, and a worker waits to begin a group until it is back."""
    kafka = world.config.kafka
    with world.sampler("away") as trainer:
        trainer.resume(None)
        trainer.publish_policy(0, policy_version="step-0")
    producer = RolloutProducer(kafka.bootstrap, environment=SPARE, namespace=kafka.namespace)

    def work() -> None:
        with producer.dispatch(example_id="one", group_size=1, timeout_s=SERVED_S):
            pass

    with producer, ThreadPoolExecutor(1) as pool:
        begins = pool.submit(work)
        yield
        with world.sampler("away") as trainer:
            trainer.resume(None)
            trainer.publish_policy(0, policy_version="step-0")
            begins.result(SERVED_S)
            trainer.finish()


Fault = Callable[[Alerted], AbstractContextManager[None]]
FAULTS: dict[Fault, tuple[str, ...]] = {
    sealer_killed: ("RollstreamDown", "RollstreamNoSealer"),
    sealer_of_another_environment: ("RollstreamUnknownToSealers",),
    newer_producer: ("RollstreamPutAside",),
    records_deleted: ("RollstreamRecordsLost",),
    store_hangs: (
        "RollstreamOtherRoot",
        "RollstreamSealsNothing",
        "RollstreamStalled",
        "RollstreamStoreFails",
        "RollstreamStoreSlow",
    ),
    disk_full: ("RollstreamSealsNothing", "RollstreamStoreFails"),
    unreadable: ("RollstreamUnreadableShare", "RollstreamDeadLetters"),
    stranger: ("RollstreamForeignRecords",),
    files_open: ("RollstreamFiles",),
    gateway_full: ("RollstreamGatewayFull",),
    trainer_holds_batches: ("RollstreamOpenBatches", "RollstreamNotAcked"),
    broker_stopped: (
        "RollstreamMonitorBlind",
        "RollstreamNotReady",
        "RollstreamBrokerFails",
        "RollstreamNotDelivered",
    ),
    root_of_another: ("RollstreamForeignRoot",),
    sealer_reads_another: ("RollstreamHeldByNoSealer",),
    memory_used_up: ("RollstreamSealerMemory",),
    decisions_lost: ("RollstreamDecisionsLost",),
    decisions_of_newer: ("RollstreamDecisionsUnreadable",),
    seal_log_of_newer: ("RollstreamSamplerLogAside",),
    scores_deleted: ("RollstreamFailsBeside", "RollstreamScoresAside"),
    trainer_away: ("RollstreamNoShares",),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_an_alert_is_true_while_a_fault_lasts(hurt: Alerted, fault: Fault) -> None:
    asked, alerts = hurt.prometheus, FAULTS[fault]
    asked.value(SEALS, 1)
    asked.until_false(*alerts)
    with fault(hurt):
        asked.until_true(*alerts)
    asked.until_false(*alerts)


def test_everybody_falls_silent(hurt: Alerted) -> None:
    alerts = (
        "RollstreamNothingPublished",
        "RollstreamTrainerSilent",
        "RollstreamNotServed",
        "RollstreamUnscored",
        "RollstreamUnservable",
        "RollstreamOverCapacity",
    )
    asked, scored = hurt.prometheus, hurt.sampler("unscored")
    asked.value(SEALS, 1)
    asked.until_false(*alerts)
    hungry, hung, idle = (hurt.sampler(name) for name in ("hungry", "hung", "idle"))
    other, full = hurt.sampler("other"), hurt.sampler("full")
    for sampler in (scored, hungry, hung, idle, other, full):
        sampler.resume(None)
    hurt.publish("quiet", 2)
    uids = hurt.publish("scored", 3, reward=None)
    hungry.ack(hungry.next_batch(0, 2, timeout_s=SERVED_S))
    left = hung.next_batch(0, 2, timeout_s=SERVED_S)
    idle.ack(idle.next_batch(0, 1, timeout_s=SERVED_S))
    asked.until_true(*alerts, after_s=QUIET_S)
    other.finish()
    full.finish()
    hung.ack(left)
    idle.ack(idle.next_batch(1, 1, timeout_s=SERVED_S))
    hurt.publish("quiet", 2)
    hungry.ack(hungry.next_batch(1, 2, timeout_s=SERVED_S))
    kafka = hurt.config.kafka
    with ScoreProducer(
        kafka.bootstrap, environment="scored", scorer="verifier", namespace=kafka.namespace
    ) as scores:
        scores.publish(rollout_uid=uids[0], reward=1.0)
    scored.ack(scored.next_batch(0, 1, timeout_s=SERVED_S))
    asked.until_false(*alerts)
