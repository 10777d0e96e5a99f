"""A record of the ingest log that was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from rollstream.schemas.errors import InvalidRollout, UnreadableEvent
from rollstream.schemas.fields import RowField, columns, named
from rollstream.schemas.ingest.checks import broken_entries
from rollstream.schemas.ingest.encode import encode_entries
from rollstream.schemas.ingest.entry import Entry, NamedArray, Producer
from rollstream.schemas.ingest.frame import ArrayRun, Frame
from rollstream.schemas.ingest.wire import COUNTS, PayloadFields, read_record, unpacked


class IngestRecord(Frame):
    """The entries of one record. Arrays are views of its bytes, which live as long as it does.

    Attributes:
        size: bytes of the record.
        environment, worker_id: of all entries.
        partitions: of the topic, as the producer knew it.
        producer: how the producer stood, where it told.
        broken: which entries break which rule; the others are sound.
    """

    __slots__ = (
        *("_attached", "_sizes", "broken", "environment", "partitions", "producer", "size"),
        *("worker_id", "__weakref__"),
    )

    def __init__(
        self, header: Mapping[str, Any], payload: memoryview, fields: PayloadFields, size: int
    ) -> None:
        super().__init__(header, payload, fields)
        self.size = size
        self.environment: str = header["environment"]
        self.worker_id: str = header["worker_id"]
        self.partitions: int = header["partitions"]
        told = header["producer"]
        self.producer = None if told is None else Producer(*told.values())
        self.broken: Mapping[int, InvalidRollout] = broken_entries(self)
        # What the header has of each, by entry and name. No copies of their bytes: they may be
        # elsewhere than in memory.
        self._attached: dict[int, dict[str, Mapping[str, Any]]] = {}
        for one in self.extra("attachments") or ():
            self._attached.setdefault(one["entry"], {})[one["name"]] = one
        self._sizes: list[int] | None = None

    def sizes(self) -> list[int]:
        """Bytes of each entry: of its arrays, texts and attachments, and an equal share of the
        rest, so that all entries have ``size`` together."""
        found = self._sizes
        if found is None:
            found = self._sizes = self._entry_sizes() if self.count > 1 else [self.size]
        return found

    def entry(self, index: int) -> Entry:
        """One entry, as ``encode_entries`` takes it; a copy.

        What breaks a rule is as it is in the record: a dead letter holds it.
        """
        found: dict[str, Any] = {}
        if self.header["extras"] is not None or "trajectory_uid" in self.texts:
            found = {field.name: self._value(field, index) for field in columns(extra=True)}
            found["rewards"] = self.components()[index]
            found["attachments"] = self._attachments_of(index)
            found["token_arrays"] = {
                name: NamedArray(*run.signature, data)
                for name, run in self.token_arrays.items()
                if (data := self._bytes_of_one(run, index)) is not None
            }
        return Entry(
            tuple(self._value(field, index) for field in named("shared")),
            tuple(self._value(field, index) for field in columns(extra=False)),
            {name: value for name, value in found.items() if value not in (None, "", {})},
            self.kinds[index],
            self.failures.get(index),
        )

    def rename(self, index: int, rollout_uid: str, trajectory_uid: str) -> None:
        """The entry, a step, has these uids from now on: those with which its trajectory began."""
        for name, uid in (("rollout_uid", rollout_uid), ("trajectory_uid", trajectory_uid)):
            self.texts.setdefault(name, [""] * self.count)[index] = uid

    def move_payload(self, put: Callable[[bytes | memoryview], memoryview]) -> None:
        """Reads arrays, long texts and attachments from what ``put`` returns for their bytes, from
        now on. What they took in memory is free then. Only names and numbers stay. It may be moved
        again, also while another thread reads it."""
        self.sizes()
        self.payload = put(self.payload)
        for name in self._long:
            self.texts.pop(name, None)
        for one in self.extra("attachments") or ():
            one["data"] = put(one["data"])

    def part(self, indexes: Sequence[int], *, partitions: int | None = None) -> bytes:
        """The bytes of a record that has these entries alone; ``partitions``: of its topic, where
        that is another one."""
        return encode_entries(
            [self.entry(index) for index in indexes],
            environment=self.environment,
            worker_id=self.worker_id,
            partitions=partitions or self.partitions,
            producer=self.producer,
        )

    def components(self) -> Sequence[Mapping[str, float]]:
        """The named components of each entry's reward."""
        found = self._listed.get("rewards")
        if found is None:
            found = self._listed["rewards"] = self._components()
        return found

    def attachments(self) -> Mapping[int, Mapping[str, bytes]]:
        """Name to bytes, of the entries that have attachments, by their numbers."""
        return {entry: self._attachments_of(entry) for entry in self._attached}

    def _entry_sizes(self) -> list[int]:
        widths: dict[int, int] = {}  # Of all arrays with the same ends.
        ends: dict[int, Sequence[int]] = {}
        for run in (*self.arrays.values(), *self.token_arrays.values()):
            of = id(run.ends)
            ends[of], widths[of] = run.ends, widths.get(of, 0) + run.width
        total = sum(widths[of] * np.array(ends[of]) for of in widths)
        sizes = np.diff(total)
        for field in named("text"):
            raw = self.raw(field)
            if raw:
                sizes += np.frombuffer(raw, COUNTS)
        for entry, attached in self._attached.items():
            sizes[entry] += sum(len(one["data"]) for one in attached.values())
        share, rest = divmod(self.size - int(sizes.sum()), self.count)
        sizes += share
        sizes[-1] += rest
        found: list[int] = sizes.tolist()
        return found

    def _attachments_of(self, entry: int) -> dict[str, bytes]:
        return {name: bytes(one["data"]) for name, one in self._attached.get(entry, {}).items()}

    def _components(self) -> list[Mapping[str, float]]:
        wire = self.extra("rewards")
        if wire is None:
            return [{}] * self.count
        names = [wire["names"][index] for index in unpacked(COUNTS, wire["indexes"])]
        values = unpacked("<f8", wire["values"])
        return [
            dict(zip(names[start:stop], values[start:stop], strict=True))
            for start, stop in pairwise(accumulate(self._counts(wire, "counts"), initial=0))
        ]

    def _value(self, field: RowField, index: int) -> Any:
        """One entry's; bytes where a text is no UTF-8, None where it has no such array."""
        name = field.name
        if field.column != "array":
            return self.no_utf8.get((name, index)) or self.value(name, index)
        run = self.arrays.get(name)
        return None if run is None else self._bytes_of_one(run, index)

    def _bytes_of_one(self, run: ArrayRun, index: int) -> bytes | None:
        if run.present is not None and not run.present[index]:
            return None
        return bytes(self.bytes_of(run, index, index + 1))


def decode_record(value: bytes) -> IngestRecord:
    """The record that the bytes hold.

    Raises:
        UnreadableEvent: they hold none, or its frame is broken: no entries, lengths that disagree,
            counts beyond the bytes that there are. What breaks a single entry is in ``broken``.
    """
    try:
        return IngestRecord(*read_record(value), len(value))
    except InvalidRollout as broken:
        raise UnreadableEvent("inconsistent", str(broken)) from broken
