"""``rollstream report`` over runs in memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness.command_line import CONFIG
from harness.published_run import Run
from harness.rollouts import encode_record, make_failed
from rollstream.producers import RolloutProducer
from rollstream.sampler import NotEnoughGroups, TrajectoryPool

STEPS = 6
LATE = 3  # Steps that a long rollout takes.
SHORT, LONG = 5, 70  # Output tokens.
LIMITED = f"{CONFIG}max_policy_lag = 1\n"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path, LIMITED)


def row_of(rows: list[dict[str, Any]], key: str, value: Any) -> dict[str, Any]:
    (row,) = [row for row in rows if row[key] == value]
    return row


def trained_while_long_ones_come_late(run: Run) -> None:
    """Each step trains on the two groups that its policy sampled; every group of long rollouts was
    begun by the policy of three steps before, and a lag of one is allowed."""
    for step in range(STEPS):
        run.publish(f"a{step}", f"b{step}", weight_step=step, output_tokens=[1] * SHORT)
        late = step - LATE
        if late >= 0:
            run.publish(f"long{late}", weight_step=late, output_tokens=[1] * LONG)
        run.seal(2 + (late >= 0))
        with run.sampler() as sampler:
            if step == 0:
                sampler.resume(None)
            sampler.publish_policy(step, policy_version=f"step-{step}")
            sampler.ack(sampler.next_batch(step, 2))
            sampler.checkpointed(step)


@pytest.mark.proves("F12")
def test_the_row_of_the_longest_shows_that_dropping_what_is_stale_starves_it(run: Run) -> None:
    trained_while_long_ones_come_late(run)
    found = run.read("report", "--sampler", "trainer-a")
    shortest, longest = found["by_length"]
    assert (shortest["tokens"], longest["tokens"]) == ([4, 7], [64, 127])
    assert (shortest["trained"], shortest["dropped"]) == (4 * STEPS, {})
    late = 2 * (STEPS - LATE)
    assert (longest["trained"], longest["dropped"]) == (0, {"stale": late})
    assert (shortest["dropped_share"], longest["dropped_share"]) == (0.0, 1.0)
    assert row_of(found["by_lag"], "lag", [2, 3])["dropped"] == {"stale": late}
    assert row_of(found["by_lag"], "lag", [0, 0])["trained"] == 4 * STEPS
    (math,) = found["by_environment"]
    assert math == {"environment": "math", **found["totals"]}
    assert (found["totals"]["trained"], found["next_step"]) == (4 * STEPS, STEPS)
    by_step = found["by_steps"]
    assert [row["steps"] for row in by_step] == [[step, step] for step in range(STEPS)]
    assert [row["trained"] for row in by_step] == [4] * STEPS
    assert [row["dropped"] for row in by_step] == [{}] * LATE + [{"stale": 2}] * (STEPS - LATE)
    lines = run.line.run("report", "--sampler", "trainer-a").stdout.splitlines()
    (starved,) = [line.split() for line in lines if line.startswith("64 to 127")]
    assert starved == ["64", "to", "127", "0", "0", "0", f"{late}", "100%", f"{late}", "stale"]


def test_steps_are_a_range_and_rows_have_as_many_as_are_asked_for(run: Run) -> None:
    trained_while_long_ones_come_late(run)
    found = run.read("report", "--sampler", "trainer-a", "--steps", "1:5", "--by", "3")
    assert [(row["steps"], row["trained"]) for row in found["by_steps"]] == [
        ([1, 3], 12),
        ([4, 6], 4),
    ]
    assert found["totals"]["trained"] == 16
    assert found["totals"]["dropped"] == {"stale": 4}
    tail = run.read("report", "--sampler", "trainer-a", "--steps", "5:")
    assert tail["totals"]["trained"] == 4


def test_why_members_failed_is_one_short_line_that_no_terminal_obeys(run: Run) -> None:
    reason = "\x1b[31mTraceback\nin sandbox " + "x" * 150
    writer = run.line.broker().writer()
    failed = make_failed(group_uid="g", group_size=1, reason=reason)
    writer.append(run.line.layout.rollouts("math"), encode_record([failed]), partition=0)
    assert writer.flush(10) == 0
    run.publish("a")
    run.seal(1)
    with run.sampler() as sampler:
        sampler.resume(None)
        sampler.ack(sampler.next_batch(0, 1))
    found = run.read("report", "--sampler", "trainer-a")
    assert found["failures"] == {"math": {reason: 1}}
    shown = run.line.run("report", "--sampler", "trainer-a").stdout
    (line,) = [one for one in shown.splitlines() if "Traceback" in one]
    assert line.split(maxsplit=2)[2].startswith(r"\x1b[31mTraceback\nin sandbox xxx")
    assert line.endswith("…")
    assert len(line) <= 80


def test_every_end_of_a_rollout_has_its_count(run: Run) -> None:
    """Of each group two rollouts; those of a group that fails were one, and one that never came."""
    writer = run.line.broker().writer()
    failed = make_failed(example_id="lost", group_uid="group of lost", group_size=1)
    writer.append(run.line.layout.rollouts("math"), encode_record([failed]), partition=0)
    assert writer.flush(10) == 0
    run.publish("trained", "skipped", "served", "waiting")
    run.publish("test", split="eval")
    run.seal(5)
    with run.sampler() as sampler:
        sampler.resume(None)
        both = sampler.next_batch(0, 2)
        sampler.ack(both, skipped=[1])
        served = sampler.next_batch(1, 1)
        replaced = sampler.replace(served, [0], "all the same")
        assert replaced.num_groups == 1
    totals = run.read("report", "--sampler", "trainer-a")["totals"]
    assert totals == {
        "trained": 2,
        "unknown": 0,
        "kept": 0,
        "served": 2,
        "waiting": 0,
        "eval": 2,
        "dropped": {"filtered": 2, "skipped": 2},
        "unsealed": {},  # The entry that says that a member failed is no rollout.
        "unfinished": {},
        "dropped_share": 4 / 6,
    }
    # What a release gives back waits again, but for what was filtered.
    with run.sampler() as sampler:
        sampler.resume(None, later="release")
    totals = run.read("report", "--sampler", "trainer-a")["totals"]
    assert (totals["trained"], totals["served"], totals["waiting"]) == (0, 0, 6)
    assert totals["dropped"] == {"filtered": 2}


@pytest.mark.proves("F16")
def test_members_that_failed_were_aborted_or_truncated_are_told_by_length(run: Run) -> None:
    run.publish("a", stop_reason="length", output_tokens=[1] * LONG)
    run.publish("b", stop_reason="abort")
    with (
        RolloutProducer(
            environment="math", broker=run.line.broker(), clock=run.line.clock
        ) as producer,
        producer.dispatch(example_id="c", group_size=3) as group,
    ):
        for _ in range(2):
            group.publish(
                policy_version="step-0",
                weight_step=0,
                prompt_tokens=[1],
                output_tokens=[2],
                logprobs=[-0.5],
                reward=1.0,
            )
        group.fail("crashed")
    run.seal(3)
    found = run.read("report", "--sampler", "trainer-a")
    assert found["totals"]["unfinished"] == {"aborted": 2, "failed": 1, "truncated": 2}
    assert found["totals"]["waiting"] == 6
    longest = row_of(found["by_length"], "tokens", [64, 127])
    assert (longest["waiting"], longest["unfinished"]) == (2, {"truncated": 2})
    assert found["failures"] == {"math": {"crashed": 1}}
    shown = run.read("show", "--longest", "9")
    uid, _ = (one["rollout_uid"] for one in shown if one["failures"] == {"crashed": 1})
    for command in (("show", uid), ("lineage", "--uid", uid)):
        assert "of its members 1 failed: crashed" in run.line.run(*command).stdout
    with run.sampler() as sampler:
        assert sampler.progress().failures == {"math": {"crashed": 1}}
    lines = run.line.run("report", "--sampler", "trainer-a").stdout.splitlines()
    assert [line.split() for line in lines if "crashed" in line] == [["math", "1", "crashed"]]
    (line,) = [line for line in lines if line.startswith("64 to 127")]
    assert line.rstrip().endswith("2 truncated")


def test_a_group_that_is_served_twice_counts_once(tmp_path: Path) -> None:
    run = Run(tmp_path, f"{CONFIG}max_samples = 2\n")
    run.publish("a")
    run.seal(1)
    with run.sampler() as sampler:
        sampler.resume(None)
        for step in range(2):
            sampler.ack(sampler.next_batch(step, 1))
            sampler.checkpointed(step)
    assert run.read("report", "--sampler", "trainer-a")["totals"]["trained"] == 2


def test_what_nobody_decided_about_waits(run: Run) -> None:
    run.publish("a", "b")
    run.seal(2)
    found = run.read("report", "--sampler", "trainer-b")
    assert (found["totals"]["waiting"], found["next_step"]) == (4, 0)
    with run.sampler("trainer-b") as sampler:
        step = sampler.resume(2)
        sampler.publish_policy(step, policy_version="step-3")
        with pytest.raises(NotEnoughGroups):
            sampler.next_batch(step, 2, timeout_s=0.0)
    found = run.read("report", "--sampler", "trainer-b")
    assert found["totals"]["dropped"] == {"stale": 4}
    (lag,) = found["by_lag"]
    assert lag["lag"] == [2, 3]


def test_report_of_nothing_says_what_to_give(run: Run) -> None:
    for wrong in ("5", "a:b", "1:2:3"):
        done = run.line.run("report", "--sampler", "trainer-a", "--steps", wrong)
        assert done.exit_code == 2
        assert "give A:B, A: or :B" in done.stderr
    for asked, told in [
        (["--sampler", "nobody"], "no decision log of a sampler 'nobody'"),
        (["--sampler", "trainer-a", "--steps", "3:3"], "steps 3 to 3 are none"),
        (["--sampler", "trainer-a", "--environment", "maths"], "'maths' is none of math"),
    ]:
        done = run.line.run("report", *asked)
        assert (done.exit_code, done.stdout) == (1, "")
        assert told in done.stderr


POOL = f'{CONFIG}order = "ready"\nmax_policy_lag = -1\noff_branch = "keep"\n'
FETCHES = 6


@pytest.mark.proves("F12", "B6")
@pytest.mark.parametrize(
    ("published", "lags"),
    [
        ((), {"not known": 2 * FETCHES}),
        ((0, 1), {"0": 2, "1": 2 * (FETCHES - 2), "not known": 2}),
    ],
    ids=["no policy", "fewer policies than fetches"],
)
def test_the_lag_of_a_pool_counts_policies_and_not_fetches(
    tmp_path: Path, published: tuple[int, ...], lags: dict[str, int]
) -> None:
    run = Run(tmp_path, POOL)
    run.publish(*(f"p{fetch}" for fetch in range(FETCHES)), weight_step=0)
    run.seal(FETCHES)
    with run.sampler() as sampler:
        pool = TrajectoryPool(sampler)
        for fetch in range(FETCHES):
            assert pool.fetch_batch() is not None
            if fetch < len(published):
                sampler.publish_policy(published[fetch], policy_version=f"v{fetch}")
        assert pool.fetch_batch() is None
    shown = run.line.run("report", "--sampler", "trainer-a").stdout
    lines = [line.rstrip() for line in shown.splitlines()]
    table = lines[lines.index("By lag") + 2 : lines.index("By step")]
    rows = [re.split(r"\s{2,}", line) for line in table]
    assert {lag: int(trained) for lag, trained, *_ in rows} == lags
