"""Publishes late scores from an event loop, those of one time together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from rollstream.producers import InvalidRollout, ScoreProducer, ScoresNotDelivered
from rollstream.schemas.errors import RollstreamError


class ScoresWriter(Protocol):
    """What the gateway writes scores to: ``LateScores``."""

    async def publish(
        self,
        trajectory_uid: str,
        *,
        environment: str,
        prompt_uid: str,
        reward: float,
        scorer: str,
        rewards: Mapping[str, float],
        flags: Sequence[str],
        attempt: str,
    ) -> None:
        """Returns once the log has the score of this trajectory."""


class LateScores:
    """Each call returns once the log has its score. Meanwhile a thread waits for the broker, for
    all scores of an environment that came since it last began to.

    Args:
        make: returns the producer of an environment.
        timeout_s: how long the broker may take.
    """

    def __init__(self, make: Callable[[str], ScoreProducer], timeout_s: float) -> None:
        self._make = make
        self._timeout_s = timeout_s
        # One an environment: a producer says once that scores failed, and it may be to any caller.
        self._producers: dict[str, ScoreProducer] = {}
        self._waiting: dict[str, list[tuple[dict[str, Any], asyncio.Future[None]]]] = {}
        self._publishing: dict[str, asyncio.Task[None]] = {}

    async def publish(self, trajectory_uid: str, *, environment: str, **score: Any) -> None:
        """Returns once the log has the score of this trajectory.

        Raises:
            InvalidRollout: as ``ScoreProducer.publish``; it was not published.
            RollstreamError: it is not, or perhaps not, in the log. You may repeat the call.
        """
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        given = {**score, "rollout_uid": trajectory_uid}
        self._waiting.setdefault(environment, []).append((given, answer))
        if environment not in self._publishing:
            task = asyncio.create_task(self._publish_waiting(environment))
            self._publishing[environment] = task
        try:
            await answer
        except InvalidRollout as wrong:
            wrong.field = wrong.field.replace("rollout_uid", "trajectory_uid")
            raise

    def close(self) -> None:
        """Closes the producers; of what they still send, nobody was told that the log has it."""
        for producer in self._producers.values():
            with suppress(ScoresNotDelivered):
                producer.close()

    async def _publish_waiting(self, environment: str) -> None:
        try:
            while together := self._waiting.pop(environment, []):
                scores = [score for score, _ in together]
                errors = await asyncio.to_thread(self._publish, environment, scores)
                for (_, answer), error in zip(together, errors, strict=True):
                    if answer.done():  # Its call has ended before.
                        continue
                    if error is None:
                        answer.set_result(None)
                    else:
                        answer.set_exception(error)
        finally:
            del self._publishing[environment]

    def _publish(
        self, environment: str, scores: Sequence[dict[str, Any]]
    ) -> list[RollstreamError | None]:
        """What became of each score; None: the log has it."""
        producer = self._producers.get(environment)
        if producer is None:
            producer = self._producers[environment] = self._make(environment)
        errors = [_error_of(partial(producer.publish, **score)) for score in scores]
        failed = [_error_of(partial(producer.flush, self._timeout_s)), *errors]
        # Where some failed, it is not known which of those that were queued.
        lost = next((one for one in failed if not isinstance(one, InvalidRollout | None)), None)
        return [error or lost for error in errors]


def _error_of(call: Callable[[], None]) -> RollstreamError | None:
    try:
        call()
    except RollstreamError as error:
        return error
    return None
