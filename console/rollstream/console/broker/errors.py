"""What can go wrong with the broker on this machine."""

from __future__ import annotations

from rollstream.runtime.extras import how_to_install
from rollstream.schemas.errors import RollstreamError


class EmbeddedKafkaError(RollstreamError):
    """The embedded Kafka could not do what was asked."""


class LocalExtraMissing(EmbeddedKafkaError):
    """A package that brings Java or fetches Kafka is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"the embedded Kafka needs the package {package!r}, which is not installed; "
            f"{how_to_install('local')}"
        )
        self.package = package


class KafkaFilesUnavailable(EmbeddedKafkaError):
    """Kafka's files are not in the cache and could not be fetched."""


class BrokerDataInUse(EmbeddedKafkaError):
    """Another process holds the data folder."""


class PortTaken(EmbeddedKafkaError):
    """A port that the broker must have is in use by another process."""


class BrokerDidNotStart(EmbeddedKafkaError):
    """Java ended, or did not answer in time; the message carries the end of its log."""


class BrokerNotRunning(EmbeddedKafkaError):
    """Something was asked that only a running broker can answer."""
