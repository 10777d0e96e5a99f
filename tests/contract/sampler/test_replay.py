"""A served batch recomputed from the logs, and checked against the files alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import pytest

from harness.faults import Fate, FaultyBroker
from harness.groups import EVERY_COLUMN, GroupSpec, every_extra
from harness.owned_logs import only
from harness.sampler_worlds import LocalWorld, config_of, memory_world, new_name
from rollstream.folds.state import SamplerState
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.sampler import UnknownSampler, UnknownStep
from rollstream.sampler.history import FileCheck, check_from_files, decisions, replay, replay_step
from rollstream.schemas.events import BatchServed, Replaced
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.dataset import Provenance, encode_rows, read_rows
from rollstream.store.errors import BlobMissing, CorruptFile
from rollstream.store.layout import batch_path
from rollstream.store.local import LocalBlobs
from rollstream.store.memory import MemoryBlobs
from rollstream.streams.broker import Broker
from rollstream.streams.memory import MemoryBroker, MemoryLogs

WAIT_S = 30.0


@pytest.fixture
def world() -> Iterator[LocalWorld]:
    made = memory_world()
    made.configure(max_policy_lag=4, seed=7, recency="exp")
    yield made
    made.close()


def train(world: LocalWorld, steps: int) -> None:
    """A run in which groups keep arriving while batches are chosen, dropped and replaced."""
    writers = [world.writer("math", 0), world.writer("math", 1), world.writer("code", 0)]
    sampler = world.open()
    sampler.resume(None)
    for step in range(steps):
        for index, writer in enumerate(writers):
            writer.flush(
                *(GroupSpec(example_id=f"{index}-{i}", weight_step=step // 2) for i in range(4))
            )
        batch = sampler.next_batch(step, 4, timeout_s=WAIT_S)
        if step % 2:
            sampler.replace(batch, [1, 3], "tried", timeout_s=WAIT_S)
        sampler.publish_policy(step + 1, policy_version=f"step-{step + 1}")
    world.restart()  # Closing waits for what is still to be projected.


def file_check(world: LocalWorld, step: int) -> FileCheck:
    return check_from_files(world.name, step, config=world.config, store=world.store)


@pytest.mark.proves("F2", "A14")
def test_every_step_is_recomputed_from_its_cursor_and_seed(world: LocalWorld) -> None:
    train(world, 6)
    for step in range(6):
        replayed = replay_step(
            world.name, step, config=world.config, broker=world.broker(), timeout_s=WAIT_S
        )
        assert len(replayed) == 1 + step % 2
        assert all(one.same for one in replayed)
    with pytest.raises(UnknownStep, match="no batch for step 9"):
        replay_step(world.name, 9, config=world.config, broker=world.broker(), timeout_s=WAIT_S)


@pytest.mark.proves("B5")
def test_a_replay_holds_no_more_groups_than_the_sampler_did(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []

    class Watched(SamplerState):
        def apply_groups(self, *arguments: Any) -> None:
            super().apply_groups(*arguments)
            held.append(len(self.ready))

    monkeypatch.setattr(replay, "SamplerState", Watched)
    writer, sampler = world.writer(), world.open()
    sampler.resume(None)
    for step in range(8):
        writer.flush(*(GroupSpec(example_id=f"{step}-{i}", weight_step=step) for i in range(4)))
        sampler.next_batch(step, 4, timeout_s=WAIT_S)
        sampler.checkpointed(step)
    (replayed,) = replay_step(
        world.name, 7, config=world.config, broker=world.broker(), timeout_s=WAIT_S
    )
    assert replayed.same
    assert max(held) == 4, "of the step itself alone"


@pytest.mark.proves("F2")
def test_the_columns_that_a_batch_was_read_with_are_no_part_of_the_decision(
    world: LocalWorld,
) -> None:
    extras = (every_extra(),) * 2
    world.writer().flush(*(GroupSpec(example_id=f"ex-{i}", extras=extras) for i in range(4)))
    sampler = world.open()
    sampler.next_batch(0, 2, timeout_s=WAIT_S, columns=["logits"])  # Which no group has.
    first = sampler.next_batch(0, 2, timeout_s=WAIT_S, columns=EVERY_COLUMN)
    sampler.replace(first, [1], "tried", timeout_s=WAIT_S)
    world.restart()
    for one in replay_step(world.name, 0, config=world.config, broker=world.broker()):
        assert one.same
        if isinstance(one.event, BatchServed):
            assert set(json.loads(one.event.request)) == {"accept", "mix", "num_groups"}
    assert file_check(world, 0).same


@pytest.mark.proves("F2")
def test_a_step_is_recomputed_after_the_configuration_was_edited(world: LocalWorld) -> None:
    """By what is on record: the sampler's section has other settings now, or is gone."""
    train(world, 2)
    edited = {"environments": ("math",), "seed": 3, "recency": "uniform", "max_policy_lag": -1}
    section = world.config.samplers[world.name].model_copy(update=edited)
    for samplers in ({world.name: section}, {}):
        config = world.config.model_copy(update={"samplers": samplers})
        environments = set[str]()
        for step in (0, 1):
            served, *_ = replayed = replay_step(
                world.name, step, config=config, broker=world.broker(), timeout_s=WAIT_S
            )
            assert all(one.same for one in replayed)
            environments.update(group.environment for group in served.event.groups)
        assert environments == {"code", "math"}


