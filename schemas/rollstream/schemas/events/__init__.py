"""One frozen dataclass an event, by the log that it stands in.

``rollouts`` (ingest), ``owned`` (claims, in every owned log), ``groups`` (seal log), ``sampler``
(decision log), ``dead_letters``. The fields are those of the ``.avsc`` of an event's name, which
describes them. Rollouts are no events here: they travel as header and columns
(``rollstream.schemas.header``, ``rollstream.schemas.columns``).
"""

from rollstream.schemas.events.dead_letters import DeadLetter
from rollstream.schemas.events.groups import (
    Flushed,
    SealedFile,
    SealedGroup,
    SealedSegments,
    Settlements,
)
from rollstream.schemas.events.owned import Adopted, Claimed, OwnedEvent
from rollstream.schemas.events.rollouts import Dispatched, Failed
from rollstream.schemas.events.sampler import (
    Acked,
    BatchServed,
    Checkpointed,
    ChosenGroup,
    Dropped,
    DroppedGroup,
    LogPosition,
    PolicyPublished,
    Replaced,
    Resumed,
)

GroupsEvent = Claimed | Adopted | Flushed
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
)
Event = GroupsEvent | SamplerEvent | Dispatched | Failed | DeadLetter

__all__ = [
    "Acked",
    "Adopted",
    "BatchServed",
    "Checkpointed",
    "ChosenGroup",
    "Claimed",
    "DeadLetter",
    "Dispatched",
    "Dropped",
    "DroppedGroup",
    "Event",
    "Failed",
    "Flushed",
    "GroupsEvent",
    "LogPosition",
    "OwnedEvent",
    "PolicyPublished",
    "Replaced",
    "Resumed",
    "SamplerEvent",
    "SealedFile",
    "SealedGroup",
    "SealedSegments",
    "Settlements",
]
