"""What every producer is made with: a broker, and the names of its topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rollstream.producers.settings import check_broker, check_names, check_timeout
from rollstream.streams.broker import Broker
from rollstream.streams.kafka import KafkaBroker
from rollstream.streams.topics.layout import Layout


class Connection(NamedTuple):
    """Attributes:
    broker: that is used.
    own: the same where it ends with the producer; None: it is the caller's.
    name: of the broker, for messages.
    layout: the names of topics.
    """

    broker: Broker
    own: KafkaBroker | None
    name: str
    layout: Layout


def connection(
    bootstrap: Any,
    broker: Any,
    timeout_s: Any,
    stamped: Mapping[str, Any],
    namespace: Any,
    generation: Any,
) -> Connection:
    """The same of a producer that is made with these arguments; no broker is asked for anything.

    Args:
        stamped: the names as ``check_names`` takes them.

    Raises:
        InvalidSettings: names the argument, its value and what to give instead.
    """
    check_broker(bootstrap, broker)
    check_timeout(timeout_s)
    layout = Layout(namespace, check_names(stamped, namespace, generation))
    own = None if bootstrap is None else KafkaBroker(bootstrap)
    used = own or broker
    name = str(used) if isinstance(used, KafkaBroker) else type(used).__name__
    return Connection(used, own, name, layout)
