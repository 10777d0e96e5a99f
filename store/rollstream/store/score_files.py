"""The files of late scores: Parquet, of what the log of a partition's scores holds.

A file is a function of the records of one partition from the first offset in its name up to the
last one, so that writers may repeat one another, and two of them overlap: readers take the longest
one at each offset, and each record once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import rollstream
from rollstream.schemas.events import Scored
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.arrow import whole_table
from rollstream.store.blobs import Blobs
from rollstream.store.errors import BlobMissing, CorruptFile, NewerFile
from rollstream.store.layout import score_range_in, scores_path, scores_prefix
from rollstream.store.rollups import ROLLED_TOGETHER

SCHEMA = pa.schema(
    [
        ("group_id", pa.string()),
        ("rollout_uid", pa.string()),
        ("scorer", pa.string()),
        ("attempt", pa.string()),
        ("reward", pa.float64()),
        ("rewards", pa.map_(pa.string(), pa.float64())),
        ("flags", pa.list_(pa.string())),
        ("expect_version", pa.int32()),
        ("logged_ts", pa.timestamp("us", tz="UTC")),
        ("scored_ts", pa.timestamp("us", tz="UTC")),
        ("log_generation", pa.int32()),
        ("log_partition", pa.int32()),
        ("log_offset", pa.int64()),
        ("log_entry", pa.int32()),
    ]
)
VERSION_KEY, VERSION = b"rollstream.scores", b"1"  # In a file's metadata; old files have none.
FILE_RECORDS_MAX = 65_536  # Of one file that is written: some 10 MB.
FILE_BYTES_MAX = 64 * 1024 * 1024  # Likewise, in memory: a record may have megabytes of texts.
LIST_EVERY_S = 3600.0  # So long readers that listed a file may take until they open it.


class LoggedScore(NamedTuple):
    """A record of a log of scores."""

    offset: int
    logged_ts: int
    event: Scored

    @property
    def size(self) -> int:
        """Bytes of its texts and rewards, in rows."""
        event = self.event
        named = len(event.group_id) + len(event.scorer) + len(event.attempt)
        return sum(
            named
            + len(one.rollout_uid)
            + sum(len(name) + 8 for name in one.rewards)
            + sum(map(len, one.flags))
            for one in event.scores
        )


class ScoreOrigin(NamedTuple):
    """What sets a record apart from one at the same offset of another log."""

    logged_ts: int
    scored_ts: int
    scorer: str
    attempt: str
    group_id: str

    @classmethod
    def of(cls, record: LoggedScore) -> ScoreOrigin:
        """Of a record."""
        event = record.event
        return cls(record.logged_ts, event.scored_ts, event.scorer, event.attempt, event.group_id)


class ScoreFile(NamedTuple):
    """Of the offsets [first, stop)."""

    first: int
    stop: int
    path: str


class PartitionScores:
    """The files of one partition's scores, for the sealer that owns it: they are listed once, and
    then every ``LIST_EVERY_S``, for what others did meanwhile.

    Args:
        now_s: by a monotonic clock.

    Attributes:
        damaged: files that were opened here and cannot be read; nothing is made of them.
    """

    def __init__(self, blobs: Blobs, address: PartitionAddress, now_s: float) -> None:
        self._blobs = blobs
        self._address = address
        self.damaged: set[ScoreFile] = set()
        self._superseded: set[ScoreFile] = set()
        self._full: set[ScoreFile] = set()  # As large as one may be, in fewer records.
        self._list(now_s)

    @property
    def stop(self) -> int:
        """The first offset of the partition's log that no file covers; the one before it is that of
        a record that can be used."""
        return self._in_turn[-1].stop if self._in_turn else 0

    def last(self) -> ScoreOrigin | None:
        """The last record before ``stop``; None: there is none, or its file is damaged, which says
        nothing of the log."""
        table = self._table(self._in_turn[-1], 0) if self._in_turn else None
        if table is None or not table.num_rows:
            return None
        columns = [table[name][-1:] for name in ScoreOrigin._fields]
        return ScoreOrigin(
            *(column.cast(pa.int64())[0].as_py() for column in columns[:2]),
            *(column[0].as_py() for column in columns[2:]),
        )

    def write(self, first: int, stop: int, records: Sequence[LoggedScore]) -> None:
        """Writes the records of [first, stop), all that can be used of them."""
        write_scores(self._blobs, self._address, first, stop, records)
        self._add(ScoreFile(first, stop, scores_path(self._address, first, stop)))

    def roll_up(self) -> None:
        """Joins the newest files where ``ROLLED_TOGETHER`` or more of them are smaller than one may
        be. So what is opened is a file for each ``FILE_RECORDS_MAX`` records or ``FILE_BYTES_MAX``,
        and fewer than ``ROLLED_TOGETHER`` more. Damaged files are left out, with those before them.

        Raises:
            StoreError: a file was not read or written.
        """
        small: list[ScoreFile] = []
        for file in self._in_turn:
            fits = file.stop - file.first < FILE_RECORDS_MAX
            left_out = file in self.damaged or file in self._full
            small = [*small, file] if fits and not left_out else []
        if len(small) < ROLLED_TOGETHER:
            return
        first, tables, size = small[0].first, list[pa.Table](), 0
        position = first
        for file in small:
            if position - first >= FILE_RECORDS_MAX or size >= FILE_BYTES_MAX:
                break
            table = self._table(file, position)
            if table is None:
                return
            tables.append(table)
            size += table.nbytes
            position = file.stop
        if len(tables) == 1:
            self._full.add(small[0])
            return
        path = scores_path(self._address, first, position)
        _write(self._blobs, path, pa.concat_tables(tables))
        self._add(ScoreFile(first, position, path))

    def look(self, now_s: float) -> None:
        """Where it is time, lists the files, and deletes those that a longer one, which can be
        read, had superseded when they were listed before.

        Raises:
            StoreError: they were not listed or deleted.
        """
        if now_s < self._listed_s + LIST_EVERY_S:
            return
        before = self._superseded
        due = [(longer, file) for longer, file in self._list(now_s) if file in before]
        for longer in {longer for longer, _ in due}:
            self._table(longer, longer.stop)
        for longer, file in due:
            if longer not in self.damaged:
                self._blobs.delete(file.path)

    def _list(self, now_s: float) -> list[tuple[ScoreFile, ScoreFile]]:
        """Returns files, each with one that it supersedes."""
        files = list_files(self._blobs, self._address)
        self._listed_s, self._in_turn = now_s, [*read_in_turn(files)]
        chosen, found = iter(self._in_turn), list[tuple[ScoreFile, ScoreFile]]()
        longer = next(chosen, None)
        for file in sorted(files):
            while longer is not None and longer.stop < file.stop:
                longer = next(chosen, None)
            if longer is not None and longer.first <= file.first and longer != file:
                found.append((longer, file))
        self._superseded = {file for _, file in found}
        return found

    def _add(self, file: ScoreFile) -> None:
        self.damaged.discard(file)
        self._in_turn = [*read_in_turn({*self._in_turn, file})]

    def _table(self, file: ScoreFile, position: int) -> pa.Table | None:
        """The rows of a file from an offset on; None: it is damaged."""
        try:
            return _table(self._blobs, file, position)
        except CorruptFile:
            self.damaged.add(file)
            return None


def write_scores(
    blobs: Blobs, address: PartitionAddress, first: int, stop: int, records: Sequence[LoggedScore]
) -> None:
    """Writes the records of [first, stop), all that can be used of them."""
    rows = [row for record in records for row in _rows_of(address, record)]
    _write(blobs, scores_path(address, first, stop), pa.Table.from_pylist(rows, SCHEMA))


def score_tables(blobs: Blobs, address: PartitionAddress) -> Iterator[pa.Table]:
    """The rows of each record of a partition once, in order. What a damaged file had is read from
    others, where these have it, and what one had that was deleted meanwhile from a longer one.

    Raises:
        CorruptFile: a file is damaged, and no other one has what it had. NewerFile: likewise, of a
            file that a newer version of Rollstream wrote.
    """
    files, position = list_files(blobs, address), 0
    damaged: dict[ScoreFile, CorruptFile | NewerFile] = {}
    while (file := next(read_in_turn(files - damaged.keys(), position), None)) is not None:
        try:
            table = _table(blobs, file, position)
        except (CorruptFile, NewerFile) as error:
            damaged[file] = error
        except BlobMissing:
            files = list_files(blobs, address)
            if file in files:
                raise
        else:
            yield table
            position = file.stop
    for file, why in damaged.items():
        if file.first <= position < file.stop:
            raise why


def list_files(blobs: Blobs, address: PartitionAddress) -> set[ScoreFile]:
    """The files of a partition."""
    found = ((score_range_in(blob.path), blob.path) for blob in blobs.list(scores_prefix(address)))
    return {ScoreFile(*at, path) for at, path in found if at is not None}


def read_in_turn(files: Iterable[ScoreFile], position: int = 0) -> Iterator[ScoreFile]:
    """Those that readers open from an offset on, one after the other: the longest at each offset,
    up to the first gap; behind it versions are not known."""
    left = sorted(files, reverse=True)
    longest: ScoreFile | None = None
    while True:
        while left and left[-1].first <= position:
            file = left.pop()
            if longest is None or file.stop > longest.stop:
                longest = file
        if longest is None or longest.stop <= position:
            return
        yield longest
        position = longest.stop


def _table(blobs: Blobs, file: ScoreFile, position: int) -> pa.Table:
    """The rows of a file from an offset on."""
    try:
        table = whole_table(blobs.read(file.path))
        version = (table.schema.metadata or {}).get(VERSION_KEY, VERSION)
        if version != VERSION:
            raise NewerFile(
                f"{file.path} has scores of version {version.decode()}; rollstream "
                f"{rollstream.__version__} reads {VERSION.decode()}: upgrade this process to the "
                "version of the sealers"
            )
        table = table.select(SCHEMA.names).replace_schema_metadata()
        if position <= file.first:
            return table
        return table.filter(pc.greater_equal(table["log_offset"], position))
    except (pa.ArrowException, KeyError, OSError) as error:
        raise CorruptFile(
            f"{file.path} is damaged: {error}; restore it from a copy, or delete it: the "
            "partition's sealer writes it anew from the log of scores, when it starts or within "
            "the hour"
        ) from error


def _write(blobs: Blobs, path: str, table: pa.Table) -> None:
    out = BytesIO()
    versioned = table.replace_schema_metadata({VERSION_KEY: VERSION})
    pq.write_table(versioned, out, compression="zstd")
    blobs.replace(path, out.getvalue())


def _rows_of(address: PartitionAddress, record: LoggedScore) -> Iterator[dict[str, Any]]:
    event = record.event
    for entry, one in enumerate(event.scores[: None if event.group_id else 1]):
        yield {
            "group_id": event.group_id,
            "rollout_uid": one.rollout_uid,
            "scorer": event.scorer,
            "attempt": event.attempt,
            "reward": one.reward,
            "rewards": sorted(one.rewards.items()),
            "flags": list(one.flags),
            "expect_version": event.expect_version,
            "logged_ts": record.logged_ts,
            "scored_ts": event.scored_ts,
            "log_generation": address.generation,
            "log_partition": address.partition,
            "log_offset": record.offset,
            "log_entry": entry,
        }
