"""What a writer of steps submitted lately: what contradicts it is refused, and the prompts that it
has open are bounded. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, TypeVar

from xxhash import xxh3_128_intdigest

from rollstream.producers.engine.outbox import Outgoing
from rollstream.producers.errors import Contradiction
from rollstream.producers.steps.segments import Step
from rollstream.schemas.errors import InvalidRollout
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
ValueT = TypeVar("ValueT")
Length = tuple[int, int]
"""How many steps a trajectory has, 0: not known; and one more than the newest index."""


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
        self.prompts_max = prompts_max
        # What came longest ago is the first, in all. By rollout and index, what a step holds.
        self._contents: OrderedDict[int, int] = OrderedDict()
        self._lengths: OrderedDict[int, Length] = OrderedDict()
        self._sizes: OrderedDict[int, int] = OrderedDict()
        self._open: OrderedDict[str, _Prompt] = OrderedDict()
        # By the digests of their rollout uids; and those by the digests of their own.
        self._trajectories: OrderedDict[int, _Trajectory] = OrderedDict()
        self._named: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        """How many prompts are open."""
        return len(self._open)

    def draft(self, now_s: float) -> Draft:
        """A call's steps, none so far."""
        before_s = now_s - OPEN_PROMPT_S
        while self._trajectories and next(iter(self._trajectories.values())).seen_s <= before_s:
            self._forget_first()
        while self._open and next(iter(self._open.values())).seen_s <= before_s:
            self._open.popitem(last=False)
        return Draft(self, now_s)

    def content_of(self, at: int) -> int | None:
        """What the step of this digest holds; None: not known."""
        return self._contents.get(at)

    def length_of(self, trajectory: int) -> Length:
        """Of the trajectory whose rollout has this digest."""
        return self._lengths.get(trajectory, (0, 0))

    def size_of(self, prompt_uid: str) -> int:
        """The ``n_rollouts`` of a prompt; 0: not known."""
        prompt = self._open.get(prompt_uid)
        return (prompt.size if prompt else 0) or self._sizes.get(_digest(prompt_uid), 0)

    def example_of(self, prompt_uid: str) -> str | None:
        """The ``example_id`` of an open prompt; None: it is not open."""
        prompt = self._open.get(prompt_uid)
        return None if prompt is None else prompt.example_id

    def add(self, draft: Draft) -> None:
        """The steps of the draft were submitted."""
        now_s = draft.now_s
        for at, content in draft.contents.items():
            _put(self._contents, at, content)
        for trajectory, length in draft.lengths.items():
            _put(self._lengths, trajectory, length)
        for step, trajectory, size in draft.steps:
            name = step.prompt_uid
            if step.n_rollouts is not None:
                _put(self._sizes, _digest(name), size)
            prompt = self._open.get(name)
            if prompt is None and step.step_index == 0:
                prompt = self._open[name] = _Prompt(name, step.example_id)
            if prompt is not None:
                prompt.size, prompt.seen_s = size, now_s
                self._open.move_to_end(name)
            known = self._see(trajectory, step.trajectory_uid, name, now_s)
            if step.is_last and prompt is not None:
                self._count_end(known, prompt)

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
        ended, seen = self.length_of(_digest(end.rollout_uid))
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
        ended, _ = self.length_of(_digest(rollout_uid))
        if ended:
            remedy = "a trajectory fails before its last step, or not at all"
            before = f"this trajectory has ended with {ended} steps"
            raise Contradiction("trajectory_uid", named, remedy, before)

    def end(self, end: Outgoing, count: int, now_s: float) -> None:
        """A trajectory has ended with so many steps; 0: those that came."""
        key, prompt = _digest(end.rollout_uid), self._open.get(end.group_uid)
        if count:
            _put(self._lengths, key, (count, self.length_of(key)[1]))
        if prompt is not None:
            known = self._see(key, end.trajectory_uid, prompt.uid, now_s)
            self._count_end(known, prompt)

    def prompt_of(self, trajectory_uid: str) -> str:
        """The prompt of a trajectory of which steps were submitted here, by its uid.

        Raises:
            InvalidRollout: it is not known, or trajectories of several prompts have it.
        """
        keys = self._named.get(_digest(trajectory_uid), ())
        prompts = [self._trajectories[key].prompt_uid for key in keys]
        if len(prompts) == 1:
            return prompts[0]
        why = f"no step of trajectory {trajectory_uid} was submitted here lately"
        if prompts:
            which = ", ".join(map(repr, prompts[:_SHOWN]))
            why = f"trajectories of prompts {which} have the uid {trajectory_uid}"
        raise InvalidRollout("prompt_uid", "", "name its prompt", f"is empty, and {why}")

    def _see(self, key: int, trajectory_uid: str, prompt_uid: str, now_s: float) -> _Trajectory:
        prompt, known = self._open.get(prompt_uid), self._trajectories.get(key)
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

    def _count_end(self, known: _Trajectory, prompt: _Prompt) -> None:
        if not known.ended:
            known.ended = True  # Known on, so that a repeated end counts once.
            prompt.open -= 1
            prompt.ended += 1
        if prompt.ended >= prompt.size if prompt.size else not prompt.open:
            del self._open[prompt.uid]

    def _forget_first(self) -> None:
        key, known = self._trajectories.popitem(last=False)
        others = tuple(other for other in self._named.pop(known.named) if other != key)
        if others:
            self._named[known.named] = others
        if known.counted is not None:
            known.counted.open -= not known.ended


