"""Records in an ingest log that a producer newer than this sealer wrote.

A record names the number of its schema in a Kafka header, so a sealer that cannot read it learns
whether a newer version can. Such a record is no dead letter: its groups have members in other
records, and they would be sealed without it.
"""

from __future__ import annotations

import rollstream
from rollstream.schemas.errors import UnreadableEvent
from rollstream.schemas.fields import SCHEMA
from rollstream.schemas.ingest.wire import SCHEMA_HEADER
from rollstream.schemas.wire_schemas import shipped
from rollstream.streams.broker import Record, TopicPartition
from rollstream.streams.errors import NewerEvent

DIGITS_MAX = 9  # Of a schema's number; a longer one is a stranger's.


def newer_record(record: Record, error: UnreadableEvent) -> NewerEvent | None:
    """Returns the error that stops the partition at a record of a newer producer; None for any
    other record that cannot be read.

    Args:
        error: why the record cannot be read.
    """
    known = shipped().newest(SCHEMA).version
    number = _schema_number(record)
    if error.reason != "unknown_schema" or number is None or number <= known:
        return None
    where = TopicPartition(record.topic, record.partition)
    return NewerEvent(
        f"{where}, offset {record.offset}: a newer producer wrote this record, with {SCHEMA} "
        f"version {number}; rollstream {rollstream.__version__} knows {known} and older. Upgrade "
        "the sealers first (docs/operating/upgrading.md): the partition then goes on by itself. To "
        "make such records dead letters, and seal their groups without them, run `rollstream seal "
        "--dead-letter`"
    )


def _schema_number(record: Record) -> int | None:
    """As the record's header has it; None where no header is a number."""
    found = [value for name, value in record.headers if name == SCHEMA_HEADER]
    if not found or not found[-1].isdigit() or len(found[-1]) > DIGITS_MAX:
        return None
    return int(found[-1])
