"""What the guides to batch makers and to packing show does what they say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.groups import GroupSpec
from harness.pages import snippets
from harness.sampler_worlds import LocalWorld, config_of
from harness.source_tree import ROOT
from rollstream.sampler import (
    ChannelA,
    ChannelB,
    GrpoBatchMaker,
    MixedBatch,
    TrainingBatch,
    TrainingBatches,
)
from rollstream.store.local import LocalBlobs
from rollstream.streams.memory import MemoryBroker

MAKERS = "guides/batch_makers.md"
PACKING = "guides/packing.md"
GROUPS = 64  # As many as the snippets ask for.


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalWorld]:
    """In a folder with its ``rollstream.toml``; step 0 is the next one."""
    monkeypatch.chdir(tmp_path)
    root = (tmp_path / "data").as_uri()
    (section,) = snippets(PACKING, "toml")
    (tmp_path / "rollstream.toml").write_text(
        f"""[kafka]
bootstrap = "unused:9092"
[store]
root = "{root}"
[environments.math]
[samplers.trainer-a]
environments = ["math"]
{section}"""
    )
    config = config_of(root, "trainer-a")
    with closing(LocalWorld(MemoryBroker(), LocalBlobs(tmp_path / "data"), config)) as found:
        found.open().resume(None)
        yield found


def executed(page: str, marker: str, **names: Any) -> dict[str, Any]:
    """The names after the one Python snippet of the page that holds the marker."""
    (snippet,) = (text for text in snippets(page, "python") if marker in text)
    exec(snippet, names)
    return names


def test_a_step_is_made_acked_stored_and_read(world: LocalWorld) -> None:
    equal = [GroupSpec(example_id="equal", rewards=(1.0, 1.0))]
    some = [GroupSpec(example_id=f"e-{n}") for n in range(GROUPS - 1)]
    world.writer().flush(*equal, *some)
    logged: list[Mapping[str, float]] = []
    sampler = world.open()
    made = executed(MAKERS, "batches.next", sampler=sampler, step=0, log=logged.append)
    training: TrainingBatch = made["training"]
    assert len(training.examples) == 2 * (GROUPS - 1) < 256
    assert logged == [training.metadata]
    sampler.checkpointed(0)
    assert sampler.stats().outcomes == {"filtered": 1, "trained": GROUPS - 1}
    stored = executed(MAKERS, "create_and_store_batch(", **made)["stored"]
    assert stored.examples.advantages.tobytes() == training.examples.advantages.tobytes()
    assert stored.metadata == training.metadata


def test_a_mixture_has_its_shares_and_a_batch_in_hand_is_made_without_a_record(
    world: LocalWorld,
) -> None:
    for environment in ("math", "code"):
        world.writer(environment).flush(*(GroupSpec(example_id=f"e-{n}") for n in range(GROUPS)))
    sampler = world.open()
    names = executed(
        MAKERS,
        "StableMixtureBatchMaker(",
        sampler=sampler,
        GrpoBatchMaker=GrpoBatchMaker,
        TrainingBatches=TrainingBatches,
    )
    made = names["batches"].next(0, timeout_s=10.0).made
    assert isinstance(made, MixedBatch)
    assert {name: len(part.trajectories) for name, part in made.parts.items()} == {
        "code": GROUPS,
        "math": GROUPS,
    }
    found = executed(MAKERS, "= make_batch(", **{**names, "step": 1})
    assert len(found["examples"]) == len(found["made"].trajectories) == 2 * GROUPS


def test_a_maker_of_ones_own_makes_a_step_and_is_checked(world: LocalWorld) -> None:
    rewards = (0.0, 0.5, 1.0, 0.75)
    world.writer().flush(
        *(GroupSpec(example_id=f"e-{n}", rewards=rewards) for n in range(2 * GROUPS))
    )
    sampler = world.open()
    names = executed(MAKERS, "class BestAndWorst", sampler=sampler)
    training: TrainingBatch = names["batches"].next(0, timeout_s=10.0)
    assert training.metadata["trained"] == training.metadata["filtered/not_chosen"] == 2 * GROUPS
    names["batches"].ack(training)
    batch = sampler.next_batch(1, GROUPS)
    made = executed(MAKERS, "for _ in range(2)", **names, batch=batch)["made"]
    returns = batch.trajectory_returns[made.trajectories].tolist()
    assert sorted(returns) == [0.0] * GROUPS + [1.0] * GROUPS


def test_the_guides_maker_is_the_one_of_the_example() -> None:
    (guide,) = (text for text in snippets(MAKERS, "python") if "class BestAndWorst" in text)
    shown = guide[guide.index("class BestAndWorst") : guide.index("batches = ")].strip()
    example = ROOT / "examples/06_a_batch_maker_of_your_own.py"
    assert shown in example.read_text(encoding="utf-8")


def forward(**arrays: NDArray[np.int32]) -> int:
    """How many tokens of the pack are no padding."""
    return int(arrays["cu_seqlens"][-1])


class Tokenizer:
    pad_token_id = 0


def test_a_rank_trains_on_its_part_of_a_batch(world: LocalWorld) -> None:
    world.writer().flush(*(GroupSpec(example_id=f"e-{n}", output=500) for n in range(GROUPS)))
    batch = world.open().next_batch(0, GROUPS)
    made = executed(
        PACKING, "plan_packs(", batch=batch, rank=0, tokenizer=Tokenizer, forward=forward
    )
    packs = made["packs"]
    assert len(packs) == made["plan"].packs_per_rank == 1
    assert made["loss"] == made["plan"].lengths[made["plan"].rank == 0].sum() > 500


def test_packs_are_ready_at_every_other_step(world: LocalWorld) -> None:
    sampler = world.open()
    world.writer().flush(*(GroupSpec(example_id=f"e-{n}", output=8_000) for n in range(GROUPS)))
    kinds = []
    for step in range(2):
        found = executed(PACKING, "ReadyPacks(", sampler=sampler, step=step, rank=0)
        kinds.append(type(found["decided"]))
    assert kinds == [ChannelA, ChannelB]
    assert len(found["decided"].packs) == found["section"].gradient_accumulation_steps
    sampler.checkpointed(1)
    assert sampler.stats().outcomes["trained"] > 0
