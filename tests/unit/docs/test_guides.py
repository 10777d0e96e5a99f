"""What the guides show does what they say."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import duckdb
import numpy as np
import pandas
import polars
import pyarrow.compute as pc
import pytest

from harness.brokers import until
from harness.documented_run import (
    AGE_S,
    RELEASED_FROM,
    ROUTED_EXPERTS,
    STEPS,
    TURNS,
    DocumentedRun,
)
from harness.pages import snippets
from rollstream.producers import NoPolicy, RunOver, ScoreProducer
from rollstream.store import open_dataset

MULTI_TURN = "guides/multi_turn.md"
READING = "guides/reading_the_data.md"
TRAINING = "guides/training_loop.md"
GROUPS = 160  # Every eighth has equal rewards, and the snippet asks for 64.


def executed(page: str, marker: str, **names: Any) -> dict[str, Any]:
    """The names after the one Python snippet of the page that holds the marker."""
    (snippet,) = (text for text in snippets(page, "python") if marker in text)
    exec(snippet, names)
    return names


def test_advantages_are_averaged_by_trajectory(run: DocumentedRun) -> None:
    batch = next(b for b in run.served if {"web"} < set(b.environments))
    found = executed(MULTI_TURN, "advantages =", batch=batch)
    expected = [1.0 if index % 2 else 0.0 for index in range(2 * batch.num_groups)]
    assert found["returns"].tolist() == expected
    assert found["advantages"].tolist() == [value - 0.5 for value in expected]
    assert len(found["per_token"]) == len(batch.tokens)
    of_three_turns = np.bincount(batch.trajectory_index) == max(TURNS)
    assert of_three_turns.any()
    rows = of_three_turns[batch.trajectory_index]
    assert set(found["per_row"][rows].tolist()) == {0.5}
    weights = executed(MULTI_TURN, "of_token", **found)["weights"]
    sums = np.bincount(np.repeat(batch.trajectory_index, np.diff(batch.offsets)), weights)
    assert sums == pytest.approx(1 / len(expected))


CONVERSATION = {
    "load_weights": len,
    "prompt": [1, 2],
    "context": [1, 2],
    "turns": 3,
    "reward": 1.0,
    "sample": lambda context: ([8, 9], [-0.1, -0.2]),
    "respond": lambda sampled: [5],
    "next_context": lambda context, sampled: [*context, *sampled, 5],
}


def rows_of(run: DocumentedRun, example_id: str) -> list[dict[str, Any]]:
    """In the order of turns; of one rollout."""
    run.seal(1)
    table = open_dataset(run.root).to_table(filter=pc.field("example_id") == example_id)
    rows: list[dict[str, Any]] = table.sort_by("log_offset").to_pylist()
    return [row for row in rows if row["rollout_uid"] == rows[0]["rollout_uid"]]


def test_a_conversation_is_one_sequence_with_a_mask(tmp_path: Path) -> None:
    run = DocumentedRun(tmp_path)
    with run.producer() as producer, producer.dispatch(example_id="chat", group_size=1) as group:
        executed(MULTI_TURN, "seen = respond", producer=producer, group=group, **CONVERSATION)
    (row,) = rows_of(run, "chat")
    assert row["prompt_tokens"] == [1, 2]
    assert row["output_tokens"] == [8, 9, 5] * 3
    assert row["loss_mask"] == [True, True, False] * 3


def test_a_trajectory_has_a_row_a_turn_each_with_its_whole_context(tmp_path: Path) -> None:
    run = DocumentedRun(tmp_path)
    with run.producer() as producer:
        for _ in range(2):  # The snippet names a group of two.
            executed(MULTI_TURN, "trajectory.turn(", producer=producer, **CONVERSATION)
    found = [
        (row["prompt_tokens"], row["output_tokens"], row["reward"]) for row in rows_of(run, "web-3")
    ]
    assert found == [
        ([1, 2], [8, 9], None),
        ([1, 2, 8, 9, 5], [8, 9], None),
        ([1, 2, 8, 9, 5, 8, 9, 5], [8, 9], 1.0),
    ]


TIMEOUT_S = 30.0


def sampled_twice(problem: str) -> list[tuple[list[int], list[float], float]]:
    return [([1, 2], [-0.1, -0.2], reward) for reward in (0.0, 1.0)]


def test_a_worker_loads_the_newest_policy_and_samples_with_it(tmp_path: Path) -> None:
    run = DocumentedRun(tmp_path)
    fetched: list[str] = []
    with run.producer() as producer:
        names = executed(
            TRAINING,
            "producer.policy(timeout_s=60)",
            producer=producer,
            problems=["aime-17"],
            load_weights=fetched.append,
            sample=sampled_twice,
        )
        assert names["group"].wanted()
    policy = names["policy"]
    assert (policy.step, policy.version) == (RELEASED_FROM, f"step-{RELEASED_FROM}.e1")
    assert fetched == [f"/weights/step-{RELEASED_FROM}"]


def is_over(ask: Callable[[], object]) -> bool:
    """Whether asking for a policy says that the run is over."""
    try:
        ask()
    except NoPolicy as error:
        return isinstance(error, RunOver)
    return False


@pytest.mark.parametrize("ends_in", ["dispatch", "sample"])
def test_a_worker_whose_run_ends_ends_without_a_failed_member(tmp_path: Path, ends_in: str) -> None:
    run = DocumentedRun(tmp_path)
    problems = map(str, range(3))
    with run.producer() as producer, run.sampler() as sampler:
        policy = producer.policy(timeout_s=TIMEOUT_S)

        def ending(call: Callable[..., Any]) -> Callable[..., Any]:
            """The run ends before the call."""

            def ended(*arguments: Any, **named: Any) -> Any:
                sampler.finish()
                # A thread tells workers, and the run's clock, which it does not move, ends waits.
                until(
                    lambda: is_over(lambda: producer.policy(newer_than=policy, timeout_s=TIMEOUT_S))
                )
                return call(*arguments, **named)

            return ended

        calls: dict[str, Callable[..., Any]] = {
            "dispatch": producer.dispatch,
            "sample": sampled_twice,
        }
        calls[ends_in] = ending(calls[ends_in])
        executed(
            TRAINING,
            "producer.policy(timeout_s=60)",
            producer=SimpleNamespace(policy=producer.policy, dispatch=calls["dispatch"]),
            problems=problems,
            load_weights=len,
            sample=calls["sample"],
        )
        producer.flush()
        run.seal(1)
        progress = sampler.progress()
    assert list(problems) == ["2"]
    assert (progress.dispatched, progress.never_back, progress.unfinished) == ({}, {}, {})


@pytest.mark.proves("F13")
def test_groups_with_equal_rewards_are_replaced(tmp_path: Path) -> None:
    run = DocumentedRun(tmp_path)
    with run.sampler() as sampler:
        policy = sampler.publish_policy(RELEASED_FROM + 1, policy_version="newer")
        with run.producer() as producer:
            for number in range(GROUPS):
                with producer.dispatch(example_id=f"easy-{number}", group_size=2) as group:
                    for reward in (1.0, 0.0 if number % 8 else 1.0):
                        group.publish(
                            policy_version=policy.version,
                            weight_step=policy.step,
                            policy_epoch=policy.epoch,
                            output_tokens=[1],
                            logprobs=[-0.1],
                            reward=reward,
                        )
        run.seal(GROUPS)
        found = executed(TRAINING, "equal rewards", sampler=sampler, step=RELEASED_FROM + 1)
        assert found["attempt"] > 0
        assert found["equal"] == []
        assert found["batch"].metrics()["all_equal_share"] == 0.0


def test_queries_read_what_was_sealed_and_served(
    run: DocumentedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.root)
    with connected(run) as connection:
        statements = [
            statement
            for text in snippets(READING, "sql")
            for statement in text.split(";")
            if statement.strip()
        ]
        results = [connection.execute(statement).fetchall() for statement in statements]
        assert all(results[5:7])
        trained = connection.execute("SELECT step, trainer_epoch FROM batches ORDER BY step")
        assert trained.fetchall() == [(step, 1) for step in range(RELEASED_FROM)] + [
            (RELEASED_FROM, 2)
        ]


def connected(run: DocumentedRun) -> duckdb.DuckDBPyConnection:
    """DuckDB with this run's scores."""
    connection: duckdb.DuckDBPyConnection = reading(run, "open_scores")["connection"]
    return connection


