"""What the guides to batch makers, to packing and to ready packs show does what they say."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from harness.groups import GroupSpec
from harness.pages import snippets
from harness.printed_pages import printed
from harness.sampler_worlds import LocalWorld, config_of
from harness.source_tree import ROOT
from rollstream.sampler import (
    ChannelA,
    ChannelB,
    MixedBatch,
    ReadyPacks,
    TrainingBatch,
    TrainingBatches,
)
from rollstream.store.local import LocalBlobs
from rollstream.streams.memory import MemoryBroker

MAKERS = "guides/batch_makers.md"
PACKING = "guides/packing.md"
READY = "guides/ready_packs.md"
GROUPS = 32  # As many as the programs ask for.
STEPS = 3  # Of the program that shows a batch maker.
DIGITS = {  # As the quickstart's worker samples them.
    "prompt_tokens": np.array([1, 2], "<i4"),
    "output_tokens": np.array([3], "<i4"),
    "logprobs": np.array([-1.0], "<f4"),
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalWorld]:
    """In a folder with the ``rollstream.toml`` of ready packs; what programs open as ``Sampler`` is
    this world's."""
    monkeypatch.chdir(tmp_path)
    root = (tmp_path / "data").as_uri()
    text = re.sub(r"^root = .*", f'root = "{root}"', printed(READY, "rollstream.toml"), flags=re.M)
    (tmp_path / "rollstream.toml").write_text(text, encoding="utf-8")
    config = config_of(root, "trainer-a")
    with closing(LocalWorld(MemoryBroker(), LocalBlobs(tmp_path / "data"), config)) as found:
        monkeypatch.setattr(
            "rollstream.sampler.Sampler", lambda *_, **__: nullcontext(found.open())
        )
        yield found


def ran(page: str, title: str = "", *, until: str = "", **names: Any) -> dict[str, Any]:
    """The names after a program of the page: its file of that title, or its blocks without one, up
    to the first that holds a text."""
    text = printed(page, title) if title else ""
    for snippet in () if title else snippets(page, "python"):
        text += snippet
        if until and until in snippet:
            break
    exec(text, names)
    return names


def test_a_program_trains_on_what_a_maker_made_and_its_examples_are_stored_and_read(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(STEPS):
        specs = [GroupSpec(example_id=f"e-{step}-{n}", extras=(DIGITS,) * 2) for n in range(GROUPS)]
        specs[0] = replace(specs[0], rewards=(1.0, 1.0))
        world.writer().flush(*specs)
    made = ran(MAKERS, "trainer.py")
    training: TrainingBatch = made["training"]
    assert len(training.examples) == 2 * (GROUPS - 1) < 128
    assert training.metadata["filtered/all_equal"] == 2
    assert world.open().stats().outcomes == {"filtered": STEPS, "trained": STEPS * (GROUPS - 1)}
    makers = ModuleType("makers")
    exec(printed(MAKERS, "makers.py"), makers.__dict__)
    monkeypatch.setitem(sys.modules, "makers", makers)
    stored = ran(MAKERS)["stored"]
    assert stored.examples.advantages.tobytes() == training.examples.advantages.tobytes()
    assert stored.metadata == training.metadata


def test_a_mixture_has_its_shares(world: LocalWorld) -> None:
    for environment in ("math", "code"):
        world.writer(environment).flush(*(GroupSpec(example_id=f"e-{n}") for n in range(GROUPS)))
    sampler = world.open()
    sampler.resume(None)
    maker = ran(MAKERS, until="StableMixtureBatchMaker(")["maker"]
    batches = TrainingBatches(sampler, maker, num_groups=GROUPS, batch_size=128)
    made = batches.next(0, timeout_s=10.0).made
    assert isinstance(made, MixedBatch)
    assert {name: len(part.trajectories) for name, part in made.parts.items()} == {
        "code": GROUPS,
        "math": GROUPS,
    }


def test_a_maker_of_ones_own_trains_on_the_best_and_the_worst(world: LocalWorld) -> None:
    rewards = (0.0, 0.5, 1.0, 0.75)
    world.writer().flush(*(GroupSpec(example_id=f"e-{n}", rewards=rewards) for n in range(GROUPS)))
    sampler = world.open()
    sampler.resume(None)
    maker = ran(MAKERS, "makers.py")["BestAndWorst"]()
    batches = TrainingBatches(sampler, maker, num_groups=GROUPS, batch_size=128)
    training = batches.next(0, timeout_s=10.0)
    assert training.metadata["trained"] == training.metadata["filtered/not_chosen"] == 2 * GROUPS
    returns = training.batch.trajectory_returns[training.made.trajectories].tolist()
    assert sorted(returns) == [0.0] * GROUPS + [1.0] * GROUPS


def test_the_guides_maker_is_the_one_of_the_example() -> None:
    guide = printed(MAKERS, "makers.py")
    shown = guide[guide.index("class BestAndWorst") :].strip()
    example = ROOT / "examples/06_a_batch_maker_of_your_own.py"
    assert shown in example.read_text(encoding="utf-8")


def test_ranks_train_on_all_of_a_batch(world: LocalWorld) -> None:
    world.writer().flush(*(GroupSpec(example_id=f"e-{n}", output=50) for n in range(GROUPS)))
    found = ran(PACKING, "trainer.py")
    plan, each = found["plan"], found["each"]
    assert [len(packs) for packs in each] == [plan.packs_per_rank] * plan.ranks
    packed = sum(int(ends[-1]) for packs in each for ends in packs.cu_seqlens)
    assert packed == len(found["batch"].tokens) > GROUPS * 2 * 50
    assert found["trained"] == GROUPS * 2 * 50


def test_packs_are_ready_at_every_other_step(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[ChannelA | ChannelB] = []
    next_step = ReadyPacks.next_step

    def noted(ready: ReadyPacks, step: int) -> ChannelA | ChannelB:
        seen.append(next_step(ready, step))
        return seen[-1]

    monkeypatch.setattr(ReadyPacks, "next_step", noted)
    monkeypatch.setattr("time.sleep", lambda _: None)
    world.writer().flush(*(GroupSpec(example_id=f"e-{n}", output=100) for n in range(GROUPS)))
    found = ran(READY, "trainer.py")
    assert [type(decided) for decided in seen[:2]] == [ChannelA, ChannelB]
    assert isinstance(seen[1], ChannelB)
    assert len(seen[1].packs) == found["config"].gradient_accumulation_steps
    assert world.open().stats().outcomes["trained"] > 0
