"""What the guides show does what they say."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import datasets
import duckdb
import numpy as np
import pytest

from harness.documented_run import (
    AGE_S,
    RELEASED_FROM,
    ROUTED_EXPERTS,
    STEPS,
    DocumentedRun,
)
from harness.printed_pages import PRINTED_FOLDER, blocks
from rollstream.producers import ScoreProducer
from rollstream.store import open_dataset

READING = "guides/reading_the_data.md"
ROOT_OF_THE_PAGE = f"file://{PRINTED_FOLDER}/data"


def snippets(language: str) -> list[str]:
    """The page's blocks of that language, in their order."""
    return [block.text for block in blocks(READING) if block.language == language]


def executed(marker: str, **names: Any) -> dict[str, Any]:
    """The names after the one Python snippet that holds the marker."""
    (snippet,) = (text for text in snippets("python") if marker in text)
    exec(snippet, names)
    return names


def test_queries_read_what_was_sealed_and_served(
    run: DocumentedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.root)
    with connected(run) as connection:
        statements = [
            statement
            for text in snippets("sql")
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
        each = [text.split(";") for text in snippets("sql")]
        results = [
            connection.execute(one).fetchall() for text in each for one in text if one.strip()
        ]
        by_weight_step, by_step = results[5], results[9]
        assert ("math", STEPS - 1, 1.5, 10) in by_weight_step
        assert by_step[-1][:3] == (STEPS - 1, "math", 3.0)
        found = executed("in_polars", connection=connection)
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
        each = [text.split(";") for text in snippets("sql")]
        results = [
            connection.execute(one).fetchall() for text in each for one in text if one.strip()
        ]
        returns = connection.execute("SELECT return FROM trajectories WHERE example_id = 'x'")
        assert sorted(value for (value,) in returns.fetchall()) == [0.5, pytest.approx(1.0)]
    *_, (step, environment, mean, lag) = results[9]
    assert (step, environment) == (STEPS - 1, "math")
    assert (mean, lag) == (pytest.approx(0.75), metrics["lag/mean"])


def test_the_decisions_that_count_are_those_that_no_release_took_back(run: DocumentedRun) -> None:
    with contextlib.chdir(run.root), connected(run) as connection:
        for text in snippets("sql"):
            if "CREATE OR REPLACE" in text:
                connection.execute(text)
        counted = connection.execute("SELECT step, digest FROM batches").fetchall()
    newest = {batch.step: batch for batch in run.served if batch.step < STEPS - 1}
    assert dict(counted) == {step: batch.digest.hex() for step, batch in newest.items()}


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
            [text for text in snippets("sql") if marker in text]
            for marker in ("CREATE OR REPLACE", "step = 7")
        )
        for statement in views:
            connection.execute(statement)
        rows, means = (connection.execute(text).fetchall() for text in ways[0].split(";")[:2])
        assert sorted(row[0] for row in rows) == sorted(batch.uids)
        assert means[-1][:3] == (STEPS - 1, "math", 1.5)
        found = executed("in_polars", connection=connection)
    for frame in (found["in_polars"], found["in_pandas"]):
        assert sorted(frame["rollout_uid"]) == sorted(batch.uids)


def reading(run: DocumentedRun, marker: str, **names: Any) -> dict[str, Any]:
    """``executed``, in the root's folder, over this run's data."""
    (snippet,) = (text for text in snippets("python") if marker in text)
    with contextlib.chdir(run.root):
        exec(snippet.replace(ROOT_OF_THE_PAGE, run.root.as_uri()), names)
    return names


def sealed(run: DocumentedRun) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = open_dataset(run.root.as_uri()).to_table().to_pylist()
    return rows


def test_polars_reads_what_was_sealed(run: DocumentedRun) -> None:
    rows = sealed(run)
    found = reading(run, "import polars")
    uid = found["worst"]["rollout_uid"][0]
    assert found["one"]["rollout_uid"].unique().to_list() == [uid]
    train = [row for row in rows if row["split"] == "train"]
    assert sum(found["mean"]["len"]) == len(train)
    assert len(found["worst"]) == 10
    assert found["means"].to_dicts() == [{"name": "format", "value": 1.0}]


def test_pandas_reads_what_was_sealed(run: DocumentedRun) -> None:
    rows = sealed(run)
    found = reading(run, "import pandas")
    assert set(found["one"].rollout_uid) == {found["worst"].rollout_uid.iloc[0]}
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
    decoded = executed("np.frombuffer", row=row)["of_row"]
    np.testing.assert_array_equal(decoded, ROUTED_EXPERTS)