def test_queries_use_the_scores_in_effect(tmp_path: Path) -> None:
    run = DocumentedRun(tmp_path)
    with run.sampler() as sampler:
        sampler.ack(run.served[-1])
        run.clock.advance(2 * AGE_S)  # No older group is left for it.
        policy = sampler.publish_policy(STEPS - 1, policy_version="newer")
        with run.producer() as producer, producer.dispatch(example_id="x", group_size=3) as group:
            uids = [
                group.publish(policy=policy, output_tokens=[1], logprobs=[-0.1]) for _ in range(3)
            ]
        run.seal(1)
        with ScoreProducer(environment="math", scorer="tests", broker=run.broker) as scores:
            for uid in uids:
                scores.publish(rollout_uid=uid, reward=0.25)
                scores.publish(rollout_uid=uid, reward=3.0)
        batch = sampler.next_batch(STEPS - 1, 1, timeout_s=1.0)
        sampler.flush()
        with run.producer() as producer, producer.dispatch(example_id="y", group_size=1) as group:
            group.publish(policy=policy, output_tokens=[1], logprobs=[-0.1], reward=3.0)
    run.seal(1)  # A sealer that starts files the scores.
    assert batch.rewards.tolist() == [3.0] * 3
    with contextlib.chdir(run.root), connected(run) as connection:
        each = [text.split(";") for text in snippets(READING, "sql")]
        results = [
            connection.execute(one).fetchall() for text in each for one in text if one.strip()
        ]
        by_weight_step, by_step = results[5], results[9]
        assert ("math", STEPS - 1, 1.5, 10) in by_weight_step
        assert by_step[-1][:3] == (STEPS - 1, "math", 3.0)
        names = executed(READING, "def decisions")
        found = executed(READING, "in_polars", **names, pl=polars, pd=pandas)
    for frame in (found["in_polars"], found["in_pandas"]):
        assert set(frame["reward"]) == {3.0}


