"""What a ``KafkaBroker`` is made with is checked before anything connects."""

from __future__ import annotations

import pytest

from rollstream.streams.errors import BadClientSettings
from rollstream.streams.kafka import KafkaBroker, properties


@pytest.mark.parametrize(
    ("client", "complaint"),
    [
        ({"session.time.out.ms": "1"}, 'No such configuration property: "session.time.out.ms"'),
        ({"session.timeout.ms": "soon"}, 'Invalid value .* "session.timeout.ms"'),
        ({"max.in.flight": "100"}, ".*`max.in.flight` must be set <= 5"),
        ({"acks": "0"}, 'acks = "0": .*remove it'),
    ],
)
def test_property_that_cannot_be_used_is_refused(client: dict[str, str], complaint: str) -> None:
    with pytest.raises(BadClientSettings, match=f"kafka.client: {complaint}"):
        KafkaBroker("localhost:9092", client)


@pytest.mark.parametrize("bootstrap", ["", "localhost:99999", "two words:9092"])
def test_address_that_names_no_broker_is_refused(bootstrap: str) -> None:
    with pytest.raises(BadClientSettings, match="is no broker's address; write host:port"):
        KafkaBroker(bootstrap)


def test_properties_of_one_kind_of_client_alone_are_taken() -> None:
    client = {"session.timeout.ms": "1500", "compression.type": "lz4"}
    KafkaBroker("PLAINTEXT://[::1]:9092,other", client).close()


def test_a_line_that_blames_an_old_broker_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    line = "127.0.0.1:9092/1: ApiVersionRequest failed: Local: Timed out: probably due to {}"
    with caplog.at_level("ERROR", properties.LOG.name):
        properties.LOG.error(line.format("broker version < 0.10 (see api.version.request)"))
        properties.LOG.error(line.format("something else"))
    assert [record.getMessage()[-14:] for record in caplog.records] == ["something else"]
