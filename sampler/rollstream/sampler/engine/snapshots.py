"""Keeps a sampler's state beside its log, so that a start reads what came after it.

A snapshot is a hint: the logs are the truth, and they prove it or it is passed over. One that is
missing, damaged, older, or another version's costs time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from threading import Thread

from rollstream.folds.saved_state import (
    UnusableState,
    copied,
    from_bytes,
    to_pieces,
)
from rollstream.folds.state import SamplerState
from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline
from rollstream.schemas.codec import decode_as
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import Claimed
from rollstream.schemas.ids import PartitionAddress
from rollstream.store.blobs import Blobs, Pieces
from rollstream.store.bounded import bounded
from rollstream.store.errors import StoreError
from rollstream.store.layout import snapshot_path, snapshots_prefix
from rollstream.streams.broker import Broker, Record, TopicPartition
from rollstream.streams.errors import BrokerUnavailable
from rollstream.streams.owned.fold import FoldPlace, SavedFold
from rollstream.streams.reading import all_bounds_in_time, read_windows

EVENTS_BETWEEN = 512  # Decisions and flushes that a start folds in a few seconds.
SECONDS_BETWEEN = 30.0
KEPT = 2
CLOSE_WAIT_S = 10.0
_log = logging.getLogger("rollstream.sampler")


class Snapshots:
    """Writes snapshots in a thread of its own, and finds those that the logs prove.

    Not shared between threads, but for the one that writes.

    Args:
        empty: a state that folded nothing.
        seal_logs: those that it folds.

    Attributes:
        root_id: of the store's root; a snapshot of another one is passed over.
        disproved: next offset of a snapshot of this very log that the log does not prove; 0: none.
    """

    def __init__(
        self,
        blobs: Blobs,
        where: TopicPartition,
        empty: SamplerState,
        seal_logs: Mapping[TopicPartition, PartitionAddress],
        broker: Broker,
        clock: Clock,
    ) -> None:
        self.root_id = ""
        self.disproved = 0
        self._blobs = blobs
        self._where = where
        self._empty = empty
        self._seal_logs = seal_logs
        self._broker = broker
        self._clock = clock
        self._thread: Thread | None = None
        self._events = 0  # That the newest one holds which was found or written.
        self._written_s = clock.monotonic_s()  # What came since the start costs a start little.
        self._useless: list[str] = []  # Paths of those that were passed over.

    def found(self, deadline: Deadline) -> Iterator[SavedFold[SamplerState]]:
        """The states that were written, the newest first; of each, the seal logs hold what it
        applied. Whether the decision log does is for who reads it to say.

        Raises:
            BrokerUnavailable: the seal logs were not read in time.
        """
        blobs = bounded(self._blobs, deadline.timeout_s, deadline.clock)
        try:
            paths = [blob.path for blob in blobs.list(self._prefix)]
        except StoreError as error:
            _log.warning("no snapshot of sampler %r was looked for: %s", self._empty.name, error)
            return
        for path in reversed(paths):
            try:
                saved = from_bytes(blobs.read(path), self._identity, self._empty)
                self._check_seal_logs(saved.fold, deadline)
            except BrokerUnavailable:
                raise
            except Exception as error:  # noqa: BLE001, whatever it is, the logs say the same
                foreseen = isinstance(error, UnusableState | StoreError)
                _log.log(
                    logging.INFO if foreseen else logging.WARNING,
                    "%s is passed over: %r",
                    path,
                    error,
                    exc_info=not foreseen,
                )
                self._useless.append(path)
                continue
            self._events = saved.fold.events
            yield saved
            # Whoever asks for the next one did not take it.
            self._useless.append(path)
            self.disproved = max(self.disproved, saved.place.next_offset)
            self._events = 0

    def is_due(self, state: SamplerState) -> bool:
        """Whether a start would have much to read that no snapshot holds."""
        return (
            state.events - self._events >= EVENTS_BETWEEN
            and self._clock.monotonic_s() - self._written_s >= SECONDS_BETWEEN
            and (self._thread is None or not self._thread.is_alive())
        )

    def write(self, state: SamplerState, place: FoldPlace, *, compared: bool) -> None:
        """Writes the state as it is now, while the caller goes on.

        Args:
            compared: whether the log was compared with the files. If not, snapshots that could not
                be used stay: they may tell that the log was cut back.
        """
        if self.disproved and not compared:
            return
        self._events, self._written_s = state.events, self._clock.monotonic_s()
        saved = SavedFold(copied(state), place)
        self._thread = Thread(
            target=self._write, args=(saved, compared), name="rollstream-snapshot", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Waits for the one that is being written, up to ``CLOSE_WAIT_S``."""
        if self._thread is not None:
            self._thread.join(CLOSE_WAIT_S)

    @property
    def _prefix(self) -> str:
        return snapshots_prefix(self._empty.name, self._where.topic)

    @property
    def _identity(self) -> dict[str, str]:
        return identity_of(self._empty.name, self._where.topic, self.root_id)

    def _write(self, saved: SavedFold[SamplerState], compared: bool) -> None:
        path = snapshot_path(self._empty.name, self._where.topic, saved.place.next_offset)
        useless = list(self._useless)
        try:
            self._blobs.replace(path, Pieces(tuple(to_pieces(saved, self._identity))))
            paths = [blob.path for blob in self._blobs.list(self._prefix)]
            older = [one for one in paths if one < path and one not in useless]
            for one in {*(useless if compared else ()), *older[: 1 - KEPT]} - {path}:
                self._blobs.delete(one)
            if compared:
                self._useless = self._useless[len(useless) :]
        except Exception as error:  # noqa: BLE001, whatever it is, a start reads the logs instead
            _log.warning("%s was not written; a start reads the logs instead: %s", path, error)

    def _check_seal_logs(self, state: SamplerState, deadline: Deadline) -> None:
        """Raises ``UnusableState`` where a seal log does not hold what the state applied of it."""
        claims = {where: state.claim_of(log) for where, log in self._seal_logs.items()}
        wanted = {where: claim for where, claim in claims.items() if claim is not None}
        starts = {where: offset for where, (offset, _) in wanted.items()}
        with closing(self._broker.reader(starts or dict.fromkeys(claims, 0))) as reader:
            bounds = all_bounds_in_time(reader, self._seal_logs, deadline)
            for where, log in self._seal_logs.items():
                first, end = bounds[where]
                if not first <= starts.get(where, first) or state.applied(log) > end:
                    raise UnusableState(f"{where} holds {first} to {end}, and not what it applied")
            windows = {where: (start, start + 1) for where, start in starts.items()}
            found = {
                TopicPartition(one.topic, one.partition): (one.offset, _nonce(one))
                for one in read_windows(reader, windows, deadline)
            }
        for where, claim in wanted.items():
            if found.get(where) != claim:
                raise UnusableState(f"{where} holds another record at {claim[0]}")


def identity_of(sampler: str, log: str, root_id: str) -> dict[str, str]:
    """Sets the snapshots of a sampler with this decision log and root apart from all others."""
    return {"sampler": sampler, "log": log, "root_id": root_id}


def _nonce(record: Record) -> str:
    """Of a claim; empty: it is none."""
    with suppress(UnreadableEvent):
        return decode_as(Claimed, record.value).nonce
    return ""
