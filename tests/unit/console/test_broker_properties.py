"""The embedded broker's settings, and the files that hold them."""

from __future__ import annotations

from rollstream.console.broker.programs import pinned_jars
from rollstream.console.broker.properties import broker_properties, render


def test_every_listener_is_on_loopback() -> None:
    properties = broker_properties(port=21_000, controller_port=21_001, overrides={})

    listeners = properties["listeners"].split(",") + properties["advertised.listeners"].split(",")

    assert {listener.split("://")[1].split(":")[0] for listener in listeners} == {"127.0.0.1"}


def test_a_record_of_16_mib_passes_everywhere() -> None:
    properties = broker_properties(port=21_000, controller_port=21_001, overrides={})

    assert properties["message.max.bytes"] == properties["replica.fetch.max.bytes"] == "16777216"


def test_an_override_wins_and_the_rest_stays() -> None:
    overrides = {"message.max.bytes": "1000"}

    properties = broker_properties(port=21_000, controller_port=21_001, overrides=overrides)

    assert properties["message.max.bytes"] == "1000"
    assert properties["auto.create.topics.enable"] == "false"


def test_rendered_text_is_what_java_reads_back() -> None:
    text = render({"plain": "a b,c.d", "key with=sign": "# ü \\ 🙂"})

    assert text == (
        "plain=a b,c.d\nkey with\\=sign=\\# \\u00fc \\\\ \\ud83d\\ude42\n"  # java.util.Properties
    )


def test_a_leading_space_of_a_value_survives() -> None:
    assert render({"key": " x"}) == "key=\\ x\n"


def test_the_pinned_files_name_each_jar_once_with_a_full_checksum() -> None:
    jars = pinned_jars()

    assert len({jar.filename for jar in jars}) == len(jars)
    assert {len(bytes.fromhex(jar.sha256)) for jar in jars} == {32}
    kafka_versions = {jar.version for jar in jars if jar.group == "org.apache.kafka"}
    assert kafka_versions == {"4.3.0"}
