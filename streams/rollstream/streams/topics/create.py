"""Makes the topics that are missing."""

from __future__ import annotations

from collections.abc import Sequence

from rollstream.runtime.clock import Clock
from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import Admin, TopicSpec


def create_topics(
    admin: Admin, specs: Sequence[TopicSpec], timeout_s: float, *, clock: Clock | None = None
) -> list[str]:
    """Creates what is missing and leaves alone what is there; the names that were created.

    A topic that exists with another layout is not changed: ``check_topics`` says what differs.

    Raises:
        BrokerUnavailable, NotAuthorised: the broker's answer, or none in time.
    """
    deadline = Deadline(timeout_s, clock)
    present = admin.describe([spec.name for spec in specs], deadline.left_s())
    missing = [spec for spec in specs if spec.name not in present]
    admin.create(missing, deadline.left_s())
    return [spec.name for spec in missing]
