"""What a test published, and whether a deployment accounts for all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from harness.sealing import SealWorld
from rollstream.consumers import AuditReport, audit
from rollstream.schemas.events import Claimed, Flushed
from rollstream.store import Blobs, list_manifests, visible_files
from rollstream.streams.owned.follow import ConfirmedEvent


def problems_of(world: SealWorld, uids: Iterable[str] = (), *, drained: bool = True) -> list[str]:
    """Everything that does not hold: the audit, and what only the test can know.

    Args:
        uids: each of them was published at least once, so it is sealed or settled, once.
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
    problems += _missing_uids(world, uids) if drained else []
    problems += _unconfirmed(world.confirmed_events(), world.blobs)
    return problems


def holds(report: AuditReport) -> None:
    """Fails with everything that the audit says."""
    assert report.holds, "\n".join(report.problems)


def _missing_uids(world: SealWorld, uids: Iterable[str]) -> list[str]:
    found: Counter[str] = Counter()
    for event in world.flushes():
        found.update(set(event.segments.uids))
        for part in event.settled:
            if part.reason != "duplicate":
                found.update(set(part.uids))
    return [f"{uid} was published and is nowhere" for uid in uids if not found[uid]]


def _unconfirmed(confirmed: list[ConfirmedEvent], blobs: Blobs) -> list[str]:
    """What readers without Kafka see must be what the seal log says."""
    wanted = {
        (item.where.partition, item.offset) for item in confirmed if isinstance(item.event, Flushed)
    }
    projected = {(m.address.partition, m.offset) for m in list_manifests(blobs)}
    problems = [f"manifest {place} of an unconfirmed flush" for place in sorted(projected - wanted)]
    named = {
        f.path for item in confirmed if isinstance(item.event, Flushed) for f in item.event.files
    }
    problems += [f"{path} is visible" for path in visible_files(blobs) if path not in named]
    return problems


def claims(confirmed: list[ConfirmedEvent]) -> int:
    """How often a partition was claimed."""
    return sum(isinstance(item.event, Claimed) for item in confirmed)
