"""The prompts that a writer of steps began and whose end it has not seen. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from rollstream.producers.step_segments import Step
from rollstream.schemas.errors import InvalidRollout
from rollstream.streams.errors import BufferFull

MAX_OPEN_PROMPTS = 16_384  # At 54 prompts a second, as many as go on in ``OPEN_PROMPT_S``.
# A prompt, or trajectory, of which nothing came for so long is open no more for its writer: another
# one may have taken the rest. Groups are sealed without what is missing after as long, by default
# (``seal_timeout_s``).
OPEN_PROMPT_S = 300.0

_Key = tuple[str, str]
"""Environment and uid."""


class _Prompt:
    __slots__ = ("ended", "open", "seen_s", "size")

    def __init__(self, size: int) -> None:
        self.size = size  # Its ``n_rollouts``; 0: not known.
        self.open: set[str] = set()  # Trajectories, as far as is known here.
        self.ended: set[str] = set()  # Of one whose size is known.
        self.seen_s = 0.0


class OpenPrompts:
    """Bounds how many prompts are open at one writer.

    A prompt is begun by step 0 of one of its trajectories, and open until ``n_rollouts`` of them
    have ended here (where that is not known: all that were begun here), or nothing of it came for
    ``OPEN_PROMPT_S``.

    Args:
        prompts_max: the bound.
    """

    def __init__(self, prompts_max: int) -> None:
        self._prompts_max = prompts_max
        # The one of which nothing came for longest is the first.
        self._prompts: OrderedDict[_Key, _Prompt] = OrderedDict()
        self._trajectories: OrderedDict[_Key, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        """How many prompts are open."""
        return len(self._prompts)

    def sizes(self, environment: str, steps: Sequence[Step], now_s: float) -> list[int]:
        """The size of each step's group, where all of them may be submitted; 0: not known.

        Raises:
            BufferFull: they begin prompts, and too many would be open.
            InvalidRollout: a step contradicts one before it.
        """
        self._forget(now_s)
        found: list[int] = []
        sizes: dict[_Key, int] = {}
        begun: set[_Key] = set()
        prompts: dict[str, str] = {}
        for index, step in enumerate(steps):
            key = environment, step.prompt_uid
            known = self._prompts.get(key)
            size = sizes.get(key) or (known.size if known else 0)
            if step.n_rollouts is not None and size not in (0, step.n_rollouts):
                raise InvalidRollout(
                    f"steps[{index}]: n_rollouts is {step.n_rollouts}, and was {size} in an "
                    f"earlier step of prompt {step.prompt_uid}; give all of them the same"
                )
            sizes[key] = size = step.n_rollouts or size
            found.append(size)
            uid = step.trajectory_uid
            prompt = prompts.get(uid) or self.prompt_of(environment, uid)
            if prompt not in ("", step.prompt_uid):
                raise InvalidRollout(
                    f"steps[{index}]: prompt_uid is {step.prompt_uid!r}, and trajectory {uid} "
                    f"belongs to prompt {prompt!r}; give each trajectory a uid of its own"
                )
            prompts[uid] = step.prompt_uid
            if known is None and step.step_index == 0:
                begun.add(key)
        if begun and len(self._prompts) + len(begun) > self._prompts_max:
            raise BufferFull(
                f"{len(self._prompts)} prompts that were begun here have not ended, and "
                f"{len(begun)} more would be over max_open_prompts, {self._prompts_max}; nothing "
                "was queued: go on with those that are open, or complete them, and then submit "
                f"again. One of which nothing comes for {OPEN_PROMPT_S:g} s counts no more"
            )
        return found

    def add(
        self, environment: str, steps: Sequence[Step], sizes: Sequence[int], now_s: float
    ) -> None:
        """The steps, of these sizes, were submitted."""
        for step, size in zip(steps, sizes, strict=True):
            key = environment, step.prompt_uid
            prompt = self._prompts.get(key)
            if prompt is None and step.step_index == 0:
                prompt = self._prompts[key] = _Prompt(size)
            if prompt is not None:
                prompt.size, prompt.seen_s = size, now_s
                prompt.open.add(step.trajectory_uid)
                self._prompts.move_to_end(key)
            of = environment, step.trajectory_uid
            self._trajectories[of] = step.prompt_uid, now_s
            self._trajectories.move_to_end(of)
            if step.is_last:
                self.end(environment, step.trajectory_uid)

    def end(self, environment: str, trajectory_uid: str) -> None:
        """A trajectory has ended."""
        known = self._trajectories.pop((environment, trajectory_uid), None)
        if known is None:
            return
        key = environment, known[0]
        prompt = self._prompts.get(key)
        if prompt is None:
            return
        prompt.open.discard(trajectory_uid)
        if prompt.size:
            prompt.ended.add(trajectory_uid)
        if len(prompt.ended) >= prompt.size and (prompt.size or not prompt.open):
            del self._prompts[key]

    def prompt_of(self, environment: str, trajectory_uid: str) -> str:
        """The prompt of a trajectory of which steps were submitted here; empty: not known."""
        return self._trajectories.get((environment, trajectory_uid), ("", 0.0))[0]

    def _forget(self, now_s: float) -> None:
        while self._trajectories:
            of, (prompt_uid, seen_s) = next(iter(self._trajectories.items()))
            if seen_s + OPEN_PROMPT_S > now_s:
                break
            del self._trajectories[of]
            prompt = self._prompts.get((of[0], prompt_uid))
            if prompt is not None:
                prompt.open.discard(of[1])
        while self._prompts:
            key, first = next(iter(self._prompts.items()))
            if first.seen_s + OPEN_PROMPT_S > now_s:
                break
            del self._prompts[key]
