"""What a writer of steps submitted lately: what contradicts it is refused, and the prompts that it
has open are bounded. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeVar

from xxhash import xxh3_128_intdigest

from rollstream.producers.engine.outbox import Outgoing
from rollstream.producers.errors import Contradiction
from rollstream.producers.steps.segments import Step, at_index
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.ingest.entry import PLAIN, SHARED
from rollstream.streams.errors import BufferFull

# Steps, trajectories and prompts of one environment, each; of more, those that came first are
# forgotten. A step takes about 200 bytes, a trajectory and a prompt about 500 each, besides the
# prompt's name: that has to be known for an end that does not give it, and of others digests are.
KNOWN_MAX = 65_536
MAX_OPEN_PROMPTS = 16_384  # At 54 prompts a second, as many as go on in ``OPEN_PROMPT_S``.
# A prompt, or trajectory, of which nothing came for so long is open no more for its writer: another
# one may have taken the rest. Groups are sealed without what is missing after as long, by default
# (``seal_timeout_s``).
OPEN_PROMPT_S = 300.0
_SHOWN = 5  # Prompts that a message names.
# What a step leaves out of these is known from elsewhere, or not yet.
_RESOLVED = ("group_size", "policy_version", "weight_step", "policy_epoch", "lineage")
_shared_of = itemgetter(*(index for index, name in enumerate(SHARED) if name not in _RESOLVED))
_plain_of = itemgetter(*(index for index, name in enumerate(PLAIN) if name != "created_ts"))
ValueT = TypeVar("ValueT")


@dataclass(slots=True)
class _Prompt:
    uid: str
    example_id: str
    size: int = 0  # Its ``n_rollouts``; 0: not known.
    open: int = 0  # How many of its trajectories that are known have not ended.
    ended: int = 0  # Those that were forgotten too.
    seen_s: float = 0.0


@dataclass(slots=True)
class _Trajectory:
    named: int  # The digest of its own uid.
    prompt_uid: str
    counted: _Prompt | None = None  # Among the open or the ended ones of this prompt.
    ended: bool = False  # In it.
    seen_s: float = 0.0


class Submitted:
    """Knows the steps, ends and sizes that one writer submitted last of one environment, and the
    prompts that are open.

    A prompt is begun by step 0 of one of its trajectories, and open until ``n_rollouts`` of them
    have ended here (where that is not known: all that were begun here), or nothing of it came for
    ``OPEN_PROMPT_S``. Memory is bounded by ``prompts_max`` and ``KNOWN_MAX``: an end of a
    trajectory that was forgotten has to name its prompt, and one that is repeated counts twice.

    Args:
        prompts_max: most open prompts.
    """

    def __init__(self, prompts_max: int) -> None:
        self._prompts_max = prompts_max
        # What came longest ago is the first, in all. By rollout and index, what a step holds.
        self._contents: OrderedDict[int, int] = OrderedDict()
        # How many steps a trajectory has, 0: not known; and one more than the newest index.
        self._lengths: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._sizes: OrderedDict[int, int] = OrderedDict()
        self._open: OrderedDict[str, _Prompt] = OrderedDict()
        # By the digests of their rollout uids; and those by the digests of their own.
        self._trajectories: OrderedDict[int, _Trajectory] = OrderedDict()
        self._named: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        """How many prompts are open."""
        return len(self._open)

    def sizes(self, steps: Sequence[Step], now_s: float) -> list[int]:
        """The size of each step's group, where all of them may be submitted; 0: not known.

        Raises:
            BufferFull: they begin prompts, and too many would be open.
            Contradiction: a step contradicts one before it.
        """
        self._forget_old(now_s)
        found: list[int] = []
        sizes: dict[str, int] = {}
        begun: dict[str, str] = {}  # The example of each.
        for index, step in enumerate(steps):
            uid = step.prompt_uid
            known = self._open.get(uid)
            size = known.size if known else 0
            size = sizes.get(uid) or size or self._sizes.get(_digest(uid), 0)
            if step.n_rollouts is not None and size not in (0, step.n_rollouts):
                raise _unlike(index, "n_rollouts", step.n_rollouts, size, uid)
            example = known.example_id if known else begun.get(uid, step.example_id)
            if step.example_id != example:
                raise _unlike(index, "example_id", step.example_id, example, uid)
            sizes[uid] = size = step.n_rollouts or size
            found.append(size)
            if known is None and step.step_index == 0:
                begun[uid] = example
        if begun and len(self._open) + len(begun) > self._prompts_max:
            raise BufferFull(
                f"{len(self._open)} prompts that were begun here have not ended, and "
                f"{len(begun)} more would be over max_open_prompts, {self._prompts_max}; nothing "
                "was queued: go on with those that are open, or complete them, and then submit "
                f"again. One of which nothing comes for {OPEN_PROMPT_S:g} s counts no more"
            )
        return found

    def check(self, steps: Sequence[Step], uids: Sequence[str], contents: Sequence[int]) -> None:
        """They, steps of these rollouts, contradict neither each other nor what was submitted.

        Raises:
            Contradiction: names the index, field, value, and what it contradicts.
        """
        firsts: dict[int, int] = {}
        lengths: dict[str, tuple[int, int]] = {}
        for index, (step, uid, content) in enumerate(zip(steps, uids, contents, strict=True)):
            at = _digest(uid, step.step_index)
            first = firsts.setdefault(at, self._contents.get(at, content))
            length = lengths.get(uid) or self._length(uid)
            try:
                _check(step, content != first, *length)
            except Contradiction as wrong:
                raise at_index(wrong, index) from None
            lengths[uid] = _longer(length, step)

    def add(
        self,
        steps: Sequence[Step],
        uids: Sequence[str],
        sizes: Sequence[int],
        contents: Sequence[int],
        now_s: float,
    ) -> None:
        """The steps, of these rollouts, sizes and contents, were submitted."""
        for step, uid, size, content in zip(steps, uids, sizes, contents, strict=True):
            _put(self._contents, _digest(uid, step.step_index), content)
            _put(self._lengths, _digest(uid), _longer(self._length(uid), step))
            if step.n_rollouts is not None:
                _put(self._sizes, _digest(step.prompt_uid), step.n_rollouts)
            prompt = self._open.get(step.prompt_uid)
            if prompt is None and step.step_index == 0:
                prompt = self._open[step.prompt_uid] = _Prompt(step.prompt_uid, step.example_id)
            if prompt is not None:
                prompt.size, prompt.seen_s = size, now_s
                self._open.move_to_end(step.prompt_uid)
            self._see(uid, step.trajectory_uid, step.prompt_uid, now_s)
            if step.is_last:
                self.end(uid, step.trajectory_uid, step.prompt_uid, 0, now_s)

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
        ended, seen = self._length(end.rollout_uid)
        if count and ended not in (0, count):
            remedy = "complete it with the same number, or leave it out"
            before = f"trajectory {end.named} has ended with {ended}"
            raise Contradiction("steps", count, remedy, before)
        if count and seen > count:
            before = f"step {seen - 1} of trajectory {end.named} was submitted"
            raise Contradiction("steps", count, "count from 1, with each step", before)

    def check_failure(self, rollout_uid: str, named: str) -> None:
        """A trajectory may fail.

        Raises:
            Contradiction: it has ended.
        """
        ended, _ = self._length(rollout_uid)
        if ended:
            remedy = "a trajectory fails before its last step, or not at all"
            before = f"this trajectory has ended with {ended} steps"
            raise Contradiction("trajectory_uid", named, remedy, before)

    def end(
        self, rollout_uid: str, trajectory_uid: str, prompt_uid: str, count: int, now_s: float
    ) -> None:
        """A trajectory of this prompt has ended with so many steps; 0: those that came."""
        if count:
            _, seen = self._length(rollout_uid)
            _put(self._lengths, _digest(rollout_uid), (count, seen))
        prompt = self._open.get(prompt_uid)
        if prompt is None:
            return
        known = self._see(rollout_uid, trajectory_uid, prompt_uid, now_s)
        if not known.ended:
            known.ended = True  # Known on, so that a repeated end counts once.
            prompt.open -= 1
            prompt.ended += 1
        if prompt.ended >= prompt.size if prompt.size else not prompt.open:
            del self._open[prompt_uid]

    def example_of(self, prompt_uid: str) -> str:
        """The ``example_id`` of an open prompt; empty: not known."""
        prompt = self._open.get(prompt_uid)
        return "" if prompt is None else prompt.example_id

    def prompt_of_rollout(self, uid: str) -> str:
        """The prompt of a trajectory of which steps were submitted here, by the uid of its rollout;
        empty: not known."""
        known = self._trajectories.get(_digest(uid))
        return "" if known is None else known.prompt_uid

    def prompt_of(self, trajectory_uid: str) -> str:
        """The same by the trajectory's own uid.

        Raises:
            InvalidRollout: it is not known, or trajectories of several prompts have it.
        """
        keys = self._named.get(_digest(trajectory_uid), ())
        prompts = [self._trajectories[key].prompt_uid for key in keys]
        if len(prompts) == 1:
            return prompts[0]
        why = f"no step of trajectory {trajectory_uid} was submitted here lately"
        if prompts:
            more = f" and {len(prompts) - _SHOWN} more" if len(prompts) > _SHOWN else ""
            which = ", ".join(map(repr, prompts[:_SHOWN])) + more
            why = f"trajectories of prompts {which} have the uid {trajectory_uid}"
        raise InvalidRollout("prompt_uid", "", "name its prompt", f"is empty, and {why}")

    def _length(self, rollout_uid: str) -> tuple[int, int]:
        return self._lengths.get(_digest(rollout_uid), (0, 0))

    def _see(self, uid: str, trajectory_uid: str, prompt_uid: str, now_s: float) -> _Trajectory:
        prompt = self._open.get(prompt_uid)
        key = _digest(uid)
        known = self._trajectories.get(key)
        if known is None:
            named = _digest(trajectory_uid)
            # The prompt's own text: each step has one that is equal.
            known = _Trajectory(named, prompt.uid if prompt else prompt_uid)
            self._named[named] = (*self._named.get(named, ()), key)
            if len(self._trajectories) >= KNOWN_MAX:
                self._forget_first()
        known.seen_s = now_s
        _put(self._trajectories, key, known)
        if prompt is not None and known.counted is not prompt:
            known.counted, known.ended = prompt, False
            prompt.open += 1
        return known

    def _forget_first(self) -> None:
        key, known = self._trajectories.popitem(last=False)
        others = tuple(other for other in self._named.pop(known.named) if other != key)
        if others:
            self._named[known.named] = others
        if known.counted is not None:
            known.counted.open -= not known.ended

    def _forget_old(self, now_s: float) -> None:
        before_s = now_s - OPEN_PROMPT_S
        while self._trajectories and next(iter(self._trajectories.values())).seen_s <= before_s:
            self._forget_first()
        while self._open and next(iter(self._open.values())).seen_s <= before_s:
            self._open.popitem(last=False)


def contents_of(steps: Sequence[Step], outgoing: Sequence[Outgoing]) -> list[int]:
    """Of steps as they were given, that have not left: equal for equal ones, whenever they come, in
    this process."""
    found = []
    for step, one in zip(steps, outgoing, strict=True):
        assert one.entry is not None
        policy = (step.policy_version, str(step.weight_step), step.policy_epoch, step.lineage)
        entry = one.entry
        shared, plain = _shared_of(entry.shared), _plain_of(entry.plain)
        arrays = sorted(entry.extras.get("token_arrays", {}).items())
        found.append(hash((entry.kind, shared, plain, *policy, *arrays)))
    return found


def _check(step: Step, other: bool, ended: int, seen: int) -> None:
    """Whether another step has its index, how its trajectory has ended, and what came of it, do not
    contradict the step."""
    if not (other or ended or step.is_last):
        return
    index, named = step.step_index, f"trajectory {step.trajectory_uid}"
    as_ended = f"{named} has ended with {ended} steps"
    if other:
        before = f"another step {index} of {named} was submitted, with other content"
        remedy = "the first one counts: give each step an index of its own, and repeat one only as "
        raise Contradiction("step_index", index, f"{remedy}it was", before)
    if ended and index >= ended:
        remedy = "give each trajectory of a prompt a uid of its own, and end it once"
        raise Contradiction("step_index", index, remedy, as_ended)
    if step.is_last and seen > index + 1:
        remedy = "give it to the step with the largest step_index"
        raise Contradiction("is_last", True, remedy, f"step {seen - 1} of {named} was submitted")
    if step.is_last and ended not in (0, index + 1):
        raise Contradiction("is_last", True, "give it to the last of them, or to none", as_ended)


def _unlike(index: int, field: str, value: Any, first: Any, prompt_uid: str) -> InvalidRollout:
    before = f"was {first!r:.80} in an earlier step of prompt {prompt_uid}"
    return at_index(Contradiction(field, value, "give all of them the same", before), index)


def _longer(length: tuple[int, int], step: Step) -> tuple[int, int]:
    ended, seen = length
    after = step.step_index + 1
    return (after if step.is_last else ended), max(seen, after)


def _put(known: OrderedDict[int, ValueT], key: int, value: ValueT) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > KNOWN_MAX:
        known.popitem(last=False)


def _digest(name: str, index: int = 0) -> int:
    return xxh3_128_intdigest(name.encode(), index)
