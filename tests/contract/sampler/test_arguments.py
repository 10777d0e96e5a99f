"""What a caller may pass, and what is refused with argument, value and remedy: every sampler."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from harness.groups import GroupSpec
from harness.sampler_worlds import WITHOUT_RAY, SamplerWorld, log_end
from rollstream.sampler import (
    Batch,
    InvalidRequest,
    RequestDiffers,
    RlooBatchMaker,
    SamplerApi,
    SamplerView,
    StableMixtureBatchMaker,
    TrainingBatches,
    TrajectoryPool,
    UnknownStep,
)
from rollstream.sampler.history import check_from_files, replay_step

WAIT_S = 30.0
Call = Callable[[Any, Any], Any]  # Whose arguments are wrong on purpose.
WRONG: dict[str, tuple[Call, str]] = {
    "resume text": (lambda s, b: s.resume("3"), r"checkpointed_step is '3'; give a whole number"),
    "resume bool": (lambda s, b: s.resume(True), r"checkpointed_step is True; give a whole"),
    "resume fraction": (lambda s, b: s.resume(2.0), r"checkpointed_step is 2\.0; give a whole"),
    "step text": (lambda s, b: s.next_batch("2", 1), r"step is '2'; give a whole number"),
    "groups fraction": (lambda s, b: s.next_batch(1, 2.5), r"num_groups is 2\.5; give a whole"),
    "groups bool": (lambda s, b: s.next_batch(1, True), r"num_groups is True; give a whole"),
    "groups numpy bool": (lambda s, b: s.next_batch(1, np.True_), r"num_groups is .*True.*; give"),
    "mix empty": (lambda s, b: s.next_batch(1, 1, mix={}), r"mix {} gives no shares; use numbers"),
    "mix zero": (lambda s, b: s.next_batch(1, 1, mix={"math": 0}), r"mix {'math': 0} gives no"),
    "mix list": (lambda s, b: s.next_batch(1, 1, mix=["math"]), r"mix is \['math'\]; give a map"),
    "mix other": (
        lambda s, b: s.next_batch(1, 1, mix={"mth": 1}),
        r"names \['mth'\], but sampler .* serves .*'math'\]; correct the name",
    ),
    "mix text": (lambda s, b: s.next_batch(1, 1, mix={"math": "1"}), r"mix .*'1'.* use numbers"),
    "ranks": (lambda s, b: s.next_batch(1, 2, dp_rank=2, dp_size=4), r"dp_size 4 is above num_gr"),
    "rank missing": (
        lambda s, b: s.next_batch(1, 2, dp_size=2),
        r"dp_size is 2 and dp_rank is missing\. Every rank would get the same share\. Give dp_rank",
    ),
    "rank text": (lambda s, b: s.next_batch(1, 2, dp_rank="0"), r"dp_rank is '0'; give a whole"),
    "time": (lambda s, b: s.next_batch(1, 1, timeout_s="5"), r"timeout_s is '5'; give a number"),
    "time huge": (
        lambda s, b: s.next_batch(1, 1, timeout_s=10**400),
        r"timeout_s is 10+; give a number of seconds",
    ),
    "step huge": (
        lambda s, b: s.next_batch(-(10**400), 1),
        r"step is beyond -2\*\*1328; give a number of at most 2\*\*63 - 1",
    ),
    "ack none": (lambda s, b: s.ack(None), r"batch is None; give the Batch that next_batch"),
    "ack step": (lambda s, b: s.ack(b.step), r"batch is 0; give the Batch that next_batch"),
    "checkpointed": (lambda s, b: s.checkpointed("0"), r"step is '0'; give a whole number"),
    "checkpointed -1": (lambda s, b: s.checkpointed(-1), r"step -1 is negative; steps count from"),
    "policy step": (lambda s, b: s.publish_policy(1.5, policy_version="a"), r"step is 1\.5; give"),
    "version": (lambda s, b: s.publish_policy(1, policy_version=3), r"policy_version is 3; give"),
    "version mixed": (
        lambda s, b: s.publish_policy(1, policy_version="mixed"),
        r"policy_version is 'mixed', the name of groups .* give this policy another name",
    ),
    "version empty": (lambda s, b: s.publish_policy(1, policy_version=""), r"version is '' of 0"),
    "version long": (
        lambda s, b: s.publish_policy(1, policy_version="v" * 201),
        r"policy_version is 'v+' of 201 characters and must name a folder",
    ),
    "weights": (
        lambda s, b: s.publish_policy(1, policy_version="a", weights=3),
        r"weights is 3; give a string",
    ),
    "weights long": (
        lambda s, b: s.publish_policy(1, policy_version="a", weights="w" * 4097),
        r"weights has 4097 characters; give at most 4096",
    ),
    "metadata": (
        lambda s, b: s.publish_policy(1, policy_version="a", metadata=[1]),
        r"metadata is \[1\]; give a mapping",
    ),
    "metadata key": (
        lambda s, b: s.publish_policy(1, policy_version="a", metadata={1: 1}),
        r"metadata has the key 1; JSON has strings",
    ),
    "metadata nan": (
        lambda s, b: s.publish_policy(1, policy_version="a", metadata={"x": float("nan")}),
        r"metadata\[.*\] is nan, which JSON cannot hold",
    ),
    "metadata long": (
        lambda s, b: s.publish_policy(1, policy_version="a", metadata={"x": "y" * 65_536}),
        r"metadata has 65544 bytes as JSON; give at most 65536",
    ),
    "replace none": (lambda s, b: s.replace(None, [0], "why"), r"batch is None; give a whole"),
    "replace index": (lambda s, b: s.replace(b, 0, "why"), r"groups is 0; give a sequence"),
    "replace text": (lambda s, b: s.replace(b, ["0"], "why"), r"in groups is '0'; give a whole"),
    "reason": (lambda s, b: s.replace(b, [0], None), r"reason is None; give a string"),
    "reason empty": (lambda s, b: s.replace(b, [0], ""), r"reason is empty; say why"),
}


def training(sampler: Any, maker: Any, **given: Any) -> TrainingBatches:
    return TrainingBatches(sampler, maker, **{"num_groups": 2, "batch_size": 4, **given})


SHAPING: dict[str, tuple[Call, str]] = {
    "sampler name": (
        lambda s, b: training("trainer-a", RlooBatchMaker()),
        "sampler is 'trainer-a'",
    ),
    "pool name": (lambda s, b: TrajectoryPool(cast("Any", "pool")), "sampler is 'pool'; .*attach"),
    "maker class": (
        lambda s, b: training(s, RlooBatchMaker),
        r"maker is .*RlooBatchMaker\(…\) m",
    ),
    "turns": (
        lambda s, b: training(s, RlooBatchMaker(), merge_turns="yes"),
        "merge_turns is 'yes'; give True or False",
    ),
    "ack batch": (
        lambda s, b: training(s, RlooBatchMaker()).ack(b),
        r"training is Batch\(step 0.*; give the TrainingBatch that next returned",
    ),
    "pool weight": (
        lambda s, b: TrajectoryPool(s, weight_of_lag=cast("Any", 0.5)),
        r"weight_of_lag is 0\.5; give a function of lags to weights",
    ),
    "accept": (
        lambda s, b: training(s, RlooBatchMaker(), accept=np.zeros(2)),
        r"accept array\(.* is unknown; use 'nonzero_std' or None",
    ),
    "columns": (
        lambda s, b: training(s, RlooBatchMaker(), columns="metadata"),
        r"columns is 'metadata'; give a sequence of names",
    ),
    "shares empty": (
        lambda s, b: training(s, RlooBatchMaker(), mix={}),
        r"mix {} gives no shares; use numbers",
    ),
    "shares of another": (
        lambda s, b: training(s, RlooBatchMaker(), mix={"mth": 1}),
        r"names \['mth'\], but sampler .* serves \['code', 'math'\]; correct the name",
    ),
    "maker for another": (
        lambda s, b: training(s, StableMixtureBatchMaker({"mth": RlooBatchMaker()}, {"mth": 1})),
        r"names \['mth'\], but sampler .* serves \['code', 'math'\]; correct the name",
    ),
    "no maker for a share": (
        lambda s, b: training(
            s,
            StableMixtureBatchMaker({"math": RlooBatchMaker()}, {"math": 1}),
            mix={"math": 1, "code": 1},
        ),
        r"mix gives \['code'\] a share, .* makers for \['math'\]; give it one for each, or leave",
    ),
    "size of a mixture": (
        lambda s, b: training(
            s,
            StableMixtureBatchMaker(
                {name: RlooBatchMaker() for name in ("math", "code")}, {"math": 0.9, "code": 0.1}
            ),
        ),
        r"batch_size 4 gives code, whose share is 0\.1, less than one trajectory a step; give at",
    ),
}


def first_batch(world: SamplerWorld) -> tuple[SamplerApi, Batch]:
    world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(6)))
    sampler = world.open()
    sampler.resume(None)
    return sampler, sampler.next_batch(0, 2, timeout_s=WAIT_S)


@pytest.mark.proves("F20")
def test_arguments_that_are_none_are_refused_by_name_and_change_nothing(
    world: SamplerWorld,
) -> None:
    sampler, batch = first_batch(world)
    written = log_end(world)
    for call, message in [*WRONG.values(), *SHAPING.values()]:
        with pytest.raises(InvalidRequest, match=message):
            call(sampler, batch)
    assert log_end(world) == written


@pytest.mark.proves("F20")
def test_numpys_integers_are_integers_at_every_call(world: SamplerWorld) -> None:
    world.writer().flush(*(GroupSpec(example_id=f"ex-{i}") for i in range(8)))
    sampler = world.open()
    one = np.int64(1)
    assert sampler.resume(np.int64(0)) == 1
    batch = sampler.next_batch(one, np.int32(2), timeout_s=WAIT_S, dp_rank=one, dp_size=np.uint8(2))
    assert batch.slots == (1,)
    whole = sampler.next_batch(one, 2, timeout_s=WAIT_S)
    changed = sampler.replace(whole, np.array([1]), "tried", timeout_s=WAIT_S)
    sampler.ack(changed)
    policy = sampler.publish_policy(np.int64(2), policy_version="step-2")
    assert json.loads(json.dumps(policy)) == ["", 1, 2, "step-2", "", {}]
    sampler.checkpointed(one)
    with SamplerView(
        world.name, config=world.config, broker=world.broker(), store=world.store
    ) as view:
        assert (view.batch(one).digest, len(view.batches(one))) == (changed.digest, 1)
    served, replaced = replay_step(world.name, one, config=world.config, broker=world.broker())
    assert served.same
    assert replaced.same
    world.restart()
    check = check_from_files(
        world.name, one, config=world.config, store=world.store, trainer_epoch=one
    )
    assert check.same


@WITHOUT_RAY
@pytest.mark.proves("F20")
def test_who_looks_and_replays_is_told_the_same(world: SamplerWorld) -> None:
    first_batch(world)
    given: dict[str, Any] = {"config": world.config}
    wrong: Any = "0"
    with SamplerView(world.name, broker=world.broker(), store=world.store, **given) as view:
        for call in (lambda: view.batch(wrong), lambda: view.batches(wrong)):
            with pytest.raises(InvalidRequest, match="is '0'; give a whole number"):
                call()
    with pytest.raises(InvalidRequest, match="step is '0'; give a whole number"):
        replay_step(world.name, wrong, broker=world.broker(), **given)
    with pytest.raises(InvalidRequest, match="step is '0'; give a whole number"):
        check_from_files(world.name, wrong, store=world.store, **given)


@WITHOUT_RAY
@pytest.mark.proves("A16")
def test_a_batch_is_acked_by_its_id_as_by_itself(world: SamplerWorld) -> None:
    world.writer().flush(*(GroupSpec(example_id=f"ex-{n}") for n in range(6)))
    sampler = world.open()
    sampler.resume(None)
    first = sampler.next_batch(0, 2, timeout_s=WAIT_S)
    newer = sampler.replace(first, [1], "odd", timeout_s=WAIT_S)
    with pytest.raises(RequestDiffers, match="replaced"):
        sampler.ack(first.batch_id)
    sampler.ack(newer.batch_id, "trained")
    sampler.ack(newer)  # Said twice, it changes nothing.
    second = sampler.next_batch(1, 2, timeout_s=WAIT_S)
    sampler.ack(second.batch_id, status="failed")
    with pytest.raises(RequestDiffers, match="acked as 'failed'"):
        sampler.ack(second)
    with pytest.raises(UnknownStep, match="step 7"):
        sampler.ack(second.batch_id[:-1] + "7")
    for wrong in ("", "7", "trainer-a"):
        with pytest.raises(InvalidRequest, match="batch_id"):
            sampler.ack(wrong)
    with pytest.raises(InvalidRequest, match="give the Batch"):
        sampler.ack(newer.batch_id, outcomes={"trained": [0]})


@WITHOUT_RAY
@pytest.mark.proves("B6")
def test_a_threshold_below_one_step_is_none(world: SamplerWorld) -> None:
    world.configure(order="ready", max_policy_lag=-1, off_branch="keep")
    sampler = world.open()
    late = GroupSpec(example_id="late", rewards=(0.0, 1.0), weight_steps=(0, 1))
    world.writer().flush(GroupSpec(example_id="before"), late)
    sampler.publish_policy(0, policy_version="v0")
    pool = TrajectoryPool(sampler, staleness_threshold=0.1)
    pool.fetch_batch(timeout_s=WAIT_S)
    sampler.publish_policy(1, policy_version="v1")
    found = pool.fetch_batch(timeout_s=WAIT_S)
    assert found is not None
    assert found.off_policy[np.argsort(found.batch.rewards)].tolist() == [True, False]
