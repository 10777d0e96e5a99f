"""Publishes late scores from an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rollstream.producers import InvalidRollout, ScoreProducer


@dataclass(eq=False)
class LateScores:
    """Each call returns once the log has its score. Calls of one environment follow one another in
    its thread, as a ``ScoreProducer`` says once, to whoever asks, that scores failed.
    """

    _make: Callable[[], ScoreProducer]
    _timeout_s: float  # How long the broker may take.
    _threads: dict[str, ThreadPoolExecutor] = field(default_factory=dict)
    _producers: dict[str, ScoreProducer] = field(default_factory=dict)

    async def publish(self, trajectory_uid: str, *, environment: str, **score: Any) -> None:
        """Returns once the log has the score of this trajectory.

        Raises:
            InvalidRollout: as ``ScoreProducer.publish``; it was not published.
            RollstreamError: it is not, or perhaps not, in the log. You may repeat the call.
        """
        if not trajectory_uid:
            raise InvalidRollout("trajectory_uid", "", "give a string that is not empty")
        if environment not in self._threads:
            self._producers[environment] = self._make()
            self._threads[environment] = ThreadPoolExecutor(1, "rollstream-scores")
        given = {**score, "environment": environment, "rollout_uid": trajectory_uid}
        publish = partial(self._publish, self._producers[environment], given)
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads[environment], publish)
        except InvalidRollout as wrong:
            wrong.field = wrong.field.replace("rollout_uid", "trajectory_uid")
            raise

    def close(self) -> None:
        """Closes the producers, which ends the calls that wait. Nobody was told of what they still
        send that the log has it."""
        with ThreadPoolExecutor(max(1, len(self._producers))) as closing:
            for producer in self._producers.values():
                closing.submit(producer.close)
        for thread in self._threads.values():
            thread.shutdown()

    def _publish(self, producer: ScoreProducer, score: dict[str, Any]) -> None:
        producer.publish(**score)
        producer.flush(self._timeout_s)
