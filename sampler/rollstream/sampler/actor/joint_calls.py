"""Calls of one event loop that wait for one decision, and so cross to the actor together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Mapping
from typing import Any

from rollstream.sampler.decide.command import Command


class JointCalls:
    """Calls that are sent, and answered, together.

    Attributes:
        commands: by number, those that somebody still waits for.
        fewer: done once some of those that were sent are not waited for any more.
    """

    def __init__(self) -> None:
        self.commands: dict[int, Command[Any]] = {}
        self.fewer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._made = 0
        self._answers: asyncio.Task[Mapping[int, Any]] | None = None

    def send(self) -> list[int]:
        """The numbers of the commands that are to be sent now."""
        if self.fewer.done():
            self.fewer = asyncio.get_running_loop().create_future()
        return list(self.commands)

    async def answer(
        self, command: Command[Any], execute: Coroutine[Any, Any, Mapping[int, Any]] | None
    ) -> Any:
        """What the actor answered to this command; the first brings what executes all."""
        number, self._made = self._made, self._made + 1
        self.commands[number] = command
        if execute is not None:
            self._answers = asyncio.ensure_future(execute)
        assert self._answers is not None
        try:
            return (await asyncio.shield(self._answers))[number]
        finally:
            del self.commands[number]
            if not self.commands:
                self._answers.cancel()
            elif not self.fewer.done():
                self.fewer.set_result(None)


class Gathering:
    """Finds calls for one decision that are made in the same turn of an event loop.

    Args:
        execute: has all commands of joint calls executed; returns the answers by number.
    """

    def __init__(
        self, execute: Callable[[JointCalls, float], Coroutine[Any, Any, Mapping[int, Any]]]
    ) -> None:
        self._execute = execute
        self._open: dict[Hashable, JointCalls] = {}

    async def answer(self, command: Command[Any], wait_s: float) -> Any:
        """What the actor answered to this command. One that is cancelled is forgotten."""
        if not wait_s:
            alone = JointCalls()
            return await alone.answer(command, self._execute(alone, wait_s))
        key = asyncio.get_running_loop(), command.decision_key(), wait_s
        if key in self._open:
            return await self._open[key].answer(command, None)
        joint = self._open[key] = JointCalls()
        return await joint.answer(command, self._execute_open(key, wait_s))

    async def _execute_open(self, key: Hashable, wait_s: float) -> Mapping[int, Any]:
        # A task's first step comes after all that were made before it in this turn of the loop, and
        # before any call that they make is cancelled.
        return await self._execute(self._open.pop(key), wait_s)
