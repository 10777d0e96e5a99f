"""Groups that a program has in hand become part of the data, each once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, NoReturn

import numpy as np
import pytest

from harness.beside_readers import BesideReaders
from harness.failing_blobs import PassingBlobs
from harness.importing import ImportWorld, group, rollout
from harness.kill_points import Armed, KillPoint, RetentionPoint, arm, arm_retention
from harness.sealing import Crash
from rollstream.consumers import (
    ImportUnfinished,
    InvalidGroup,
    NoDeployment,
    PartitionAudit,
    UnknownEnvironment,
    audit,
    write_rollout_groups,
)
from rollstream.consumers.importing.staged import StagedGroup, encode_staged
from rollstream.schemas.digest import checksum
from rollstream.schemas.ids import GroupKey, PartitionAddress, group_id
from rollstream.schemas.records import RolloutGroup, RolloutRecord
from rollstream.store import MemoryBlobs, StoreFull
from rollstream.store.layout import staged_path
from rollstream.streams.broker import Broker
from rollstream.streams.errors import RootMismatch

ADDRESS = PartitionAddress("math", 1, 0)


def figures_of(world: ImportWorld) -> PartitionAudit:
    report = audit(world.config, broker=world.broker, store=world.blobs, clock=world.clock)
    return report.environment("math")


def uids_of(groups: Sequence[RolloutGroup]) -> set[str]:
    return {one.rollout_uid for of in groups for one in of.rollouts}


@pytest.mark.proves("A9")
def test_imported_groups_are_served_and_counted_once() -> None:
    with ImportWorld() as world, world.leaving(world.sealer()) as sealer:
        world.seal_groups(0, 2, sealer=sealer)
        groups = [group(f"old-{number}") for number in range(6)]
        report = world.put_in(groups, sealer)
        assert (report.imported, report.skipped, report.details) == (6, 0, ())
        figures = figures_of(world)
        assert (figures.published, figures.imported, figures.sealed) == (4, 12, 16)
        assert world.problems() == []
        with world.sampler() as sampler:
            sampler.resume(None)
            batch = sampler.next_batch(0, 8, timeout_s=5.0)
            assert uids_of(groups) < {*batch.uids}
        world.run(sealer, seconds=30)
        assert world.staged() == [], "the requests are settled"

        again = world.put_in(groups, sealer)
        assert (again.imported, again.skipped) == (0, 6)
        assert all("sealed before" in one for one in again.details)
        assert figures_of(world).imported == 12
        assert world.problems() == []


def test_every_field_of_a_rollout_is_served_as_it_was_given() -> None:
    arrays = {"routed": np.arange(12, dtype=np.uint8).reshape(3, 2, 2)}
    first = rollout(
        *("u-0",),
        group_uid="prompt-1",
        worker_id="worker-1",
        is_last_segment=False,
        reward=None,
        rewards={"format": 0.25},
        metadata={"temperature": 0.8},
        messages=({"role": "user", "content": "2+2?"},),
        loss_mask=np.array([True, False, True]),
        old_logprobs=-1.5,
        weight_steps=np.array([0, 0, 0], np.int64),
        token_arrays=arrays,
        attachments={"image": b"\x89PNG"},
    )
    second = replace(first, segment_idx=1, is_last_segment=True, reward=1.0, worker_id="worker-2")
    given = RolloutGroup.of("", [first, second], 0)
    with ImportWorld(partitions=1) as world, world.leaving(world.sealer()) as sealer:
        world.put_in([given], sealer)
        with world.sampler() as sampler:
            sampler.resume(None)
            served = sampler.next_batch(0, 1, timeout_s=5.0).group(0)
        assert served.id == group_id(GroupKey("math", "ex-1", 0, "", "prompt-1"), ["u-0"])
        for wanted, found in zip(given.rollouts, served.rollouts, strict=True):
            for name in RolloutRecord.__slots__:
                counted = {"prompt_count": 2, "token_count": 3}.get(name, getattr(wanted, name))
                value = getattr(found, name)
                if isinstance(counted, np.ndarray):
                    assert counted.dtype == value.dtype, name
                    assert counted.tolist() == value.tolist(), name
                elif name == "token_arrays":
                    assert value["routed"].tolist() == arrays["routed"].tolist()
                else:
                    assert value == counted, name


def test_a_group_is_found_beyond_the_dedupe_horizon() -> None:
    with ImportWorld(partitions=1, dedupe_horizon=1) as world:
        old = group("old")
        with world.leaving(world.sealer()) as sealer:
            assert world.put_in([old], sealer).imported == 1
        world.seal_groups(0, 20)  # More flushes than a fold keeps at least.
        with world.leaving(world.sealer()) as sealer:
            report = world.put_in([old, group("new")], sealer)
        assert (report.imported, report.skipped) == (1, 1)
        assert report.details == ("math[0]: skipped 1, sealed before",)
        assert world.problems() == []


def test_a_rollout_that_is_sealed_or_pending_is_in_no_second_group() -> None:
    with ImportWorld(partitions=1) as world, world.leaving(world.sealer()) as sealer:
        world.seal_groups(0, 1, sealer=sealer)  # g0-0 and g0-1.
        world.publish("waiting-0", example_id="ex-waiting")
        world.run(sealer, seconds=1)
        sealed = RolloutGroup.of("", [rollout("g0-0"), rollout("other")], 0)
        report = world.put_in([sealed, group("waiting"), group("new")], sealer)
        assert (report.imported, report.skipped) == (1, 2)
        assert "in another group, or waits for one" in report.details[0]
        world.publish("waiting-1", example_id="ex-waiting")
        world.publish("new-0", example_id="ex-late")  # As of a producer that repeats itself.
        world.until(sealer, pending=0)
        assert ("waiting-0", "waiting-1") in world.groups()
        assert world.settled()["duplicate"] == 1
        assert world.problems() == []


@pytest.mark.parametrize(
    "point", [point for point in KillPoint if point not in (KillPoint.WITHIN_RECORD,)]
)
@pytest.mark.parametrize("passage", [1, 2])
def test_killed_at_any_step_of_its_flush_each_group_is_there_once(
    point: KillPoint, passage: int
) -> None:
    def die() -> NoReturn:
        raise Crash

    def armed(own: Broker) -> Armed:
        return arm(point, own, world.blobs, die, passage=passage)

    with ImportWorld(partitions=1, max_flush_rollouts=4) as world:
        groups = [group(f"old-{number}", policy_version=f"v{number % 2}") for number in range(4)]
        report, died = world.put_in_while_dying(groups, armed)
        assert died or passage > 1, f"{point} was never reached"
        assert (report.imported, report.skipped) == (4, 0)
        assert len(world.groups()) == 4
        assert world.problems() == []
        assert world.staged() == []


@pytest.mark.parametrize("point", [RetentionPoint.BEFORE_RETIRED, RetentionPoint.BEFORE_CONFIRMED])
def test_killed_at_its_answer_each_group_is_there_once(point: RetentionPoint) -> None:
    def die() -> NoReturn:
        raise Crash

    with ImportWorld(partitions=1) as world:
        report, died = world.put_in_while_dying(
            [group("old-1"), group("old-2")],
            lambda own: arm_retention(point, own, world.blobs, die),
        )
        assert (report.imported, report.skipped, died) == (2, 0, 1)
        assert world.problems() == []


def test_groups_that_were_staged_and_never_requested_go_after_a_day() -> None:
    with ImportWorld(partitions=1, retain_after_hours=1) as world:
        old = staged_path(ADDRESS, world.clock.now_us(), "0" * 32)
        world.blobs.create(old, b"")
        with world.leaving(world.sealer()) as sealer:
            for hours, left in ((2, [old]), (24, [])):
                world.run(seconds=hours * 3_600)
                world.run(sealer, seconds=2)
                assert world.staged() == left


def test_without_a_sealer_the_request_stands_and_is_carried_out_later() -> None:
    with ImportWorld(partitions=1) as world:
        with pytest.raises(
            ImportUnfinished, match=r"The request stands.*rollstream seal"
        ) as raised:
            world.put_in([group("old")], timeout_s=1.0)
        assert (raised.value.report.imported, raised.value.report.skipped) == (0, 0)
        assert len(world.staged()) == 1
        with world.leaving(world.sealer()) as sealer:
            world.run(sealer, seconds=30)
        assert world.groups() == [("old-0", "old-1")]
        assert world.problems() == []


def test_a_request_before_the_first_claim_is_carried_out_by_the_second_owner() -> None:
    def die() -> NoReturn:
        raise Crash

    with ImportWorld(partitions=2) as world:
        groups = [group(f"old-{number}") for number in range(8)]
        with pytest.raises(ImportUnfinished):
            world.put_in(groups, timeout_s=1.0)
        for _ in range(2):
            own = world.new_broker()
            armed = arm(KillPoint.AFTER_PUT_FILES, own, world.blobs, die)
            dying = world.sealer(broker=armed.broker, store=armed.blobs, steps=armed.steps)
            with pytest.raises(Crash):
                world.run(dying, seconds=30)
            own.close()
        with world.leaving(world.sealer()) as sealer:
            world.run(sealer, seconds=30)
        assert len(world.groups()) == 8
        assert world.problems() == []


def test_a_log_that_takes_long_to_read_has_the_time_out_for_each_answer() -> None:
    polls = reads = 0

    class ReadsSlowly(PassingBlobs):
        """Once the staged file is read, each answer of the broker takes 25 s of 30."""

        def read(self, path: str) -> bytes:
            nonlocal polls, reads
            reads += path.startswith("staging/")
            polls = polls or reads
            return super().read(path)

    with ImportWorld(partitions=1) as world:

        def turn() -> None:
            nonlocal polls
            if 0 < polls <= 30:
                world.clock.advance(25.0)
                polls += 1

        for _ in range(25):  # More than 600 s, at 256 records an answer.
            for _ in range(256):
                world.ask(None, kind="flush")
        broker = BesideReaders(world.logs, turn)
        with world.leaving(world.sealer(broker=broker, store=ReadsSlowly(world.blobs))) as sealer:
            assert world.put_in([group("old")], sealer, timeout_s=3_600.0).imported == 1
        assert (polls > 25, reads) == (True, 1)


@pytest.mark.parametrize(
    ("data", "compression", "why"),
    [
        (encode_staged([StagedGroup("a", "", [])]), "", "cannot be imported"),
        (encode_staged([]), "brotli", "compression 'brotli' is none of"),
        (b"{}", "", "cannot be imported"),
        (b"[1]\n", "", "cannot be imported"),
    ],
)
def test_no_request_ends_a_sealer(data: bytes, compression: str, why: str) -> None:
    with ImportWorld(partitions=1) as world, world.leaving(world.sealer()) as sealer:
        path = staged_path(ADDRESS, world.clock.now_us(), checksum(data))
        world.blobs.create(path, data)
        world.ask(None, kind="import", staged=path, compression=compression)
        world.run(sealer, seconds=30)
        (answer,) = world.answers()
        assert answer.refused
        assert why in answer.detail
        assert world.put_in([group("old")], sealer).imported == 1
        assert world.staged() == []


def test_a_request_that_names_another_file_is_refused_and_deletes_nothing() -> None:
    with ImportWorld(partitions=2) as world, world.leaving(world.sealer()) as sealer:
        world.seal_groups(0, 2, sealer=sealer)
        other = staged_path(ADDRESS._replace(environment="code"), 1, "0" * 32)
        world.blobs.create(other, b"")
        before = [blob.path for blob in world.blobs.list("")]
        for path in before:
            world.ask(None, kind="import", staged=path)
        world.run(sealer, seconds=60)
        assert {
            (one.refused, "no file that was staged" in one.detail) for one in world.answers()
        } == {(True, True)}
        assert {*before} <= {blob.path for blob in world.blobs.list("")}
        assert world.problems() == []


def test_a_staged_file_that_is_damaged_is_refused() -> None:
    class Damaging(PassingBlobs):
        def create(self, path: str, data: Any) -> None:
            super().create(path, bytes(data)[:-1] if path.startswith("staging/") else data)

    with ImportWorld(partitions=1) as world, world.leaving(world.sealer()) as sealer:
        with pytest.raises(ImportUnfinished, match=r"was refused.*is damaged"):
            world.put_in([group("old")], sealer, store=Damaging(world.blobs))
        assert world.put_in([group("old")], sealer).imported == 1


def test_a_full_store_stages_nothing() -> None:
    class Full(PassingBlobs):
        def create(self, path: str, data: Any) -> None:
            raise StoreFull(f"{path}: the test's disk is full")

    with ImportWorld() as world, pytest.raises(StoreFull):
        world.put_in([group("old")], store=Full(world.blobs))


def test_files_have_the_compression_that_was_asked_for() -> None:
    with ImportWorld(partitions=1) as world, world.leaving(world.sealer()) as sealer:
        tokens = np.zeros(100_000, np.int32)
        fields: dict[str, Any] = {"output_tokens": tokens, "logprobs": None}
        world.put_in([group("small", **fields)], sealer)
        world.put_in([group("large", **fields)], sealer, compression="none")
        small, large = (event.files[0].size for event in world.flushes())
        assert small < 100_000
        assert large > 800_000
        assert world.problems() == []


def test_without_a_deployment_it_is_refused_with_the_reason() -> None:
    with pytest.raises(NoDeployment, match=r"only sealers append .* config=load_config"):
        write_rollout_groups("file:///somewhere", [group("old")])


def test_another_root_is_refused() -> None:
    with ImportWorld() as world, pytest.raises(RootMismatch):
        world.put_in([group("old")], store=MemoryBlobs())


def test_an_environment_that_is_not_configured_is_refused() -> None:
    with ImportWorld() as world, pytest.raises(UnknownEnvironment, match="code"):
        world.put_in([group("old", environment="code")])


def changed(**fields: Any) -> RolloutGroup:
    return replace(group("old"), **fields)


def with_rollout(**fields: Any) -> RolloutGroup:
    """The second rollout of a group has other values."""
    first, second = group("old").rollouts
    return changed(rollouts=(first, replace(second, **fields)))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (changed(rollouts=()), r"groups\[1\]\.rollouts is empty; give at least one"),
        (changed(policy_version=""), r"policy_version is ''; name the policy"),
        (changed(policy_version="v8"), r"policy_version is 'v8'; name the policy"),
        (with_rollout(policy_version="v8"), r"policy_version is 'step-0'.*'mixed'"),
        (
            RolloutGroup.of("", with_rollout(policy_version="v8").rollouts, 0),
            r"policy_version is 'mixed'; give its rollouts a group_uid",
        ),
        (group("old", policy_version=""), r"policy_version is ''; name the policy"),
        (with_rollout(example_id="ex-2"), r"rollouts\[1\]\.example_id is 'ex-2'"),
        (with_rollout(rollout_uid="old-0"), r"rollouts\[1\]\.segment_idx is 0; give each rollout"),
        (with_rollout(rollout_uid=""), r"rollout_uid is empty"),
        (with_rollout(is_last_segment=False), r"is_last_segment is False; give the segments"),
        (with_rollout(segment_idx=1), r"rollouts\[1\]\.segment_idx is 1"),
        (with_rollout(reward=float("inf")), r"reward is inf"),
        (with_rollout(output_tokens=[1, -1, 2]), r"output_tokens\[1\] is -1"),
        (with_rollout(output_tokens=[1, 2**31, 2]), r"output_tokens\[1\] is 2147483648"),
        (with_rollout(logprobs=[-0.5]), r"logprobs has 1 values for 3 output tokens"),
        (with_rollout(split="test"), r"split is 'test'"),
        (with_rollout(weight_step=-2), r"weight_step is -2"),
        (with_rollout(replica_id=None), r"replica_id is None; give a string"),
    ],
)
def test_a_group_that_breaks_a_rule_is_named_with_the_remedy(
    bad: RolloutGroup, message: str
) -> None:
    with ImportWorld() as world:
        with pytest.raises(InvalidGroup, match=message):
            world.put_in([group("good"), bad])
        assert world.staged() == []


_OF_IMPORT = [one.name for one in fields(RolloutRecord) if not one.name.endswith("_count")]
_WRONG: list[Any] = [object(), b"\xff", [[1], [1, 2]], {1: object()}, {"a": object()}]


@pytest.mark.parametrize("name", _OF_IMPORT)
def test_a_value_of_another_type_is_named_with_its_rollout_and_the_remedy(name: str) -> None:
    with ImportWorld() as world:
        for value in _WRONG:
            bad = with_rollout(**{name: value})
            with pytest.raises(InvalidGroup, match=r"^groups\[1\]\.rollouts\[1\]\..*; ") as found:
                world.put_in([group("good"), bad])
            assert name in found.value.field
        assert world.staged() == []


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (5, r"^groups is 5; give the groups as a list"),
        ([5], r"^groups\[0\] is 5; give a RolloutGroup"),
        ([rollout("u-0")], r"^groups\[0\] is .*; give a RolloutGroup"),
        ([changed(rollouts=5)], r"^groups\[0\]\.rollouts is 5; give a tuple of RolloutRecord"),
        ([changed(rollouts="ab")], r"^groups\[0\]\.rollouts is 'ab'; give a tuple"),
        ([changed(rollouts=(5,))], r"^groups\[0\]\.rollouts\[0\] is 5; give a RolloutRecord"),
        ([changed(environment=5)], r"^groups\[0\]\.environment is 5; give a string"),
        ([changed(environment=[])], r"^groups\[0\]\.environment is \[\]; give a string"),
        ([changed(example_id=5)], r"^groups\[0\]\.example_id is 5; give a string"),
        ([changed(policy_version={})], r"^groups\[0\]\.policy_version is {}; give a string"),
        ([with_rollout(prompt_tokens=None)], r"rollouts\[1\]\.prompt_tokens has shape"),
        ([with_rollout(rewards={"a": "x"})], r"rewards\['a'\] is 'x'; give a number"),
        ([with_rollout(rewards={"a": "1.5"})], r"rewards\['a'\] is '1.5'; give a number"),
        ([with_rollout(reward=True)], r"rollouts\[1\]\.reward is True; give a number"),
    ],
)
def test_what_is_no_group_is_named_with_the_remedy(bad: Any, message: str) -> None:
    with ImportWorld() as world:
        with pytest.raises(InvalidGroup, match=message):
            world.put_in(bad)
        assert world.staged() == []


def test_a_mixed_group_with_a_group_uid_is_imported() -> None:
    first, second = group("old", group_uid="prompt-1").rollouts
    mixed = RolloutGroup.of("", [first, replace(second, policy_version="v8")], 0)
    with ImportWorld() as world, world.leaving(world.sealer()) as sealer:
        assert mixed.policy_version == "mixed"
        assert world.put_in([mixed], sealer).imported == 1
        assert world.problems() == []
