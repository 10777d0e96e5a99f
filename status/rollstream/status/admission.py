"""Which producers of an environment wait to begin groups, and whether a sampler tells them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from rollstream.runtime.deadline import Deadline
from rollstream.schemas import codec
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.events import SharesGranted, SharesValid
from rollstream.status.figures import AdmissionFigures
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.folds.in_flight import ProducerStanding
from rollstream.streams.reading import read_windows

_Shares = SharesGranted | SharesValid
_READ_US = 300_000_000  # Shares are repeated long before they are as old.


def measure_admission(
    broker: Broker,
    logs: Sequence[TopicPartition],
    environment: str,
    producers: Sequence[ProducerStanding],
    now_us: int,
    deadline: Deadline,
) -> AdmissionFigures:
    """Returns the figures of an environment.

    Args:
        logs: one partition of each generation of ``admission.<env>`` that is there.
        producers: the living ones, as its sealers report them.
    """
    newest = dict[str, tuple[_Shares, int]]()
    with closing(broker.reader({})) as reader:
        ends = {
            where: end for where, (_, end) in reader.all_bounds(logs, deadline.left_s()).items()
        }
        starts = reader.offsets_at(ends, now_us - _READ_US, deadline.left_s())
        windows = {where: (starts[where], end) for where, end in ends.items()}
        for record in read_windows(reader, windows, deadline):
            try:
                event = codec.decode(record.value)
            except UnreadableEvent:
                continue  # Workers pass it over, too. So are tombstones.
            if isinstance(event, _Shares):
                known = newest.get(event.sampler)
                if known is None or _order(event) >= _order(known[0]):
                    newest[event.sampler] = event, record.timestamp_us
    return AdmissionFigures(
        environment=environment,
        producers=len(producers),
        waiting=sum(one.waiting > 0 for one in producers),
        told_by={
            sampler: shares.limit
            for sampler, (shares, written_us) in sorted(newest.items())
            if now_us < written_us + shares.valid_s * 1e6
        },
    )


def _order(shares: _Shares) -> tuple[int, int]:
    return shares.epoch, shares.number