def test_the_return_of_turns_with_and_without_a_reward_is_that_of_the_batch(tmp_path: Path) -> None:
    run = DocumentedRun(tmp_path)
    with run.sampler() as sampler:
        sampler.ack(run.served[-1])
        run.clock.advance(2 * AGE_S)  # No older group is left for it.
        policy = sampler.publish_policy(STEPS - 1, policy_version="newer")
        with run.producer() as producer, producer.dispatch(example_id="x", group_size=2) as group:
            for rewards in ((None, 0.3, 0.7), (0.25, None, 0.25)):
                with group.trajectory() as trajectory:
                    for reward in rewards:
                        trajectory.turn(
                            policy=policy, output_tokens=[1], logprobs=[-0.1], reward=reward
                        )
        run.seal(1)
        batch = sampler.next_batch(STEPS - 1, 1, timeout_s=1.0)
        sampler.flush()
    metrics = batch.metrics()
    assert metrics["reward/mean"] == pytest.approx(0.75)
    with contextlib.chdir(run.root), connected(run) as connection:
        each = [text.split(";") for text in snippets(READING, "sql")]
        results = [
            connection.execute(one).fetchall() for text in each for one in text if one.strip()
        ]
        returns = connection.execute("SELECT return FROM trajectories WHERE example_id = 'x'")
        assert sorted(value for (value,) in returns.fetchall()) == [0.5, pytest.approx(1.0)]
    *_, (step, environment, mean, lag) = results[9]
    assert (step, environment) == (STEPS - 1, "math")
    assert (mean, lag) == (pytest.approx(0.75), metrics["lag/mean"])


def test_the_decisions_that_count_are_those_that_no_release_took_back(run: DocumentedRun) -> None:
    (snippet,) = (text for text in snippets(READING, "python") if "def decisions" in text)
    names: dict[str, Any] = {}
    exec(snippet.partition("trained_on =")[0], names)
    counted = names["decisions"](run.root, "trainer-a")
    newest = {batch.step: batch for batch in run.served if batch.step < STEPS - 1}
    assert {step: one["digest"] for step, one in counted.items()} == {
        step: batch.digest.hex() for step, batch in newest.items()
    }


