"""One frozen dataclass an event, by the log that it stands in.

- ``owned``         claims, in every owned log
- ``groups``        the seal log
- ``sealed_group_columns``  the groups of one of its events
- ``sampler``       a sampler's decision log
- ``reports``       what sealers report of now
- ``dead_letters``  what could not be read
- ``admission``     what env workers are told
- ``scores``        late scores, of verifiers
- ``positions``     how far readers of sealed groups are

The fields are those of the ``.avsc`` of an event's name, which describes them.
The ingest log holds no events: its records are ``rollstream.schemas.ingest``.
"""

from rollstream.schemas.events.admission import (
    PolicyAnnounced,
    ProducerShare,
    SharesGranted,
    SharesValid,
    share_key,
    share_of,
)
from rollstream.schemas.events.dead_letters import DeadLetter, Retried
from rollstream.schemas.events.groups import (
    FLUSH_KINDS,
    NOT_INGESTED,
    Continuation,
    ContinuationsWaiting,
    FailedMembers,
    Flushed,
    GroupsBegun,
    InFlight,
    NewestPolicy,
    ProducerInFlight,
    Requested,
    RequestKind,
    Retired,
    RetiredFile,
    RootRecorded,
    SealedFile,
    SealedSegments,
    Settlements,
    TouchedOffsets,
    UnreadRanges,
    UnsealedGroups,
)
from rollstream.schemas.events.owned import Adopted, Claimed, OwnedEvent
from rollstream.schemas.events.positions import ReaderPosition, is_position_of, position_key
from rollstream.schemas.events.reports import PartitionReport, ProducerColumns
from rollstream.schemas.events.sampler import (
    Acked,
    BatchServed,
    CarriedRows,
    Checkpointed,
    ChosenGroup,
    CurrentStepSet,
    CursorRecorded,
    Decision,
    Dropped,
    DroppedGroup,
    Finished,
    LogPosition,
    Made,
    PolicyPublished,
    Replaced,
    Resumed,
    ServedScore,
)
from rollstream.schemas.events.scores import RolloutScore, Scored
from rollstream.schemas.events.sealed_group_columns import SealedGroup, SealedGroupColumns

GroupsEvent = Claimed | OwnedEvent | Requested
SamplerEvent = Claimed | Adopted | Decision
AdmissionEvent = PolicyAnnounced | SharesGranted | SharesValid | ProducerShare
Event = GroupsEvent | AdmissionEvent | Scored | ReaderPosition | DeadLetter | Retried

__all__ = [
    "FLUSH_KINDS",
    "NOT_INGESTED",
    "Acked",
    "AdmissionEvent",
    "Adopted",
    "BatchServed",
    "CarriedRows",
    "Checkpointed",
    "ChosenGroup",
    "Claimed",
    "Continuation",
    "ContinuationsWaiting",
    "CurrentStepSet",
    "CursorRecorded",
    "DeadLetter",
    "Decision",
    "Dropped",
    "DroppedGroup",
    "Event",
    "FailedMembers",
    "Finished",
    "Flushed",
    "GroupsBegun",
    "GroupsEvent",
    "InFlight",
    "LogPosition",
    "Made",
    "NewestPolicy",
    "OwnedEvent",
    "PartitionReport",
    "PolicyAnnounced",
    "PolicyPublished",
    "ProducerColumns",
    "ProducerInFlight",
    "ProducerShare",
    "ReaderPosition",
    "Replaced",
    "RequestKind",
    "Requested",
    "Resumed",
    "Retired",
    "RetiredFile",
    "Retried",
    "RolloutScore",
    "RootRecorded",
    "SamplerEvent",
    "Scored",
    "SealedFile",
    "SealedGroup",
    "SealedGroupColumns",
    "SealedSegments",
    "ServedScore",
    "Settlements",
    "SharesGranted",
    "SharesValid",
    "TouchedOffsets",
    "UnreadRanges",
    "UnsealedGroups",
    "is_position_of",
    "position_key",
    "share_key",
    "share_of",
]
