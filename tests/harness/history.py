"""What a test published, and whether a deployment accounts for all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from harness.sealing import SealWorld
from rollstream.consumers import AuditReport, audit
from rollstream.consumers.assembling.decisions import NO_SEGMENT
from rollstream.schemas.events import Claimed, Flushed, SealedSegments, Settlements
from rollstream.store import Blobs, list_manifests, visible_files
from rollstream.streams.owned.follow import ConfirmedEvent


def problems_of(world: SealWorld, uids: Iterable[str] = (), *, drained: bool = True) -> list[str]:
    """Everything that does not hold: the audit, and what only the test can know.

    Args:
        uids: each was published at least once, so each of its segments was sealed or settled
            exactly once, besides duplicates.
        drained: nothing may be pending.
    """
    report = audit(
        world.config, broker=world.broker, store=world.blobs, clock=world.clock, digests=True
    )
    problems = list(report.problems)
    sums = report.environment("math")
    if sums.published != world.published:
        problems.append(f"{world.published} were published, the log holds {sums.published}")
    if drained and sums.pending:
        problems.append(f"{sums.pending} are still pending")
    problems += _not_once(world, uids) if drained else []
    problems += _unconfirmed(world.confirmed_events(), world.blobs)
    return problems


def holds(report: AuditReport) -> None:
    """Fails with every problem of the audit."""
    assert report.holds, "\n".join(report.problems)


def _not_once(world: SealWorld, uids: Iterable[str]) -> list[str]:
    """Uids that are nowhere, and segments that were sealed or settled more than once."""
    counts: Counter[tuple[str, int]] = Counter()
    for event in world.flushes():
        counts.update(_segments_of(event.segments))
        for part in event.settled:
            if part.reason != "duplicate":
                counts.update(_segments_of(part))
    ended = {uid for uid, _ in counts}
    problems = [f"{uid} was published and is nowhere" for uid in uids if uid not in ended]
    return problems + [
        f"segment {idx} of {uid} was sealed or settled {count} times"
        for (uid, idx), count in counts.items()
        # A failure may be reported more than once; it is no segment.
        if count > 1 and uid and idx != NO_SEGMENT
    ]


def _segments_of(part: SealedSegments | Settlements) -> Iterable[tuple[str, int]]:
    return zip(part.uids, part.segment_idxs.tolist(), strict=True)


def _unconfirmed(confirmed: list[ConfirmedEvent], blobs: Blobs) -> list[str]:
    """What readers without Kafka see beyond the seal log: manifests and files."""
    wanted = {
        (item.where.partition, item.offset) for item in confirmed if isinstance(item.event, Flushed)
    }
    projected = {(m.address.partition, m.offset) for m in list_manifests(blobs)}
    problems = [f"manifest {where} of an unconfirmed flush" for where in sorted(projected - wanted)]
    named = {
        f.path for item in confirmed if isinstance(item.event, Flushed) for f in item.event.files
    }
    problems += [f"{path} is visible" for path in visible_files(blobs) if path not in named]
    return problems


def claims(confirmed: list[ConfirmedEvent]) -> int:
    """How often a partition was claimed."""
    return sum(isinstance(item.event, Claimed) for item in confirmed)
