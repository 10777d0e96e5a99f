"""What docs/operating/access_rights.md grants a verifier suffices on a Kafka with ACLs."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from harness.kafka import HEAP_MIB, REQUEST_TIMEOUT_S, START_TIMEOUT_S
from harness.sealing import TIMEOUT_S, SealWorld
from rollstream.console.broker import EmbeddedKafka
from rollstream.consumers import SealedGroups
from rollstream.producers import ScoreProducer
from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import TopicPartition
from rollstream.streams.reading import bounds_in_time

READER = "checker"
ME, NOBODY = "User:ANONYMOUS", "User:nobody"
# What has no ACL is everybody's: so a deployment is made first, and restricted afterwards.
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("kafka-with-acls")
    kafka = EmbeddedKafka(folder, heap_mib=HEAP_MIB, overrides=AUTHORIZER)
    with kafka.start(START_TIMEOUT_S):
        yield kafka.bootstrap


def rule(
    kind: ResourceType,
    name: str,
    pattern: ResourcePatternType,
    operation: AclOperation,
    principal: str = ME,
) -> AclBinding:
    allow = AclPermissionType.ALLOW
    return AclBinding(kind, name, pattern, principal, "*", operation, allow)


def restrict(world: SealWorld, bootstrap: str, positions: Collection[AclOperation]) -> None:
    """From now on a verifier's rights are all that there are."""
    layout, prefix = world.layout, f"{world.layout.namespace}."
    admin = AdminClient({"bootstrap.servers": bootstrap})
    bindings = [
        rule(TOPIC, layout.groups("math"), LITERAL, READ),
        rule(TOPIC, layout.scores("math"), LITERAL, WRITE),
        *(rule(TOPIC, layout.positions("math"), LITERAL, one) for one in positions),
        rule(GROUP, layout.reader_group(READER), LITERAL, READ),
        rule(GROUP, "rollstream-reader-", PREFIXED, DESCRIBE),
        rule(TOPIC, prefix, PREFIXED, READ, NOBODY),
        rule(GROUP, prefix, PREFIXED, READ, NOBODY),
    ]
    for created in admin.create_acls(bindings, request_timeout=REQUEST_TIMEOUT_S).values():
        created.result(REQUEST_TIMEOUT_S)


@pytest.fixture
def world(bootstrap: str, tmp_path: Path) -> Iterator[SealWorld]:
    """With a sealed group in each partition."""
    with SealWorld(kafka=bootstrap, root=tmp_path) as world:
        for partition in range(2):
            for member in "ab":
                name = world.key_in(partition, "ex")
                world.publish(f"{name}-{member}", partition=partition, example_id=name)
        with world.sealer() as sealer:
            world.until(sealer)
        yield world


def read(world: SealWorld, expected: int) -> None:
    """So many groups are handed out, scored and committed."""
    with (
        SealedGroups(READER, ["math"], config=world.config) as groups,
        ScoreProducer(
            world.config.kafka.bootstrap,
            environment="math",
            scorer=READER,
            namespace=world.layout.namespace,
        ) as scorer,
    ):
        deadline, found = Deadline(TIMEOUT_S), 0
        while found < expected and not deadline.passed():
            for group in groups.poll(1.0):
                found += 1
                scorer.publish(rollout_uid=group.rollouts[0].rollout_uid, reward=1.0)
        found += len(groups.poll(2.0))
        scorer.flush()
        groups.commit()
    assert found == expected


def stored(world: SealWorld) -> int:
    """How many positions were written; whoever may read them may ask."""
    logs = [TopicPartition(world.layout.positions("math"), number) for number in range(2)]
    with closing(world.broker.reader({})) as reader:
        return sum(bounds_in_time(reader, log, Deadline(TIMEOUT_S))[1] for log in logs)


def test_a_verifier_with_the_rights_of_the_table_stores_its_positions(
    world: SealWorld, bootstrap: str, caplog: pytest.LogCaptureFixture
) -> None:
    restrict(world, bootstrap, (READ, WRITE))
    with caplog.at_level(logging.WARNING, "rollstream"):
        read(world, 2)
        read(world, 0)
    assert not [one for one in caplog.messages if "not stored" in one]
    assert stored(world) == 2


@pytest.mark.parametrize("rights", [(), (READ,), (WRITE,)])
def test_without_a_right_on_positions_the_groups_are_read_and_the_log_says_so(
    world: SealWorld,
    bootstrap: str,
    rights: tuple[AclOperation, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    restrict(world, bootstrap, rights)
    with caplog.at_level(logging.WARNING, "rollstream"):
        read(world, 2)
        read(world, 0)
    told = [one for one in caplog.messages if f"Positions of reader {READER!r} are not" in one]
    assert told
    assert all(world.layout.positions("math") in one for one in told)
    assert all("ACL" in one or "does not exist" in one for one in told)
