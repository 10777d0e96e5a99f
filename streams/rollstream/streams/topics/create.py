"""Makes the topics that are missing."""

from __future__ import annotations

from collections.abc import Sequence

from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import Admin, TopicSpec


def create_topics(admin: Admin, specs: Sequence[TopicSpec], timeout_s: float) -> list[str]:
    """Creates the topics that do not exist; returns their names.

    A topic that exists with other settings is left as it is; ``check_topics`` names them.

    Raises:
        BrokerUnavailable, NotAuthorised: the broker's answer, or none in time.
    """
    deadline = Deadline(timeout_s)
    present = admin.describe([spec.name for spec in specs], deadline.left_s())
    missing = [spec for spec in specs if spec.name not in present]
    admin.create(missing, deadline.left_s())
    return [spec.name for spec in missing]
