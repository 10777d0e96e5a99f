"""The broker, store, clock and stop signal that commands use, and the configured topics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import typer

from rollstream.runtime.clock import Clock, SystemClock
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.deadline import Deadline
from rollstream.runtime.entropy import SystemEntropy
from rollstream.runtime.shutdown import stop_on_signals
from rollstream.schemas.errors import RollstreamError
from rollstream.status import Figures, measure
from rollstream.store import Blobs, Followed, StoreError, open_store, read_root_id
from rollstream.store.bounded import open_bounded
from rollstream.store.errors import StoreHangs
from rollstream.store.in_time import in_time
from rollstream.store.probe import Lack, probe_reading, probe_store
from rollstream.streams.broker import Broker, TopicSpec
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.topics.check import Difference
from rollstream.streams.topics.layout import Layout
from rollstream.streams.topics.root import StoreRoot
from rollstream.streams.topics.specs import specs_for

LOOK_FAILURES = (RollstreamError, OSError)  # After one of these the next look may succeed.
STORE_SHARE = 1 / 3  # Of the time for a look; else a store that is away would leave the logs none.
HANG_SHARE = 1 / 2  # The same for a mount, which obeys no time-out.


@dataclass(frozen=True, slots=True)
class Services:
    """Opens what a command uses. Tests pass their own as ``obj`` of the Typer context.

    Attributes:
        broker, store: open the configured one.
        clock: of this machine.
        stopping: returns the event that is set when the process is to end.
    """

    broker: Callable[[RollstreamConfig], Broker] = lambda config: KafkaBroker(
        config.kafka.bootstrap, config.kafka.client
    )
    store: Callable[[RollstreamConfig], Blobs] = lambda config: open_store(config.store)
    clock: Clock = field(default_factory=SystemClock)
    stopping: Callable[[], threading.Event] = stop_on_signals

    @contextmanager
    def connected(
        self, config: RollstreamConfig, timeout_s: float | None = None
    ) -> Iterator[Broker]:
        """The broker, once it answers, within ``timeout_s`` (``kafka.timeout_s``); where it is
        known that it cannot, ``BrokerUnavailable`` at once, which says why."""
        with self.broker(config) as broker:
            broker.admin().reach(config.kafka.timeout_s if timeout_s is None else timeout_s)
            yield broker

    def bounded_store(self, config: RollstreamConfig, timeout_s: float | None = None) -> Blobs:
        """The store. Its calls raise ``StoreHangs`` if they take longer than ``timeout_s``, or than
        ``store.timeout_s``."""
        opens = partial(self.store, config)
        return open_bounded(config.store, timeout_s=timeout_s, clock=self.clock, opens=opens)


def services_of(context: typer.Context) -> Services:
    """The services that were passed as ``obj``, else those of this machine."""
    return context.obj if isinstance(context.obj, Services) else Services()


def specs_of(config: RollstreamConfig) -> list[TopicSpec]:
    """The configured topics with their partitions and settings."""
    return specs_for(
        Layout.of(config.kafka),
        {name: environment.partitions for name, environment in config.environments.items()},
        config.samplers,
        rollouts_retention_hours=config.kafka.retention_hours,
    )


def lacks_of(
    services: Services, config: RollstreamConfig, root: StoreRoot, deadline: Deadline
) -> list[Difference]:
    """What the root does not do for this process. Writes a probe there, unless the root has no id:
    it may be the folder below a mount that is missing.

    Raises:
        StoreHangs: no answer by the deadline.
    """
    if not root.root_id:
        return []

    def probe() -> tuple[Lack, ...]:
        return probe_store(services.store(config), SystemEntropy())

    return [
        Difference(root.root, "store", "", what, f"until then {until}")
        for what, until in in_time(probe, root.root, deadline)
    ]


def root_of(
    services: Services, config: RollstreamConfig, deadline: Deadline, *, lists: bool = False
) -> StoreRoot:
    """The store's root as this machine has it.

    Args:
        lists: whether it must be possible to list it, too.

    Raises:
        StoreError: it cannot be read. StoreHangs: not within ``HANG_SHARE`` of the deadline.
    """

    def look() -> StoreRoot:
        store = services.store(config)
        root = StoreRoot(config.store.root, read_root_id(store), Followed(store))
        if lists:
            probe_reading(store)
        return root

    share = Deadline(HANG_SHARE * deadline.timeout_s, deadline.clock)
    return in_time(look, config.store.root, share)


def figures_of(
    services: Services, config: RollstreamConfig, broker: Broker, deadline: Deadline
) -> Figures:
    """The deployment's figures. A store that does not answer is one of them: the logs tell how far
    each stage is all the same. It is waited for as long as leaves time to read them.

    Raises:
        BrokerUnavailable: not within the deadline.
    """
    hasty_s = min(config.store.timeout_s, STORE_SHARE * deadline.timeout_s)
    hasty = config.store.model_copy(update={"timeout_s": hasty_s})
    asked = config.model_copy(update={"store": hasty})
    try:
        root = root_of(services, asked, deadline, lists=True)
    except StoreError as error:
        hangs = isinstance(error, StoreHangs)
        given_s = HANG_SHARE * deadline.timeout_s if hangs else hasty_s
        told = f"{error}. It had {given_s:.2g} s of this look"
        if hangs or hasty_s < config.store.timeout_s:
            told += ": if it is only slow, raise --timeout"
        return replace(measure(broker, config, deadline), other_root=(told,))
    return measure(broker, config, deadline, root=root)
