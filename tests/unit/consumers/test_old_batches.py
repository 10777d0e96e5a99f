"""Files with the metadata once a batch: read as rollouts with metadata of their own."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.source_tree import ROOT
from rollstream.consumers import InvalidBatch, read_old_batches
from rollstream.consumers.importing import old_batches
from rollstream.schemas.records import RolloutGroup, RolloutMetadata

GOLDEN = ROOT / "tests" / "golden" / "old_batches.v1.jsonl"
METADATA = {"worker_id": "worker-0", "timestamp": 10.5, "weight_step": 4}
ROLLOUT = {
    "environment": "math",
    "example_id": "ex-1",
    "policy_version": "step-4",
    "output_tokens": [1, 2],
}


def written(folder: Path, *batches: Any) -> Path:
    path = folder / "old.jsonl"
    path.write_text("".join(f"{json.dumps(batch)}\n" for batch in batches), encoding="utf-8")
    return path


def batch_of(*rollouts: Any, **metadata: Any) -> Any:
    return {"metadata": {**METADATA, **metadata}, "rollouts": list(rollouts)}


def keys(groups: Sequence[RolloutGroup]) -> list[tuple[str, str, str, int]]:
    return [(g.environment, g.example_id, g.policy_version, len(g.rollouts)) for g in groups]


@pytest.mark.proves("E5")
def test_the_golden_file_is_read_as_what_it_was() -> None:
    groups = list(read_old_batches(GOLDEN, "code"))
    assert keys(groups) == [
        ("math", "ex-7", "step-40", 2),
        ("math", "ex-8", "step-40", 1),
        ("code", "ex-9", "mixed", 2),
    ]
    first, second, third, fourth, fifth = (one for group in groups for one in group.rollouts)
    shared = RolloutMetadata("worker-3", 1718000000.25, 40)
    assert (first.rollout_metadata, third.rollout_metadata) == (shared, shared)
    assert second.rollout_metadata == RolloutMetadata("worker-3", 1718000000.25, 39)
    assert fifth.rollout_metadata == RolloutMetadata("worker-4", 1718000060.0, 41)
    assert (first.metadata, second.metadata) == (
        {"host": "node-7"},
        {"host": "node-7", "seed": 7},
    )
    assert (first.replica_id, fourth.replica_id) == ("worker-3", "replica-1")
    assert (first.prompt_tokens.tolist(), first.output_tokens.tolist()) == ([1, 2], [3, 4])
    assert first.logprobs is not None
    assert first.logprobs.tolist() == [-0.25, -0.5]
    assert (first.prompt_count, first.token_count, first.reward) == (2, 2, 1.0)
    assert (third.split, third.stop_reason, third.rewards) == ("eval", "length", {"format": 1.0})
    assert third.loss_mask is not None
    assert third.loss_mask.tolist() == [True]
    assert (fourth.rollout_uid, fourth.group_uid, fourth.group_size) == ("r-1", "g-1", 2)
    assert (fifth.reward, fifth.logprobs) == (None, None)


@pytest.mark.proves("E5")
def test_parquet_with_the_same_names_is_read_as_the_same(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
    path = tmp_path / "old.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    for of_json, of_parquet in zip(
        read_old_batches(GOLDEN, "code"), read_old_batches(path, "code"), strict=True
    ):
        for one, other in zip(of_json.rollouts, of_parquet.rollouts, strict=True):
            assert one.rollout_metadata == other.rollout_metadata
            assert one.output_tokens.tolist() == other.output_tokens.tolist()
            assert (one.metadata, one.rewards) == (other.metadata, other.rewards)


def test_the_same_batch_gives_the_same_ids_and_another_gives_others(tmp_path: Path) -> None:
    path = written(tmp_path, batch_of(ROLLOUT, ROLLOUT), batch_of(ROLLOUT, timestamp=11.0))
    first, other = read_old_batches(path)
    assert [group.id for group in read_old_batches(path)] == [first.id, other.id]
    assert len({*first.metadata["uids"], *other.metadata["uids"]}) == 3


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=6), max_size=5))
def test_every_rollout_is_in_one_group_of_its_batch(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[str]]
) -> None:
    path = written(
        tmp_path_factory.mktemp("old"),
        *(
            batch_of(*({**ROLLOUT, "example_id": example} for example in examples), weight_step=at)
            for at, examples in enumerate(batches)
        ),
    )
    found = [
        (group.rollouts[0].weight_step, group.example_id, len(group.rollouts))
        for group in read_old_batches(path)
    ]
    assert found == [
        (at, example, examples.count(example))
        for at, examples in enumerate(batches)
        for example in dict.fromkeys(examples)
    ]


def test_batches_are_read_one_by_one(tmp_path: Path) -> None:
    path = written(tmp_path, batch_of(ROLLOUT), "no batch")
    groups = read_old_batches(path)
    assert next(groups).example_id == "ex-1"
    with pytest.raises(InvalidBatch, match="line 2: the batch is 'no batch'; give an object"):
        next(groups)


WRONG: dict[str, tuple[Any, str]] = {
    "metadata.timestamp": (batch_of(ROLLOUT, timestamp=None), "is missing; give it in the"),
    "metadata.timestamp of ms": (batch_of(ROLLOUT, timestamp=1.7e12), "1.7e+12|17000.*; give sec"),
    "metadata.worker_id": (batch_of(ROLLOUT, worker_id=3), "is 3; give a string"),
    "weight_step": (batch_of(ROLLOUT, weight_step=-2), "is -2; steps count from 0"),
    "output_tokens": (batch_of({**ROLLOUT, "output_tokens": None}), "is missing; give it"),
    "output_tokens of text": (batch_of({**ROLLOUT, "output_tokens": "ab"}), "give one number a"),
    "output_tokens of parts": (
        batch_of({**ROLLOUT, "output_tokens": [[1], [2, 3]]}),
        "give an array of numbers",
    ),
    "output_tokens[0]": (batch_of({**ROLLOUT, "output_tokens": [0.5]}), "is 0.5; give numbers"),
    "output_tokens[1]": (batch_of({**ROLLOUT, "output_tokens": [1, -1]}), "is -1; token ids"),
    "output_tokens[0] that is large": (
        batch_of({**ROLLOUT, "output_tokens": [2**40]}),
        "dtype <i4",
    ),
    "logprobs": (batch_of({**ROLLOUT, "logprobs": [-1.0]}), "has 1 values for 2 output tokens"),
    "logprobs[0]": (batch_of({**ROLLOUT, "logprobs": [1.0, -1.0]}), "is 1.0; log-probs are"),
    "loss_mask[0]": (batch_of({**ROLLOUT, "loss_mask": [2, 0]}), "is 2; give numbers of dtype"),
    "group_size": (
        batch_of({**ROLLOUT, "group_size": 2**63}),
        "is 9223372036854775808; give a number",
    ),
    "policy_epoch": (batch_of({**ROLLOUT, "policy_epoch": 2**64 - 1}), "give a number from 0 to"),
    "reward": (batch_of({**ROLLOUT, "reward": True}), "is True; give a number"),
    "policy_version": (batch_of({**ROLLOUT, "policy_version": ""}), "must name a folder"),
    "split": (batch_of({**ROLLOUT, "split": "test"}), "give 'train' or 'eval'"),
    "answer": (batch_of({**ROLLOUT, "answer": 3}), "is not a field here; leave it out"),
    "environment": (batch_of({**ROLLOUT, "environment": None}), "is missing; give it"),
}


@pytest.mark.parametrize("field", WRONG)
def test_what_breaks_a_rule_is_named_with_file_line_field_value_and_remedy(
    tmp_path: Path, field: str
) -> None:
    batch, told = WRONG[field]
    path = written(tmp_path, batch_of(ROLLOUT), batch)
    with pytest.raises(InvalidBatch, match=told) as raised:
        list(read_old_batches(path))
    name = field.split(maxsplit=1)[0]
    assert str(raised.value).startswith(f"{path}, line 2: rollouts[0].{name} ")
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "the batch is no JSON"),
        ("[]", "the batch is []; give an object"),
        ('{"metadata": 3, "rollouts": []}', "metadata is 3; give an object"),
        ('{"rollouts": {}}', "rollouts is {}; give a list of objects"),
        ('{"rollouts": [3]}', "rollouts[0] is 3; give an object"),
        ('{"rollouts": [], "groups": []}', "groups is not a field here"),
    ],
)
def test_a_line_that_is_no_batch_is_named(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "old.jsonl"
    path.write_text(f"\n{line}\n", encoding="utf-8")
    with pytest.raises(InvalidBatch) as raised:
        list(read_old_batches(path))
    assert str(raised.value).startswith(f"{path}, line 2: {told}")


def test_a_batch_that_is_too_large_is_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_batches, "LINE_BYTES_MAX", 100)
    path = written(tmp_path, batch_of(ROLLOUT))
    with pytest.raises(InvalidBatch, match="more than 100 bytes; write its rollouts as several"):
        list(read_old_batches(path))


@pytest.mark.parametrize("cut", [0, 4, -20])
def test_a_damaged_parquet_file_is_named(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "old.parquet"
    pq.write_table(pa.Table.from_pylist([batch_of(ROLLOUT)]), path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InvalidBatch, match="cannot be read as Parquet"):
        list(itertools.islice(read_old_batches(path), 3))
