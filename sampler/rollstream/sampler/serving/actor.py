"""The Ray actor: an owner with one method, ``execute``."""

from __future__ import annotations

import pickle
import threading
from contextlib import suppress
from dataclasses import dataclass

import ray

from rollstream.runtime.clock import SystemClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.entropy import SystemEntropy
from rollstream.sampler.deciding.command import Command, R, Reply
from rollstream.sampler.errors import SamplerError
from rollstream.sampler.serving.owner import Owner
from rollstream.schemas.errors import RollstreamError
from rollstream.store.blobs import Blobs
from rollstream.store.warm_memory import keep_memory_warm
from rollstream.streams.broker import Broker
from rollstream.streams.errors import BrokerError, Fenced

IDLE_EVERY_S = 0.05  # How often what was sealed is folded while no command is executed.


@dataclass(frozen=True, slots=True)
class Refused:
    """An error that crosses to the client as a value, so that its type survives.

    Attributes:
        sampler_fenced: the sampler itself, not only this trainer, has a successor.
    """

    error: RollstreamError
    sampler_fenced: bool


class SamplerActor:
    """One sampler, decided in one process.

    Started anew by Ray when its process was killed; it then folds the logs and goes on. Where
    another owner took over it answers ``Fenced``, and exits for good at ``leave``.
    """

    def __init__(
        self, name: str, config: RollstreamConfig, broker: Broker | None, store: Blobs | None
    ) -> None:
        keep_memory_warm()
        self._owner = Owner(
            name,
            config,
            broker=broker,
            store=store,
            clock=SystemClock(),
            entropy=SystemEntropy(),
        )
        self._started = False
        self._idler = threading.Thread(target=self._idle, name="rollstream-idle", daemon=True)

    def execute(self, command: Command[R], wait_s: float) -> Reply[R] | Refused:
        """As ``Owner.execute``; errors that Rollstream raises on purpose are returned."""
        try:
            if not self._started:
                self._owner.check_topics()
                self._started = True
                self._idler.start()
            return self._owner.execute(command, wait_s)
        except RollstreamError as error:
            return Refused(_portable(error), isinstance(error, Fenced) and self._owner.fenced)

    def leave(self) -> None:
        """Exits for good, so that Ray does not start it anew."""
        self._owner.close()
        ray.actor.exit_actor()  # type: ignore[no-untyped-call]

    def _idle(self) -> None:
        clock, never = SystemClock(), threading.Event()
        while not clock.wait(never, IDLE_EVERY_S):
            # An error is met by the next command too, which returns it to its caller.
            with suppress(BrokerError, Fenced):
                self._owner.fold_sealed()


def _portable(error: RollstreamError) -> RollstreamError:
    """The error itself where it can be unpickled, else a ``SamplerError`` with its message."""
    try:
        pickle.loads(pickle.dumps(error))
    except TypeError:
        return SamplerError(f"{type(error).__name__}: {error}")
    return error
