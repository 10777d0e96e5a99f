"""An owner whose commands are executed in the threads that ask."""

from __future__ import annotations

from functools import partial

from rollstream.runtime.at_once import at_once
from rollstream.runtime.deadline import LOG_WAITING_EVERY_S, Deadline
from rollstream.sampler.decide.command import Command, R, Reply, read
from rollstream.sampler.engine.calls import AGAIN_S, attempted
from rollstream.sampler.engine.owner import Owner
from rollstream.sampler.errors import GroupsUnreadable

FOLLOW_SLICE_S = 0.05  # The longest that a thread reads the seal logs before it looks up.


class OwnerInProcess(Owner):
    """An owner whose ``execute`` waits: the thread of a call that waits reads the seal logs for
    all, and reads the rows of its own result."""

    def execute(self, command: Command[R], wait_s: float) -> Reply[R]:
        """Decides what the command calls for and replies once that is confirmed.

        Args:
            wait_s: how long groups that are not there yet are waited for.

        Raises:
            NotEnoughGroups: not there within ``wait_s``. Fenced: this sampler has a successor, or
                the command's trainer has. ClaimFailed, BrokerUnavailable: the broker did not answer
                in time, or cannot be reached when it is up. StoreAway: the store was not there in
                time. Others as the command's ``decide`` and ``result``.
        """
        wait, deadline = Deadline(wait_s, self._clock), self.deadline(wait_s)

        async def attempt(command: Command[R]) -> Reply[R]:
            return self._execute(command, wait)

        async def repair(command: Command[R], error: GroupsUnreadable) -> Command[R]:
            return self.repair(command, error)

        async def pause(error: Exception) -> None:
            deadline.log_waiting(partial(str, error))
            deadline.wait(AGAIN_S)

        return at_once(attempted(command, attempt, repair, pause, deadline))

    def _execute(self, command: Command[R], deadline: Deadline) -> Reply[R]:
        call = self.begin(command)
        woken = call.wake_thread()
        try:
            if self._asks():  # Which is no waiting call's alone to do.
                self.follow(0.0)
            self.decide(call)
            while True:
                woken.clear()  # Before the look: whatever comes after it ends the wait below.
                if not call.ended and deadline.passed():
                    self.give_up(call)
                if call.ended:
                    break
                deadline.log_waiting(lambda: self._describe(call))
                if not self.follow(deadline.slice_s(FOLLOW_SLICE_S)):
                    # Another call's thread reads the seal logs for all; leaving, it wakes one.
                    self._clock.wait(woken, deadline.slice_s(LOG_WAITING_EVERY_S))
        finally:
            call.answered.cancel()
            self._waiting.wake_first()
        reply = call.answered.result()
        return Reply(reply.trainer_epoch, read(reply.value))
