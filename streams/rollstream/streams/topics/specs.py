"""Every topic of a deployment as it must be: partitions and configuration. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rollstream.streams.broker import TopicSpec
from rollstream.streams.topics.layout import RECORD_BYTES_MAX, SHARES_PARTITIONS, Layout

HOUR_MS = 3_600_000
FOR_EVER_MS = -1
ROLLOUTS_RETENTION_HOURS = 168.0  # As configured by default (`kafka.retention_hours`).
REPORTS_RETENTION_HOURS = 24.0  # Who reads them needs the last minutes.
DEAD_LETTERS_RETENTION_HOURS = 28 * 24.0
DEAD_LETTERS_PARTITIONS = 1
REPLICATION = 3  # Of a cluster with as many brokers; a single broker has one copy.
IN_SYNC_MIN = 2  # With it, an acknowledged record survives the loss of one broker.
COMPACTED_SEGMENT_MS = 60_000  # The newest segment is not compacted; by default it has a week.


def specs_for(
    layout: Layout,
    environments: Mapping[str, int],
    samplers: Collection[str] = (),
    *,
    rollouts_retention_hours: float = ROLLOUTS_RETENTION_HOURS,
) -> list[TopicSpec]:
    """The topics of ``environments`` and ``samplers``, each once, in a fixed order.

    The ingest log and the seal log of an environment have the same number of partitions, since
    partition p of the seal log settles partition p of the ingest log.

    Args:
        environments: name to number of partitions.
        samplers: names.
        rollouts_retention_hours: how long the ingest log keeps what may not be sealed yet.
    """
    rollouts_ms = round(rollouts_retention_hours * HOUR_MS)
    reports_ms = round(REPORTS_RETENTION_HOURS * HOUR_MS)
    specs = []
    for environment, partitions in sorted(environments.items()):
        specs += [
            TopicSpec(layout.rollouts(environment), partitions, _kept(rollouts_ms)),
            TopicSpec(layout.groups(environment), partitions, _kept(FOR_EVER_MS)),
            TopicSpec(layout.reports(environment), partitions, _kept(reports_ms)),
            TopicSpec(layout.admission(environment), 1, _compacted()),
            TopicSpec(layout.shares(environment), SHARES_PARTITIONS, _compacted()),
            TopicSpec(layout.scores(environment), partitions, _kept(FOR_EVER_MS)),
            TopicSpec(layout.positions(environment), partitions, _compacted()),
        ]
    specs += [TopicSpec(layout.sampler(name), 1, _kept(FOR_EVER_MS)) for name in sorted(samplers)]
    dead_letters = _kept(round(DEAD_LETTERS_RETENTION_HOURS * HOUR_MS))
    return [*specs, TopicSpec(layout.dead_letters(), DEAD_LETTERS_PARTITIONS, dead_letters)]


def _compacted() -> dict[str, str]:
    """The newest record of each key is kept for ever; others for a minute or two, since who
    begins to read reads them all."""
    segment_ms = str(COMPACTED_SEGMENT_MS)
    return {**_kept(FOR_EVER_MS), "cleanup.policy": "compact", "segment.ms": segment_ms}


def _kept(retention_ms: int) -> dict[str, str]:
    return {
        "cleanup.policy": "delete",
        "retention.ms": str(retention_ms),
        # Never by size: a burst must not delete records that are not sealed yet.
        "retention.bytes": "-1",
        # The broker's clock, not a worker's, decides retention and time-outs.
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(RECORD_BYTES_MAX),
    }