@dataclass(eq=False)
class Draft:
    """The steps of one call, in their order. They are compared with each other and with what was
    submitted, which they join once they are queued.

    Attributes:
        now_s: when the call came.
        contents: what the steps hold, by the digests of rollout and index.
        lengths: of their trajectories, by the digests of their rollouts.
        steps: each with the digest of its rollout and the size of its group, 0: not known.
    """

    _submitted: Submitted
    now_s: float
    contents: dict[int, int] = field(default_factory=dict)
    lengths: dict[int, Length] = field(default_factory=dict)
    steps: list[tuple[Step, int, int]] = field(default_factory=list)
    _sizes: dict[str, int] = field(default_factory=dict)
    _begun: dict[str, str] = field(default_factory=dict)  # The examples of prompts they begin.

    def size_of(self, step: Step) -> int:
        """The size of the step's group; 0: not known.

        Raises:
            BufferFull: it begins a prompt, and too many would be open.
            Contradiction: an earlier step of the prompt said otherwise.
        """
        prompt = step.prompt_uid
        size = self._sizes.get(prompt) or self._submitted.size_of(prompt)
        if step.n_rollouts is not None and size not in (0, step.n_rollouts):
            raise _unlike("n_rollouts", step.n_rollouts, size, prompt)
        known = self._submitted.example_of(prompt)
        example = self._begun.get(prompt, step.example_id) if known is None else known
        if step.example_id != example:
            raise _unlike("example_id", step.example_id, example, prompt)
        if known is None and step.step_index == 0:
            self._begun[prompt] = example
            self._check_room()
        self._sizes[prompt] = size = step.n_rollouts or size
        return size

    def take(self, step: Step, uid: str, content: int) -> None:
        """The step, of this rollout and content, is one of the call's.

        Raises:
            Contradiction: names the field, value, and what it contradicts.
        """
        at, trajectory = _digest(uid, step.step_index), _digest(uid)
        first = self.contents.get(at, self._submitted.content_of(at))
        ended, seen = self.lengths.get(trajectory) or self._submitted.length_of(trajectory)
        _check(step, first not in (None, content), ended, seen)
        after = step.step_index + 1
        self.contents[at] = content
        self.lengths[trajectory] = after if step.is_last else ended, max(seen, after)
        self.steps.append((step, trajectory, self._sizes[step.prompt_uid]))

    def _check_room(self) -> None:
        is_open, begun, most = len(self._submitted), len(self._begun), self._submitted.prompts_max
        if is_open + begun > most:
            raise BufferFull(
                f"{is_open} prompts that were begun here have not ended, and {begun} more would be "
                f"over max_open_prompts, {most}; nothing was queued: go on with those that are "
                "open, or complete them, and then submit again. One of which nothing comes for "
                f"{OPEN_PROMPT_S:g} s counts no more"
            )


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


def _unlike(field: str, value: Any, first: Any, prompt_uid: str) -> Contradiction:
    before = f"was {first!r:.80} in an earlier step of prompt {prompt_uid}"
    return Contradiction(field, value, "give all of them the same", before)


def _put(known: OrderedDict[int, ValueT], key: int, value: ValueT) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > KNOWN_MAX:
        known.popitem(last=False)


def _digest(name: str, index: int = 0) -> int:
    return xxh3_128_intdigest(name.encode(), index)
