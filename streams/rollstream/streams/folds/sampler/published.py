"""The policies that a trainer published. Pure."""

from __future__ import annotations

from rollstream.schemas.events import PolicyPublished
from rollstream.schemas.order import Policy


class PublishedPolicies:
    """One version a policy, and one policy a version.

    Attributes:
        versions: (epoch, step) to version.
        policies: version to (epoch, step).
    """

    def __init__(self) -> None:
        self.versions: dict[tuple[int, int], str] = {}
        self.policies: dict[str, tuple[int, int]] = {}
        self._newest: dict[int, int] = {}

    def add(self, event: PolicyPublished) -> None:
        """The policy has this version from now on."""
        policy = (event.policy_epoch, event.step)
        self.versions[policy] = event.policy_version
        self.policies[event.policy_version] = policy
        newest = self._newest.get(event.policy_epoch, event.step)
        self._newest[event.policy_epoch] = max(newest, event.step)

    def newest(self, lineage: str, epoch: int) -> Policy | None:
        """Of the epoch, as one of this lineage; None: none was published."""
        step = self._newest.get(epoch)
        return None if step is None else Policy(lineage, epoch, step, self.versions[epoch, step])