def test_what_a_step_was_trained_on_has_no_rows_that_an_age_limit_left_out(tmp_path: Path) -> None:
    run = DocumentedRun(tmp_path)
    with run.sampler() as sampler:
        sampler.ack(run.served[-1])
        policy = sampler.publish_policy(STEPS - 1, policy_version="newer")
        with run.producer() as producer, producer.dispatch(example_id="x", group_size=3) as group:
            for reward in range(3):
                group.publish(
                    policy=policy,
                    output_tokens=[1],
                    logprobs=[-0.1],
                    reward=float(reward),
                )
                if not reward:
                    run.clock.advance(2 * AGE_S)
        run.seal(1)
        batch = sampler.next_batch(STEPS - 1, 1, timeout_s=1.0)
        sampler.flush()
    assert batch.rewards.tolist() == [1.0, 2.0]
    with contextlib.chdir(run.root), connected(run) as connection:
        views, ways = (
            [text for text in snippets(READING, "sql") if marker in text]
            for marker in ("CREATE OR REPLACE", "step = 7")
        )
        for statement in views:
            connection.execute(statement)
        rows, means = (connection.execute(text).fetchall() for text in ways[0].split(";")[:2])
        assert sorted(row[0] for row in rows) == sorted(batch.uids)
        assert means[-1][:3] == (STEPS - 1, "math", 1.5)
        names = executed(READING, "def decisions")
        found = executed(READING, "in_polars", **names, pl=polars, pd=pandas)
    for frame in (found["in_polars"], found["in_pandas"]):
        assert sorted(frame["rollout_uid"]) == sorted(batch.uids)


def reading(run: DocumentedRun, marker: str, **names: Any) -> dict[str, Any]:
    """``executed``, in the root's folder, over this run's data."""
    (snippet,) = (text for text in snippets(READING, "python") if marker in text)
    with contextlib.chdir(run.root):
        exec(snippet.replace("file:///data/run-17", run.root.as_uri()), names)
    return names


def sealed(run: DocumentedRun) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = open_dataset(run.root.as_uri()).to_table().to_pylist()
    return rows


def test_polars_reads_what_was_sealed(run: DocumentedRun) -> None:
    rows = sealed(run)
    uid = rows[0]["rollout_uid"]
    found = reading(run, "import polars", uid=uid)
    assert found["one"]["rollout_uid"].unique().to_list() == [uid]
    train = [row for row in rows if row["split"] == "train"]
    assert sum(found["mean"]["len"]) == len(train)
    assert len(found["worst"]) == 10
    assert found["means"].to_dicts() == [{"name": "format", "value": 1.0}]


def test_pandas_reads_what_was_sealed(run: DocumentedRun) -> None:
    rows = sealed(run)
    uid = rows[0]["rollout_uid"]
    found = reading(run, "import pandas", uid=uid)
    assert set(found["one"].rollout_uid) == {uid}
    assert len(found["train"]) == sum(row["split"] == "train" for row in rows)
    assert set(found["worst"].reward) == {0.0}
    assert found["means"].to_dict() == {"format": 1.0}


def test_hugging_face_datasets_read_what_was_sealed(
    run: DocumentedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    rows = sealed(run)
    found = reading(run, "import Dataset")
    of_math = [row for row in rows if row["environment"] == "math"]
    for loaded, expected in ((found["math"], of_math), (found["everything"], rows)):
        for name in ("rollout_uid", "rewards", "output_tokens", "token_array_routed_experts"):
            assert sorted(map(repr, loaded[name])) == sorted(repr(row[name]) for row in expected)


def test_named_arrays_come_back_as_they_were_published(run: DocumentedRun) -> None:
    found = reading(run, "import open_dataset, token_array")
    arrays = [found["experts"].row(index) for index in range(len(found["table"]))]
    assert {None if array is None else array.tobytes() for array in arrays} == {
        None,
        ROUTED_EXPERTS.tobytes(),
    }
    assert found["of_first_row"].shape == ROUTED_EXPERTS.shape
    row = next(row for row in sealed(run) if row["environment"] == "math")
    decoded = executed(READING, "np.frombuffer", row=row)["of_row"]
    np.testing.assert_array_equal(decoded, ROUTED_EXPERTS)
