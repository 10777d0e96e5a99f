"""A real Kafka on this machine, without Docker and without an installed Java.

- ``embedded``     ``EmbeddedKafka``: starts, stops and kills one broker over a data folder
- ``programs``     finds Java in a Python package, and downloads Kafka's jars (``kafka_4_3_0.jars``)
- ``properties``   the broker's configuration
- ``recovery``     how long a start may take
- ``ports``        picks the two ports of a data folder once
- ``locks``        locks on a data folder and on the download
- ``child``        a child process that never outlives this one
- ``errors``       the errors of all of these
- ``bound_to_parent``  how the kernel ends a child whose parent died
"""

from rollstream.console.broker.embedded import EmbeddedKafka
from rollstream.console.broker.errors import (
    BrokerDataInUse,
    BrokerDidNotStart,
    BrokerNotRunning,
    EmbeddedKafkaError,
    KafkaFilesUnavailable,
    LocalExtraMissing,
    PortTaken,
)

__all__ = [
    "BrokerDataInUse",
    "BrokerDidNotStart",
    "BrokerNotRunning",
    "EmbeddedKafka",
    "EmbeddedKafkaError",
    "KafkaFilesUnavailable",
    "LocalExtraMissing",
    "PortTaken",
]
