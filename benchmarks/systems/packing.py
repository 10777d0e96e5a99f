"""Joins rollouts into groups and packs their arrays, for systems that leave that to their user."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.scenarios import GROUP_SIZE
from benchmarks.systems.interface import Packed


class Member(NamedTuple):
    """A rollout with its arrays as bytes-like objects."""

    uid: str
    prompt: bytes | memoryview
    output: bytes | memoryview
    logprobs: bytes | memoryview
    reward: float


def pack(members: Sequence[Member]) -> Packed:
    """The members' arrays, one copy each; members of a group follow one another."""
    prompts = np.fromiter((len(m.prompt) for m in members), np.int64, len(members)) // 4
    outputs = np.fromiter((len(m.output) for m in members), np.int64, len(members)) // 4
    offsets = np.zeros(len(members) + 1, np.int64)
    np.cumsum(prompts + outputs, out=offsets[1:])
    zeros = bytes(4 * int(prompts.max()))
    # bytes.join over the buffers is the fastest copy in Python.
    tokens = b"".join([part for m in members for part in (m.prompt, m.output)])
    logprobs = b"".join([part for m in members for part in (zeros[: len(m.prompt)], m.logprobs)])
    ones = np.tile(np.array([False, True]), len(members))
    return Packed(
        tokens=np.frombuffer(tokens, np.int32),
        offsets=offsets,
        prompt_lengths=prompts.astype(np.int32),
        loss_mask=np.repeat(ones, np.column_stack((prompts, outputs)).ravel()),
        logprobs=np.frombuffer(logprobs, np.float32),
        rewards=np.fromiter((m.reward for m in members), np.float32, len(members)),
        group_index=np.arange(len(members), dtype=np.int32) // GROUP_SIZE,
    )


class Joiner:
    """Joins rollouts into complete groups; drops those with a uid that came before."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._open: dict[str, list[Member]] = {}
        self._ready: list[list[Member]] = []

    @property
    def ready(self) -> int:
        return len(self._ready)

    def add(self, group_uid: str, member: Member) -> None:
        if member.uid in self._seen:
            return
        self._seen.add(member.uid)
        group = self._open.setdefault(group_uid, [])
        group.append(member)
        if len(group) == GROUP_SIZE:
            self._ready.append(self._open.pop(group_uid))

    def take(self, groups: int) -> list[Member]:
        """Removes the oldest complete groups and returns their members."""
        taken, self._ready = self._ready[:groups], self._ready[groups:]
        return [member for group in taken for member in group]

    def sample(self, groups: int) -> list[Member]:
        """Removes complete groups drawn from all and returns their members."""
        taken = []
        for _ in range(groups):
            drawn = random.randrange(len(self._ready))
            self._ready[drawn], self._ready[-1] = self._ready[-1], self._ready[drawn]
            taken.append(self._ready.pop())
        return [member for group in taken for member in group]
