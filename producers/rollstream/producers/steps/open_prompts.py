"""The prompts that a writer of steps began and whose end it has not seen. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from xxhash import xxh3_128_intdigest

from rollstream.producers.steps.segments import Step, at_index
from rollstream.producers.steps.submitted import of_earlier_step
from rollstream.schemas.errors import InvalidRollout
from rollstream.streams.errors import BufferFull

MAX_OPEN_PROMPTS = 16_384  # At 54 prompts a second, as many as go on in ``OPEN_PROMPT_S``.
# A prompt, or trajectory, of which nothing came for so long is open no more for its writer: another
# one may have taken the rest. Groups are sealed without what is missing after as long, by default
# (``seal_timeout_s``).
OPEN_PROMPT_S = 300.0
_SHOWN = 5  # Prompts that a message names.
# Trajectories that one environment's writer knows; of more, those of which nothing came for longest
# are forgotten. Each takes about 500 bytes, however long its name is, and an open prompt about 300,
# besides its name: that has to be known for an end that does not give it.
TRAJECTORIES_MAX = 65_536


class _Prompt:
    __slots__ = ("ended", "example_id", "open", "seen_s", "size", "uid")

    def __init__(self, uid: str, example_id: str, size: int) -> None:
        self.uid = uid
        self.example_id = example_id
        self.size = size  # Its ``n_rollouts``; 0: not known.
        self.open = 0  # How many of its trajectories that are known have not ended.
        self.ended = 0  # Those that were forgotten too.
        self.seen_s = 0.0

    @property
    def over(self) -> bool:
        return self.ended >= self.size if self.size else not self.open


class _Trajectory:
    __slots__ = ("counted", "ended", "named", "prompt_uid", "seen_s")

    def __init__(self, named: int, prompt_uid: str) -> None:
        self.named = named  # The digest of its own uid.
        self.prompt_uid = prompt_uid
        self.counted: _Prompt | None = None  # Among the open or the ended ones of this prompt.
        self.ended = False  # In it.
        self.seen_s = 0.0


class OpenPrompts:
    """Bounds how many prompts of one environment are open at one writer.

    A prompt is begun by step 0 of one of its trajectories, and open until ``n_rollouts`` of them
    have ended here (where that is not known: all that were begun here), or nothing of it came for
    ``OPEN_PROMPT_S``. Memory is bounded by ``prompts_max`` and ``TRAJECTORIES_MAX``: an end of a
    trajectory that was forgotten has to name its prompt, and one that is repeated counts twice.

    Args:
        prompts_max: the bound.
    """

    def __init__(self, prompts_max: int) -> None:
        self._prompts_max = prompts_max
        # The one of which nothing came for longest is the first, in both.
        self._prompts: OrderedDict[str, _Prompt] = OrderedDict()
        # By the digests of their rollout uids; and those by the digests of their own.
        self._trajectories: OrderedDict[int, _Trajectory] = OrderedDict()
        self._named: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        """How many prompts are open."""
        return len(self._prompts)

    def sizes(self, steps: Sequence[Step], now_s: float) -> list[int]:
        """The size of each step's group, where all of them may be submitted; 0: not known.

        Raises:
            BufferFull: they begin prompts, and too many would be open.
            Contradiction: a step contradicts one before it.
        """
        self._forget_old(now_s)
        found: list[int] = []
        sizes: dict[str, int] = {}
        begun: set[str] = set()
        examples: dict[str, str] = {}
        for index, step in enumerate(steps):
            named = step.prompt_uid
            known = self._prompts.get(named)
            size = sizes.get(named) or (known.size if known else 0)
            if step.n_rollouts is not None and size not in (0, step.n_rollouts):
                raise at_index(of_earlier_step("n_rollouts", step.n_rollouts, size, named), index)
            sizes[named] = size = step.n_rollouts or size
            example = known.example_id if known else examples.setdefault(named, step.example_id)
            if step.example_id != example:
                wrong = of_earlier_step("example_id", step.example_id, example, named)
                raise at_index(wrong, index)
            found.append(size)
            if known is None and step.step_index == 0:
                begun.add(named)
        if begun and len(self._prompts) + len(begun) > self._prompts_max:
            raise BufferFull(
                f"{len(self._prompts)} prompts that were begun here have not ended, and "
                f"{len(begun)} more would be over max_open_prompts, {self._prompts_max}; nothing "
                "was queued: go on with those that are open, or complete them, and then submit "
                f"again. One of which nothing comes for {OPEN_PROMPT_S:g} s counts no more"
            )
        return found

    def add(
        self, steps: Sequence[Step], uids: Sequence[str], sizes: Sequence[int], now_s: float
    ) -> None:
        """The steps, of these rollouts and sizes, were submitted."""
        for step, uid, size in zip(steps, uids, sizes, strict=True):
            prompt = self._prompts.get(step.prompt_uid)
            if prompt is None and step.step_index == 0:
                prompt = self._prompts[step.prompt_uid] = _Prompt(
                    step.prompt_uid, step.example_id, size
                )
            if prompt is not None:
                prompt.size, prompt.seen_s = size, now_s
                self._prompts.move_to_end(step.prompt_uid)
            self._see(uid, step.trajectory_uid, step.prompt_uid, now_s)
            if step.is_last:
                self.end(uid, step.trajectory_uid, step.prompt_uid, now_s)

    def end(self, rollout_uid: str, trajectory_uid: str, prompt_uid: str, now_s: float) -> None:
        """A trajectory of this prompt has ended."""
        prompt = self._prompts.get(prompt_uid)
        if prompt is None:
            return
        known = self._see(rollout_uid, trajectory_uid, prompt_uid, now_s)
        if not known.ended:
            known.ended = True  # Known on, so that a repeated end counts once.
            prompt.open -= 1
            prompt.ended += 1
        if prompt.over:
            del self._prompts[prompt_uid]

    def example_of(self, prompt_uid: str) -> str:
        """The ``example_id`` of an open prompt; empty: not known."""
        prompt = self._prompts.get(prompt_uid)
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

    def _see(self, uid: str, trajectory_uid: str, prompt_uid: str, now_s: float) -> _Trajectory:
        prompt = self._prompts.get(prompt_uid)
        key = _digest(uid)
        known = self._trajectories.get(key)
        if known is None:
            named = _digest(trajectory_uid)
            # The prompt's own text: each step has one that is equal.
            known = _Trajectory(named, prompt.uid if prompt else prompt_uid)
            self._trajectories[key] = known
            self._named[named] = (*self._named.get(named, ()), key)
            if len(self._trajectories) > TRAJECTORIES_MAX:
                self._forget_first()
        known.seen_s = now_s
        self._trajectories.move_to_end(key)
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
        while self._trajectories:
            if next(iter(self._trajectories.values())).seen_s + OPEN_PROMPT_S > now_s:
                break
            self._forget_first()
        while self._prompts:
            prompt_uid, first = next(iter(self._prompts.items()))
            if first.seen_s + OPEN_PROMPT_S > now_s:
                break
            del self._prompts[prompt_uid]


def _digest(name: str) -> int:
    return xxh3_128_intdigest(name.encode())
