"""The closed lists of reasons, as events, metrics and reports spell them."""

from __future__ import annotations

from enum import StrEnum


class SettleReason(StrEnum):
    """Why an entry of the ingest log ended without a readable group.

    ``dispatched`` is no loss: the entry said that a group was begun, and it is settled with that
    group. Nor is ``alive``: the entry said that its producer lives. Nor is ``ended``: the entry
    said that a trajectory has ended, and it is settled with that; nor ``not_open``: no segment of
    that trajectory was open then, since none had been read, or it had ended. Nor is ``no_record``:
    no record was read there, between or behind others that were, and none is lost by retention;
    such are the offsets of transactions' markers. Every other one is a rollout, or a control event
    about one, that nobody will train on.
    """

    DISPATCHED = "dispatched"
    ALIVE = "alive"
    ENDED = "ended"
    NOT_OPEN = "not_open"
    DUPLICATE = "duplicate"
    GROUP_SEALED = "group_sealed"
    REPLICA_CAP = "replica_cap"
    VERSION_REJECTED = "version_rejected"
    STALE = "stale"
    TOO_OLD = "too_old"
    OFF_BRANCH = "off_branch"
    BROKEN_CHAIN = "broken_chain"
    ARRAY_MISMATCH = "array_mismatch"
    EXAMPLE_MISMATCH = "example_mismatch"
    BEYOND_SIZE = "beyond_size"
    LATE = "late"
    FAILED = "failed"
    EXPIRED = "expired"
    UNREADABLE = "unreadable"
    LOST = "lost"
    NO_RECORD = "no_record"
    TOO_LARGE = "too_large"


class LetterReason(StrEnum):
    """Why an entry, or a record, could not be read (docs/wire_format.md)."""

    NOT_AN_EVENT = "not_an_event"
    UNKNOWN_SCHEMA = "unknown_schema"
    TORN = "torn"
    INCONSISTENT = "inconsistent"
    WRONG_ENVIRONMENT = "wrong_environment"
    WRONG_PARTITION = "wrong_partition"
    DAMAGED = "damaged"


class SealReason(StrEnum):
    """Why a group was sealed when it was."""

    FULL = "full"
    IDLE = "idle"
    TIMEOUT = "timeout"
    FLUSH = "flush"
    IMPORTED = "imported"


class DropReason(StrEnum):
    """Why a sampler will never serve a group."""

    STALE = "stale"
    NO_WEIGHT_STEP = "no_weight_step"
    TOO_OLD = "too_old"
    OFF_BRANCH = "off_branch"
    CAPACITY = "capacity"
    FILTERED = "filtered"
    UNREADABLE = "unreadable"
    BY_TRAINER = "by_trainer"
    UNSCORED = "unscored"
    AHEAD = "ahead"
    OTHER_LINEAGE = "other_lineage"
