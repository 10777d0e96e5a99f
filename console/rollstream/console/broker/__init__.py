"""A real Kafka on this machine, without Docker and without an installed Java.

embedded     ``EmbeddedKafka``: starts, stops and kills one broker over a data folder
jars         downloads Kafka's jars once, verified (``kafka_4_3_0.jars`` lists them)
java         finds the Java runtime in a Python package
properties   the broker's configuration
ports        picks the two ports of a data folder once
locks        locks on a data folder and on the download
child        a child process that never outlives this one
errors       the errors of all of these
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
