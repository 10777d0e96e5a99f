"""The alarms of stages that are stuck: the rows of the first table of ``operating/alarms.md``."""

from __future__ import annotations

from enum import StrEnum


class Alarm(StrEnum):
    """What is wrong, as programs read it. ``deploy/prometheus/alerts.yml`` has an alert of each."""

    MISSING_TOPICS = "missing_topics"
    OTHER_ROOT = "other_root"
    FOREIGN_ROOT = "foreign_root"
    NEVER_PUBLISHED = "never_published"
    NOTHING_PUBLISHED = "nothing_published"
    UNSERVABLE = "unservable"
    UNSCORED = "unscored"
    NO_SEALER = "no_sealer"
    UNKNOWN_TO_SEALERS = "unknown_to_sealers"
    HELD_BY_NO_SEALER = "held_by_no_sealer"
    SETTLES_NOTHING = "settles_nothing"
    SEALS_NOTHING = "seals_nothing"
    FAILS_BESIDE = "fails_beside"
    WRONG_CLOCK = "wrong_clock"
    PUT_ASIDE = "put_aside"
    RECORDS_LOST = "records_lost"
    UNREADABLE_SHARE = "unreadable_share"
    DECISIONS_LOST = "decisions_lost"
    DECISIONS_UNREADABLE = "decisions_unreadable"
    NO_SHARES = "no_shares"
    OVER_CAPACITY = "over_capacity"
    NOT_ACKED = "not_acked"
    OPEN_BATCHES = "open_batches"
    NOT_SERVED = "not_served"
    TRAINER_SILENT = "trainer_silent"
