"""Publishes late scores from an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rollstream.producers import (
    FlushTimedOut,
    InvalidRollout,
    ScoreProducer,
    ScoresNotDelivered,
)
from rollstream.runtime.deadline import Deadline

_LOOK_S = 0.5  # How late a thread may see that the process ends.


@dataclass(eq=False)
class LateScores:
    """Each call returns once the log has its score. Calls of one environment follow one another in
    its thread, as a ``ScoreProducer`` says once, to whoever asks, that scores failed.
    """

    _make: Callable[[str], ScoreProducer]  # Returns the producer of an environment.
    _timeout_s: float  # How long the broker may take.
    _closing: bool = False
    _threads: dict[str, ThreadPoolExecutor] = field(default_factory=dict)
    _producers: dict[str, ScoreProducer] = field(default_factory=dict)

    async def publish(self, trajectory_uid: str, *, environment: str, **score: Any) -> None:
        """Returns once the log has the score of this trajectory.

        Raises:
            InvalidRollout: as ``ScoreProducer.publish``; it was not published.
            RollstreamError: it is not, or perhaps not, in the log. You may repeat the call.
        """
        if environment not in self._threads:
            self._threads[environment] = ThreadPoolExecutor(1, "rollstream-scores")
        publish = partial(self._publish, environment, {**score, "rollout_uid": trajectory_uid})
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads[environment], publish)
        except InvalidRollout as wrong:
            wrong.field = wrong.field.replace("rollout_uid", "trajectory_uid")
            raise

    def close(self) -> None:
        """Closes the producers. Nobody was told of what they still send that the log has it."""
        self._closing = True
        for environment, producer in self._producers.items():
            self._threads[environment].submit(_close, producer)
        for thread in self._threads.values():
            thread.shutdown()

    def _publish(self, environment: str, score: dict[str, Any]) -> None:
        deadline = Deadline(self._timeout_s)
        producer = self._producers.get(environment)
        if producer is None:
            producer = self._producers[environment] = self._make(environment)
        producer.publish(**score)
        while True:
            try:
                return producer.flush(deadline.slice_s(_LOOK_S))
            except FlushTimedOut:
                if deadline.passed() or self._closing:
                    raise


def _close(producer: ScoreProducer) -> None:
    with suppress(ScoresNotDelivered):
        producer.close()
