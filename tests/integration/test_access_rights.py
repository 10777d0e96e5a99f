"""What docs/operating/access_rights.md grants a process suffices on a Kafka with ACLs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from harness.kafka import HEAP_MIB, REQUEST_TIMEOUT_S, START_TIMEOUT_S
from harness.producers import sampled
from harness.sealing import TIMEOUT_S, SealWorld
from rollstream.console.broker import EmbeddedKafka
from rollstream.consumers import SealedGroups
from rollstream.gateway import LateScores
from rollstream.producers import NoPolicy, RolloutProducer, ScoreProducer, Step, StepProducer
from rollstream.runtime.deadline import Deadline
from rollstream.sampler import Sampler
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
CONFIGS = AclOperation.DESCRIBE_CONFIGS
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


def restrict(
    world: SealWorld,
    bootstrap: str,
    topics: Mapping[str, Collection[AclOperation]],
    groups: Collection[str] = (),
) -> None:
    """From now on these rights, and everybody's, are all that there are."""
    prefix = f"{world.layout.namespace}."
    admin = AdminClient({"bootstrap.servers": bootstrap})
    bindings = [
        *(rule(TOPIC, name, LITERAL, one) for name, rights in topics.items() for one in rights),
        *(rule(GROUP, name, LITERAL, READ) for name in groups),
        rule(GROUP, "rollstream-reader-", PREFIXED, DESCRIBE),
        rule(TOPIC, prefix, PREFIXED, READ, NOBODY),
        rule(GROUP, prefix, PREFIXED, READ, NOBODY),
    ]
    for created in admin.create_acls(bindings, request_timeout=REQUEST_TIMEOUT_S).values():
        created.result(REQUEST_TIMEOUT_S)


def restrict_verifier(
    world: SealWorld, bootstrap: str, positions: Collection[AclOperation]
) -> None:
    layout = world.layout
    topics = {
        layout.groups("math"): (READ,),
        layout.scores("math"): (WRITE,),
        layout.positions("math"): positions,
    }
    restrict(world, bootstrap, topics, [layout.reader_group(READER)])


@pytest.fixture
def world(bootstrap: str, tmp_path: Path) -> Iterator[SealWorld]:
    """With a sealed group in each partition."""
    with SealWorld(kafka=bootstrap, root=tmp_path, samplers=["trainer"]) as world:
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
    restrict_verifier(world, bootstrap, (READ, WRITE))
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
    restrict_verifier(world, bootstrap, rights)
    with caplog.at_level(logging.WARNING, "rollstream"):
        read(world, 2)
        read(world, 0)
    told = [one for one in caplog.messages if f"Positions of reader {READER!r} are not" in one]
    assert told
    assert all(world.layout.positions("math") in one for one in told)
    assert all("ACL" in one or "does not exist" in one for one in told)


def test_a_worker_with_the_rights_of_the_table_dispatches_asks_and_submits_steps(
    world: SealWorld, bootstrap: str
) -> None:
    layout = world.layout
    topics = {
        layout.rollouts("math"): (WRITE,),
        layout.admission("math"): (READ,),
        layout.shares("math"): (READ,),
    }
    restrict(world, bootstrap, topics)
    with RolloutProducer(bootstrap, environment="math", namespace=layout.namespace) as producer:
        with producer.dispatch(example_id="ex", group_size=1) as group:
            group.publish(**sampled())
        producer.flush()
        with pytest.raises(NoPolicy):
            producer.policy(timeout_s=0.5)
    step = Step([1], [2], 1.0, "t", "p", 0, "step-1", 1, is_last=True, n_rollouts=1)
    with StepProducer(bootstrap, namespace=layout.namespace) as writer:
        writer.submit_step(step, environment="math")
        writer.flush()


def test_a_gateway_with_the_rights_of_the_table_scores(world: SealWorld, bootstrap: str) -> None:
    restrict(world, bootstrap, {world.layout.scores("math"): (WRITE,)})
    scores = LateScores(lambda: ScoreProducer(bootstrap, namespace=world.layout.namespace), 10.0)
    given = {"prompt_uid": "p", "reward": 1.0, "scorer": "tests"}
    with closing(scores):
        asyncio.run(scores.publish("t", environment="math", **given))


def test_a_sampler_with_the_rights_of_the_table_serves_and_announces(
    world: SealWorld, bootstrap: str
) -> None:
    layout, read = world.layout, (READ, CONFIGS)
    topics = {
        **dict.fromkeys(
            [of("math") for of in (layout.groups, layout.reports, layout.scores)], read
        ),
        layout.admission("math"): (WRITE, CONFIGS),
        layout.shares("math"): (READ, WRITE, CONFIGS),
        layout.sampler("trainer"): (READ, WRITE, CONFIGS),
    }
    restrict(world, bootstrap, topics)
    with closing(Sampler("trainer", config=world.config)) as sampler:
        sampler.resume(None)
        sampler.publish_policy(0, policy_version="step-0")
        sampler.next_batch(0, 2)
    restrict(world, bootstrap, {layout.admission("math"): (READ,)})
    restrict(world, bootstrap, {layout.rollouts("math"): (WRITE,)})
    with RolloutProducer(bootstrap, environment="math", namespace=layout.namespace) as producer:
        assert producer.policy().version == "step-0"
