"""The Ray actor: an owner with one method, ``execute``."""

from __future__ import annotations

import os
import pickle
import socket
import threading
from dataclasses import dataclass

import ray

from rollstream.runtime.clock import SystemClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.entropy import SystemEntropy
from rollstream.sampler.deciding.commands import Command
from rollstream.sampler.errors import SamplerError
from rollstream.sampler.serving.owner import Owner, Reply
from rollstream.sampler.shaping.scratch import Scratch
from rollstream.schemas.errors import RollstreamError
from rollstream.store.blobs import Blobs
from rollstream.store.open import open_store
from rollstream.store.warm_memory import keep_memory_warm
from rollstream.streams.broker import Broker
from rollstream.streams.errors import BrokerError, Fenced
from rollstream.streams.kafka import KafkaBroker

IDLE_EVERY_S = 0.05  # How often what was sealed meanwhile is folded while nobody asks.


@dataclass(frozen=True, slots=True)
class Leave:
    """To an actor that was overtaken: it exits for good."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An error that crosses to the client as a value, so that its type survives.

    Attributes:
        overtaken: the sampler itself, not only this trainer, has a successor.
    """

    error: RollstreamError
    overtaken: bool


class SamplerActor:
    """One sampler, decided in one process.

    Started anew by Ray when its process was killed; it then folds the logs and goes on. Overtaken
    by another owner it answers ``Fenced`` and exits for good at ``Leave``.
    """

    def __init__(
        self,
        name: str,
        config: RollstreamConfig,
        broker: Broker | None,
        store: Blobs | None,
    ) -> None:
        keep_memory_warm()
        if broker is None:
            broker = KafkaBroker(config.kafka.bootstrap, config.kafka.client)
        self._owner = Owner(
            name,
            config,
            broker=broker,
            store=open_store(config.store.root) if store is None else store,
            clock=SystemClock(),
            entropy=SystemEntropy(),
            owner=f"{socket.gethostname()}:{os.getpid()} (actor)",
            pid=os.getpid(),
            memory=Scratch(),  # Ray copies a reply into shared memory before the next call.
        )
        self._started = False
        self._idler = threading.Thread(target=self._idle, name="rollstream-idle", daemon=True)

    def execute(self, command: Command | Leave, wait_s: float) -> Reply | Refused:
        """See ``Owner.execute``; errors that Rollstream raises on purpose are returned."""
        if isinstance(command, Leave):
            self._owner.close()
            ray.actor.exit_actor()  # type: ignore[no-untyped-call]
            raise AssertionError("exit_actor does not return")
        try:
            if not self._started:
                self._owner.start()
                self._started = True
                self._idler.start()
            return self._owner.execute(command, wait_s)
        except RollstreamError as error:
            overtaken = isinstance(error, Fenced) and self._owner.fenced
            return Refused(_portable(error), overtaken)

    def _idle(self) -> None:
        clock, never = SystemClock(), threading.Event()
        while not clock.wait(never, IDLE_EVERY_S):
            try:
                self._owner.idle()
            except (BrokerError, Fenced):
                # The next command meets the same trouble and answers it to somebody.
                continue


def _portable(error: RollstreamError) -> RollstreamError:
    """The error itself where it can be rebuilt on the other side, else its words."""
    try:
        pickle.loads(pickle.dumps(error))
    except TypeError:
        return SamplerError(f"{type(error).__name__}: {error}")
    return error
