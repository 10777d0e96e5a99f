"""The examples of a step as a file: in process on the twin and on Kafka, and over Ray."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pyarrow.parquet as pq
import pytest

from harness.groups import GroupSpec, every_extra
from harness.sampler_worlds import WITHOUT_RAY, SamplerWorld
from harness.training_batches import WAIT_S, made_by, seal
from rollstream.sampler import (
    GrpoBatchMaker,
    InvalidRequest,
)
from rollstream.sampler.history import stored_examples
from rollstream.store.errors import BlobMissing, CorruptFile
from rollstream.store.layout import examples_path

pytestmark = pytest.mark.proves("I6")


@WITHOUT_RAY
@pytest.mark.proves("D6")
def test_stored_examples_are_read_back_as_they_were_made_by_us_and_by_others(
    world: SamplerWorld,
) -> None:
    seal(world, 6, extras=(every_extra(),) * 4)
    sampler = world.open()
    sampler.resume(None)
    batches = made_by(sampler, columns=("routed_experts", "token_rewards"))
    ids = [
        batches.create_and_store_batch(3, step=0, timeout_s=WAIT_S),
        batches.create_and_store_batch(step=1, timeout_s=WAIT_S),
    ]
    for step, examples_id in enumerate(ids):
        made = batches.next(step, timeout_s=WAIT_S)
        found = stored_examples(examples_id, store=world.store)
        one, other = found.examples.arrays(), made.examples.arrays()
        assert sorted(one) == sorted(other)
        for name, array in one.items():
            assert (array.dtype, array.shape) == (other[name].dtype, other[name].shape), name
            assert array.tobytes() == other[name].tobytes(), name
        assert found.examples.policy_versions == made.examples.policy_versions
        assert (found.step, found.batch_id) == (step, made.batch.batch_id)
        assert (found.digest, found.metadata) == (made.batch.digest, made.metadata)
        assert found.settings["maker"] == GrpoBatchMaker(seed=3).settings
        table = pq.read_table(BytesIO(world.store.read(examples_path(examples_id))))
        assert table["tokens"].to_pylist() == [one.tokens.tolist() for one in made.examples]
        assert table["row"].to_pylist() == made.examples.rows.tolist()


@pytest.mark.proves("D6")
def test_storing_again_from_another_process_gives_the_same_id_and_leaves_the_file(
    world: SamplerWorld,
) -> None:
    seal(world, 4)
    sampler = world.open()
    sampler.resume(None)
    examples_id = made_by(sampler).create_and_store_batch(step=0, timeout_s=WAIT_S)
    written = world.store.read(examples_path(examples_id))
    world.restart()
    successor = world.open()
    again = made_by(successor)
    assert again.create_and_store_batch(step=0, timeout_s=WAIT_S) == examples_id
    assert world.store.read(examples_path(examples_id)) == written
    world.store.delete(examples_path(examples_id))
    with pytest.raises(BlobMissing):
        stored_examples(examples_id, store=world.store)
    again.create_and_store_batch(step=0, timeout_s=WAIT_S)
    assert world.store.read(examples_path(examples_id)) == written
    world.store.replace(examples_path(examples_id), written[:-9])
    with pytest.raises(CorruptFile):
        stored_examples(examples_id, store=world.store)
    with pytest.raises(InvalidRequest, match="made with 3"):
        again.create_and_store_batch(4, step=0, timeout_s=WAIT_S)


@WITHOUT_RAY
@pytest.mark.proves("D6")
def test_a_batch_without_examples_is_stored_too(world: SamplerWorld) -> None:
    world.writer().flush(*(GroupSpec(example_id=f"e-{i}", rewards=(1.0, 1.0)) for i in range(2)))
    sampler = world.open()
    sampler.resume(None)
    examples_id = made_by(sampler).create_and_store_batch(step=0, timeout_s=WAIT_S)
    found = stored_examples(examples_id, store=world.store).examples
    assert (len(found), found.policy_versions) == (0, ())
    assert found.tokens.dtype == np.int32
