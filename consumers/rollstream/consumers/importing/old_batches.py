"""Reads rollouts that were written in batches of one worker, with the metadata once a batch.

A file is JSON Lines, a batch a line, or Parquet, a batch a row, with the same names::

    {"metadata": {"worker_id": "worker-3", "timestamp": 1718000000.25, "weight_step": 40},
     "rollouts": [{"environment": "math", "example_id": "ex-7", "policy_version": "step-40",
                   "prompt_tokens": [1, 2], "output_tokens": [3, 4], "logprobs": [-0.1, -0.2],
                   "reward": 1.0}]}

A rollout has fields of ``RolloutRecord``: those of ``old_fields.FIELDS``. It may have ``metadata``
of its own, which goes before its batch's, key by key; keys other than the three become its
``metadata``. Null is as if the field were not there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from rollstream.consumers.importing.old_fields import check_names, known, old_record
from rollstream.schemas.errors import InvalidRollout, WrongValue
from rollstream.schemas.ids import GroupKey, group_id
from rollstream.schemas.records import RolloutGroup, RolloutRecord

LINE_BYTES_MAX = 256 * 1024 * 1024  # Of one batch, which is held whole.
READ_BYTES = 1024 * 1024


class InvalidBatch(WrongValue):
    """A batch of a file cannot be read. The message has the file, the line or row, the field, the
    value and what to do.

    Attributes:
        where: the file, and the line or row in it.
    """

    def __init__(self, where: str, field: str, value: Any, remedy: str, finding: str = "") -> None:
        super().__init__(field, value, remedy, finding)
        self.where = where

    def __str__(self) -> str:
        return f"{self.where}: {super().__str__()}"


def read_old_batches(path: str | Path, environment: str = "") -> Iterator[RolloutGroup]:
    """Yields the groups of a file, with one batch in memory at a time. Each rollout has metadata of
    its own: ``worker_id`` (also as ``replica_id``, if it names none), ``created_ts`` and
    ``weight_step``.

    The members of a group are in one batch. They share environment, example and policy version, and
    ``group_uid`` where they have one; then their policy versions may differ. A rollout without
    ``rollout_uid`` gets one that follows from its batch, so that the batch read again is the same.

    Args:
        path: Parquet, if its name ends with ``.parquet``; else JSON Lines.
        environment: of rollouts that name none.

    Raises:
        InvalidBatch: a batch breaks a rule. The groups of the batches before it were yielded.
        OSError: the file cannot be read.
    """
    read = _parquet_rows if Path(path).suffix == ".parquet" else _json_lines
    for where, batch in read(Path(path)):
        try:
            yield from _groups(batch, environment)
        except InvalidRollout as error:
            told = (error.field, error.value, error.remedy, error.finding)
            raise InvalidBatch(where, *told) from error


def _json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        lines = iter(lambda: file.readline(LINE_BYTES_MAX + 1), b"")
        for number, line in enumerate(lines, start=1):
            where = f"{path}, line {number}"
            if len(line) > LINE_BYTES_MAX:
                remedy = "write its rollouts as several batches"
                finding = f"has more than {LINE_BYTES_MAX:,} bytes"
                raise InvalidBatch(where, "the batch", len(line), remedy, finding)
            if line.isspace():
                continue
            try:
                batch = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                finding = f"is no JSON ({error})"
                remedy = "write one JSON object on the line"
                raise InvalidBatch(where, "the batch", line, remedy, finding) from error
            yield where, batch


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        try:
            # With its own buffer it does not read a row group at once.
            parquet = pq.ParquetFile(file, buffer_size=READ_BYTES, pre_buffer=False)
            batches = parquet.iter_batches(batch_size=1)
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, row in enumerate(rows, start=1):
                yield f"{path}, row {number}", row
        except (pa.ArrowException, OSError) as error:
            remedy = "give a whole Parquet file, or name JSON Lines otherwise"
            finding = f"cannot be read as Parquet ({error})"
            raise InvalidBatch(str(path), "the file", path.name, remedy, finding) from error


def _groups(batch: Any, environment: str) -> Iterator[RolloutGroup]:
    batch = known("the batch", batch)
    check_names(batch, ("metadata", "rollouts"))
    shared, rollouts = known("metadata", batch.get("metadata", {})), batch.get("rollouts")
    if not isinstance(rollouts, list):
        raise InvalidRollout("rollouts", rollouts, "give a list of objects")
    text = orjson.dumps(batch, default=repr, option=orjson.OPT_SORT_KEYS)
    digest = hashlib.blake2b(text, digest_size=16).hexdigest()
    groups: dict[GroupKey, list[RolloutRecord]] = {}
    for index, rollout in enumerate(rollouts):
        name = f"rollouts[{index}]"
        given = {"rollout_uid": f"{digest}-{index}", **known(name, rollout)}
        if environment:
            given.setdefault("environment", environment)
        try:
            record = old_record(given, shared)
        except InvalidRollout as error:
            told = (error.value, error.remedy, error.finding)
            raise InvalidRollout(f"{name}.{error.field}", *told) from error
        version = "" if record.group_uid else record.policy_version
        key = GroupKey(record.environment, record.example_id, 0, version, record.group_uid)
        groups.setdefault(key, []).append(record)
    for key, members in groups.items():
        newest = max(member.created_ts for member in members)
        uids = [member.rollout_uid for member in members]
        yield RolloutGroup.of(group_id(key, uids), members, newest)
