"""One trajectory uid in two prompts, from the writer to the batch, and what finds it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.command_line import CONFIG
from harness.producers import flush_by_jumps
from harness.published_run import Run
from harness.rollouts import encode_record, make_ended, make_step, step_uids
from rollstream.producers import InvalidRollout, ScoreProducer, Step, StepProducer
from rollstream.sampler import TrajectoryPool
from rollstream.sampler.history import lineage_of_rollout
from rollstream.schemas.ids import step_rollout_uid
from rollstream.schemas.ingest.entry import Entry

POOL = (
    '[samplers.pool]\nenvironments = ["math"]\norder = "ready"\nmax_policy_lag = -1\n'
    'off_branch = "keep"\ncapacity_groups = 64\n'
)
UID = "dup-t"
FIRST, SECOND = (step_rollout_uid(prompt, UID) for prompt in ("rs3", "rs4"))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path, CONFIG + POOL)


def step(prompt: str, index: int = 0, *, uid: str = UID, **fields: Any) -> Step:
    given = {"is_last": True, "n_rollouts": 1, "reward": 1.0, "logprobs": [-1.0], **fields}
    return Step(
        prompt_ids=[1],
        response_ids=[2],
        trajectory_uid=uid,
        prompt_uid=prompt,
        step_index=index,
        policy_version="step-0",
        weight_step=0,
        **given,
    )


def submit(run: Run, *steps: Step) -> None:
    """By a writer that knows nothing of the others."""
    with StepProducer(broker=run.line.broker(), clock=run.line.clock) as producer:
        producer.submit_steps(steps, environment="math")
        flush_by_jumps(producer)


def append(run: Run, *entries: Entry) -> None:
    """As writers of this version and older ones do."""
    writer = run.line.broker().writer()
    for entry in entries:
        value = encode_record([entry])
        writer.append(run.line.layout.rollouts("math"), value, partition=0)
    assert writer.flush(10) == 0


def two_prompts(run: Run) -> None:
    submit(run, step("rs3"))
    submit(run, step("rs4", reward=0.5))
    run.seal(2)


def audited(run: Run) -> None:
    done = run.line.run("audit", "--digests")
    assert (done.exit_code, "the audit holds" in done.stdout) == (0, True), done.output
    assert "mistake" not in done.stdout


@pytest.mark.proves("B1", "B3")
def test_a_uid_in_two_prompts_is_two_rollouts_and_each_is_served(run: Run) -> None:
    two_prompts(run)
    audited(run)
    with run.sampler("pool") as sampler:
        pool = TrajectoryPool(sampler)
        found = [pool.fetch_batch() for _ in range(2)]
        assert pool.fetch_batch() is None
    batches = {one.prompt_uid: one.batch for one in found if one is not None}
    assert {prompt: batch.uids for prompt, batch in batches.items()} == {
        "rs3": (FIRST,),
        "rs4": (SECOND,),
    }
    assert {batch.trajectory_uids for batch in batches.values()} == {(UID,)}
    assert {prompt: batch.rewards.tolist() for prompt, batch in batches.items()} == {
        "rs3": [1.0],
        "rs4": [0.5],
    }


@pytest.mark.proves("F2", "F18")
def test_show_and_lineage_take_what_was_stored_and_what_the_writer_gave(run: Run) -> None:
    two_prompts(run)
    submit(run, step("rs3"), step("rs5", n_rollouts=2))  # A duplicate, and one that is pending.
    run.publish("whole")
    run.seal(1)
    third = step_rollout_uid("rs5", UID)
    for how in ([], ["--from-files"]):
        shown = run.read("show", UID, *how)
        named = [(one["rollout_uid"], one["trajectory_uid"], one["group_uid"]) for one in shown]
        assert sorted(named) == sorted([(FIRST, UID, "rs3"), (SECOND, UID, "rs4")])
        assert [one["rollout_uid"] for one in run.read("show", SECOND, *how)] == [SECOND]
    assert f"trajectory {UID} of prompt rs4" in run.line.run("show", SECOND).stdout
    (whole,) = run.read("show", "whole-0")
    assert whole["trajectory_uid"] == ""

    traced = {one["rollout_uid"]: one for one in run.read("lineage", "--uid", UID)}
    states = {uid: [entry["state"] for entry in one["entries"]] for uid, one in traced.items()}
    assert states == {FIRST: ["sealed", "duplicate"], SECOND: ["sealed"], third: ["pending"]}
    assert traced[SECOND]["entries"][0]["group"]["group_uid"] == "rs4"
    (alone,) = run.read("lineage", "--uid", SECOND)
    assert alone == traced[SECOND]
    text = run.line.run("lineage", "--uid", UID).stdout
    assert [line for line in text.splitlines() if line.startswith("rollout ")] == [
        f"rollout {uid} of {of}"
        for uid, of in sorted([(FIRST, "rs3"), (SECOND, "rs4"), (third, "no sealed group")])
    ]


@pytest.mark.proves("F2")
def test_lineage_tells_of_each_rollout_what_became_of_it(run: Run) -> None:
    two_prompts(run)
    with run.sampler() as sampler:
        sampler.resume(None)
        batch = sampler.next_batch(0, 1)
        sampler.ack(batch)
    parts: dict[str, Any] = {"config": run.line.config, "broker": run.line.broker()}
    found = lineage_of_rollout(UID, **parts, clock=run.line.clock)
    uses = {
        one.rollout_uid: {sampler.sampler for sampler in one.samplers if sampler.uses}
        for one in found
    }
    (served,) = batch.uids
    (other,) = {FIRST, SECOND} - {served}
    assert uses == {served: {"trainer-a"}, other: set()}


@pytest.mark.proves("A18")
@pytest.mark.parametrize("form", ["trajectory", "rollout", "group"])
def test_a_score_is_of_the_trajectory_of_its_prompt(run: Run, form: str) -> None:
    waits: dict[str, Any] = {"reward": None, "awaits_score": True}
    submit(run, step("rs3", **waits))
    submit(run, step("rs4", **waits))
    run.seal(2)
    groups = {
        one["rollout_uid"]: one["entries"][0]["group"]["group_id"]
        for one in run.read("lineage", "--uid", UID)
    }
    parts: dict[str, Any] = {"broker": run.line.broker(), "clock": run.line.clock}
    with ScoreProducer(environment="math", scorer="tests", **parts) as scores:
        if form == "trajectory":
            scores.publish(rollout_uid=UID, prompt_uid="rs4", reward=0.25)
        elif form == "rollout":
            scores.publish(rollout_uid=SECOND, reward=0.25)
        else:
            scores.upsert_scores(groups[SECOND], {UID: 0.25}, prompt_uid="rs4")
        with pytest.raises(InvalidRollout, match="prompt_uid is 'rs4', and no trajectory is named"):
            scores.publish(group_id=groups[SECOND], prompt_uid="rs4", reward=1.0)
    with run.sampler("pool") as sampler:
        fetched = TrajectoryPool(sampler).fetch_batch(timeout_s=5.0)
        assert fetched is not None
        assert (fetched.prompt_uid, fetched.batch.rewards.tolist()) == ("rs4", [0.25])


@pytest.mark.proves("B3", "F19")
@pytest.mark.parametrize("old_first", [True, False])
def test_a_prompt_of_older_and_newer_writers_ends_as_it_began(run: Run, old_first: bool) -> None:
    """Steps, repetitions and ends under both names, through sealing to the batch and the audit."""
    size: dict[str, Any] = {"group_size": 2, "policy_version": "step-0", "is_last_segment": False}

    def old(index: int) -> None:
        append(run, make_step("rs3", UID, old=True, segment_idx=index, **size))

    def new(index: int) -> None:
        append(run, make_step("rs3", UID, segment_idx=index, **size))

    first, second = (old, new) if old_first else (new, old)
    first(0)
    second(0)
    second(1)
    first(2)
    first(1)
    named = step_uids("rs3", UID, old=not old_first)
    append(run, make_ended(named.pop("rollout_uid"), 3, example_id="rs3", **named))
    with StepProducer(broker=run.line.broker(), clock=run.line.clock) as producer:
        for index in range(2):
            one = step("rs3", index, uid="other", is_last=False, n_rollouts=2)
            producer.submit_step(one, environment="math")
        producer.complete_trajectory("other", environment="math")
        flush_by_jumps(producer)
    run.seal(1)
    audited(run)
    uid = UID if old_first else FIRST
    (shown,) = run.read("show", UID)
    assert (shown["rollout_uid"], len(shown["segments"])) == (uid, 3)
    (traced,) = run.read("lineage", "--uid", uid)
    states = [entry["state"] for entry in traced["entries"]]
    assert states == ["sealed", "duplicate", "sealed", "sealed", "duplicate"]
    with run.sampler("pool") as sampler:
        fetched = TrajectoryPool(sampler).fetch_batch()
        assert fetched is not None
        batch = fetched.batch
    assert batch.trajectory_uids == (UID,) * 3 + ("other",) * 2
    assert batch.uids == (uid,) * 3 + (step_rollout_uid("rs3", "other"),) * 2
    assert batch.trajectory_index.tolist() == [0, 0, 0, 1, 1]
