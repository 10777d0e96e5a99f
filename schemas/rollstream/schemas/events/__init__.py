"""One frozen dataclass an event, by the log that it stands in.

``rollouts`` (ingest), ``owned`` (claims, in every owned log), ``groups`` (seal log), ``sampler``
(decision log), ``scores``, ``admission``, ``dead_letters``. Rollouts themselves are not here: they
travel as header and columns (``rollstream.schemas.header``, ``rollstream.schemas.columns``).
"""

from rollstream.schemas.events.admission import Admission
from rollstream.schemas.events.dead_letters import DeadLetter
from rollstream.schemas.events.groups import (
    Compacted,
    Flushed,
    LossAccepted,
    Move,
    Requested,
    Retired,
    SealedFile,
    SealedGroup,
    SealedSegments,
    Settled,
)
from rollstream.schemas.events.owned import Adopted, Claimed
from rollstream.schemas.events.rollouts import Dispatched, Failed
from rollstream.schemas.events.sampler import (
    Acked,
    BatchServed,
    Checkpointed,
    ChosenGroup,
    CursorMoved,
    Dropped,
    DroppedGroup,
    LogPosition,
    PolicyPublished,
    Replaced,
    Resumed,
    Snapshotted,
)
from rollstream.schemas.events.scores import Scored

GroupsEvent = Claimed | Adopted | Flushed | Requested | Retired | Compacted | LossAccepted
SamplerEvent = (
    Claimed
    | Adopted
    | BatchServed
    | Acked
    | Checkpointed
    | Resumed
    | PolicyPublished
    | Replaced
    | Dropped
    | CursorMoved
    | Snapshotted
)
Event = GroupsEvent | SamplerEvent | Dispatched | Failed | Scored | Admission | DeadLetter

__all__ = [
    "Acked",
    "Admission",
    "Adopted",
    "BatchServed",
    "Checkpointed",
    "ChosenGroup",
    "Claimed",
    "Compacted",
    "CursorMoved",
    "DeadLetter",
    "Dispatched",
    "Dropped",
    "DroppedGroup",
    "Event",
    "Failed",
    "Flushed",
    "GroupsEvent",
    "LogPosition",
    "LossAccepted",
    "Move",
    "PolicyPublished",
    "Replaced",
    "Requested",
    "Resumed",
    "Retired",
    "SamplerEvent",
    "Scored",
    "SealedFile",
    "SealedGroup",
    "SealedSegments",
    "Settled",
    "Snapshotted",
]