class OpenedBroker:
    """The broker of a world, as if it were opened from a configuration."""

    def __init__(self, inner: Broker) -> None:
        self._inner = inner
        self.opened: list[tuple[str, dict[str, str]]] = []
        self.closed = 0

    def __call__(self, bootstrap: str, client: dict[str, str]) -> Self:
        self.opened.append((bootstrap, client))
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def close(self) -> None:
        self.closed += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def written(config: RollstreamConfig, root: Path, folder: Path) -> Path:
    """The configuration as a file."""
    ((name, sampler),) = config.samplers.items()
    path = folder / "rollstream.toml"
    path.write_text(
        f"""
[kafka]
bootstrap = "one:9092"
namespace = "{config.kafka.namespace}"
client = {{ "client.id" = "reader" }}
[store]
root = "{root.as_uri()}"
[environments.code]
partitions = 1
[environments.math]
partitions = 2
[samplers.{name}]
environments = ["code", "math"]
seed = {sampler.seed}
recency = "{sampler.recency}"
max_policy_lag = {sampler.max_policy_lag}
"""
    )
    return path


@pytest.mark.proves("F2")
@pytest.mark.parametrize("kind", [str, Path])
def test_the_path_of_a_configuration_is_enough_for_both_kinds(
    kind: type[str] | type[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    world = LocalWorld(
        MemoryBroker(MemoryLogs()), LocalBlobs(root), config_of(root.as_uri(), new_name())
    )
    world.configure(max_policy_lag=4, seed=7, recency="exp")
    train(world, 2)
    broker = OpenedBroker(world.broker())
    monkeypatch.setattr(decisions, "KafkaBroker", broker)
    config = kind(written(world.config, root, tmp_path))
    assert all(one.same for one in replay_step(world.name, 1, config=config))
    assert broker.opened == [("one:9092", {"client.id": "reader"})]
    assert broker.closed == 1
    with pytest.raises(UnknownStep):
        replay_step(world.name, 9, config=config)
    assert broker.closed == 2, "also where it raises"
    assert check_from_files(world.name, 1, config=config).same
    assert len(broker.opened) == 2, "files need no broker"
    world.close()


def test_a_broker_that_is_given_stays_open(world: LocalWorld) -> None:
    train(world, 1)
    broker = OpenedBroker(world.broker())
    given = cast(Broker, broker)
    assert replay_step(world.name, 0, config=world.config, broker=given)[0].same
    assert (broker.opened, broker.closed) == ([], 0)


def test_of_several_trainers_the_newest_decision_is_checked_unless_one_is_named(
    world: LocalWorld,
) -> None:
    train(world, 1)
    sampler = world.open()
    sampler.resume(None, later="release")
    again = sampler.next_batch(0, 3, timeout_s=WAIT_S)
    world.restart()
    assert file_check(world, 0).recorded == again.digest
    old = check_from_files(world.name, 0, config=world.config, store=world.store, trainer_epoch=1)
    assert old.same
    assert old.recorded != again.digest


def test_a_step_without_files_and_a_name_without_section_say_so(world: LocalWorld) -> None:
    train(world, 1)
    with pytest.raises(BlobMissing, match="for step 9 under"):
        file_check(world, 9)
    with pytest.raises(UnknownSampler, match="no decision of a sampler 'other'"):
        check_from_files("other", 0, config=world.config, store=world.store)


@pytest.mark.parametrize("damaged", [b"", b"[]", b"{}", b'{"digest": "", "groups": [{}]}'])
def test_a_damaged_file_of_a_decision_is_named(world: LocalWorld, damaged: bytes) -> None:
    train(world, 1)
    path = batch_path(world.name, 1, 0)
    world.store.replace(path, damaged)
    with pytest.raises(CorruptFile, match=f"{path} is no batch's file, or a damaged one"):
        file_check(world, 0)


@pytest.mark.proves("F2", "A22")
def test_a_step_is_found_in_the_files_alone_and_a_changed_row_is_noticed(
    world: LocalWorld,
) -> None:
    train(world, 2)
    for step in (0, 1):
        assert file_check(world, step).same
    path = next(info.path for info in world.store.list("groups/"))
    columns = read_rows(world.store, path)
    outputs = columns.arrays["output_tokens"]
    changed = replace(outputs, values=outputs.values + np.int32(1))
    columns = replace(columns, arrays={**columns.arrays, "output_tokens": changed})
    provenance = Provenance(
        group_ids=[""] * columns.rows,
        address=PartitionAddress("math", 1, 0),
        epoch=0,
        offsets=np.arange(columns.rows),
        entries=np.zeros(columns.rows, np.int32),
    )
    world.store.replace(path, encode_rows(columns, provenance))
    checks = [file_check(world, step) for step in (0, 1)]
    assert any(check.differing and not check.same for check in checks)


@pytest.mark.proves("F2")
def test_a_replacement_whose_report_was_lost_is_projected_too() -> None:
    broker = FaultyBroker(MemoryBroker(MemoryLogs()))
    config = config_of("file:///unused", new_name())
    world = LocalWorld(broker, MemoryBlobs(), config)
    world.writer().flush(GroupSpec(example_id="one"), GroupSpec(example_id="spare"))
    sampler = world.open()
    sampler.resume(None)
    batch = sampler.next_batch(0, 1, timeout_s=WAIT_S)
    broker.decide = only(Replaced, Fate.DOUBT)
    newest = sampler.replace(batch, [0], "tried", timeout_s=WAIT_S)
    world.restart()
    check = file_check(world, 0)
    assert check.recorded == newest.digest != batch.digest
    world.close()
