"""What a writer of steps submitted lately, so that what contradicts it is refused. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, TypeVar

from xxhash import xxh3_128_intdigest

from rollstream.producers.engine.outbox import Outgoing
from rollstream.producers.errors import Contradiction
from rollstream.producers.steps.segments import Step, at_index
from rollstream.schemas.ingest.entry import PLAIN, SHARED

# Of one environment, each; of more, those that came first are forgotten. A step takes about 200
# bytes, a trajectory or a prompt as many, however long their names: digests of these are kept.
KNOWN_MAX = 65_536
# What a step leaves out of these is known from elsewhere, or not yet.
_RESOLVED = ("group_size", "policy_version", "weight_step", "policy_epoch", "lineage")
_shared_of = itemgetter(*(index for index, name in enumerate(SHARED) if name not in _RESOLVED))
_plain_of = itemgetter(*(index for index, name in enumerate(PLAIN) if name != "created_ts"))
KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class Submitted:
    """The steps, ends and sizes of one environment that one writer submitted last."""

    def __init__(self) -> None:
        # By rollout and index.
        self._contents: OrderedDict[int, int] = OrderedDict()
        # How many steps a trajectory has, 0: not known; and one more than the newest index.
        self._lengths: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._sizes: OrderedDict[int, int] = OrderedDict()

    def check(self, steps: Sequence[Step], uids: Sequence[str], contents: Sequence[int]) -> None:
        """They, steps of these rollouts, contradict neither each other nor what was submitted.

        Raises:
            Contradiction: names the index, field, value, and what it contradicts.
        """
        call = Submitted()
        for index, (step, uid, content) in enumerate(zip(steps, uids, contents, strict=True)):
            try:
                for known in (self, call):
                    known._check(step, uid, content)
            except Contradiction as wrong:
                raise at_index(wrong, index) from None
            call._add(step, uid, content)

    def add(self, steps: Sequence[Step], uids: Sequence[str], contents: Sequence[int]) -> None:
        """They were submitted."""
        for step, uid, content in zip(steps, uids, contents, strict=True):
            self._add(step, uid, content)

    def forget(self, lost: Outgoing) -> None:
        """It is not known whether this step, or end, is in the log: another one may be submitted in
        its place."""
        uid = lost.rollout_uid
        self._lengths.pop(_digest(uid), None)
        if lost.segment_idx is not None:
            self._contents.pop(_digest(uid, lost.segment_idx), None)
            self._sizes.pop(_digest(lost.group_uid), None)

    def check_end(self, end: Outgoing, count: int) -> None:
        """A trajectory may end with so many steps; 0: those that are in the log.

        Raises:
            Contradiction: names the value and what it contradicts.
        """
        ended, seen = self._lengths.get(_digest(end.rollout_uid), (0, 0))
        if not count:
            return
        if ended not in (0, count):
            remedy = "complete it with the same number, or leave it out"
            finding = f"is {count}, and trajectory {end.named} has ended with {ended}"
            raise Contradiction("steps", count, remedy, finding)
        if seen > count:
            finding = f"is {count}, and step {seen - 1} of trajectory {end.named} was submitted"
            raise Contradiction("steps", count, "count from 1, with each step", finding)

    def check_failure(self, rollout_uid: str, named: str) -> None:
        """A trajectory may fail.

        Raises:
            Contradiction: it has ended.
        """
        ended, _ = self._lengths.get(_digest(rollout_uid), (0, 0))
        if ended:
            finding = f"is {named!r:.80}, and the trajectory has ended with {ended} steps"
            remedy = "a trajectory fails before its last step, or not at all"
            raise Contradiction("trajectory_uid", named, remedy, finding)

    def add_end(self, rollout_uid: str, count: int) -> None:
        """It was submitted."""
        if count:
            self._lengthen(rollout_uid, count, 0)

    def _check(self, step: Step, rollout_uid: str, content: int) -> None:
        uid, index = step.trajectory_uid, step.step_index
        size = self._sizes.get(_digest(step.prompt_uid))
        if size is not None and step.n_rollouts not in (None, size):
            raise of_earlier_step("n_rollouts", step.n_rollouts, size, step.prompt_uid)
        if self._contents.get(_digest(rollout_uid, index), content) != content:
            raise Contradiction(
                "step_index",
                index,
                "the first one counts: give each step an index of its own, and repeat one only as "
                "it was",
                f"is {index}, and another step {index} of trajectory {uid} was submitted, with "
                "other content",
            )
        ended, seen = self._lengths.get(_digest(rollout_uid), (0, 0))
        if ended and index >= ended:
            remedy = "give each trajectory of a prompt a uid of its own, and end it once"
            finding = f"is {index}, and trajectory {uid} has ended with {ended} steps"
            raise Contradiction("step_index", index, remedy, finding)
        if step.is_last and seen > index + 1:
            remedy = "give it to the step with the largest step_index"
            finding = f"is True, and step {seen - 1} of trajectory {uid} was submitted"
            raise Contradiction("is_last", True, remedy, finding)
        if step.is_last and ended not in (0, index + 1):
            remedy = "give it to the last of them, or to none"
            finding = f"is True, and trajectory {uid} has ended with {ended} steps"
            raise Contradiction("is_last", True, remedy, finding)

    def _add(self, step: Step, uid: str, content: int) -> None:
        index = step.step_index
        _put(self._contents, _digest(uid, index), content)
        self._lengthen(uid, index + 1 if step.is_last else 0, index + 1)
        if step.n_rollouts is not None:
            _put(self._sizes, _digest(step.prompt_uid), step.n_rollouts)

    def _lengthen(self, uid: str, count: int, seen: int) -> None:
        key = _digest(uid)
        ended, before = self._lengths.get(key, (0, 0))
        _put(self._lengths, key, (count or ended, max(seen, before)))


def of_earlier_step(field: str, value: Any, before: Any, prompt_uid: str) -> Contradiction:
    """The steps of a prompt have two values of what is the same in all."""
    finding = f"is {value!r:.80}, and was {before!r:.80} in an earlier step of prompt {prompt_uid}"
    return Contradiction(field, value, "give all of them the same", finding)


def _put(known: OrderedDict[KeyT, ValueT], key: KeyT, value: ValueT) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > KNOWN_MAX:
        known.popitem(last=False)


def _digest(name: str, index: int = 0) -> int:
    return xxh3_128_intdigest(name.encode(), index)


def contents_of(steps: Sequence[Step], outgoing: Sequence[Outgoing]) -> list[int]:
    """Of steps as they were given, that have not left: equal for equal ones, whenever they come, in
    this process."""
    found = []
    for step, one in zip(steps, outgoing, strict=True):
        assert one.entry is not None
        policy = (step.policy_version, str(step.weight_step), step.policy_epoch, step.lineage)
        shared, plain = _shared_of(one.entry.shared), _plain_of(one.entry.plain)
        arrays = sorted(one.entry.extras.get("token_arrays", {}).items())
        found.append(hash((one.entry.kind, shared, plain, *policy, *arrays)))
    return found
