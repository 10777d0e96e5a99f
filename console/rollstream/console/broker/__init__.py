"""A real Kafka on this machine, without Docker and without an installed Java.

embedded     ``EmbeddedKafka``: starts, stops and kills one broker over a data folder
jars         Kafka's files: fetched once, verified, kept (``kafka_4_3_0.jars`` lists them)
java         the Java runtime that comes as a Python package
properties   what the broker is configured with
ports        the two ports of a data folder: picked once, then kept
data_lock    one process a data folder
file_lock    the lock under that, and under the fetch
child        a process that dies with this one
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
