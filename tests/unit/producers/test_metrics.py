"""Figures of producers, and their port for Prometheus, which a worker opens."""

from __future__ import annotations

import gc
import weakref

import pytest

from harness.producers import new_layout
from harness.scraping import addresses, get, scraped
from rollstream.producers import InvalidSettings, RolloutProducer, serve_metrics
from rollstream.streams.memory import MemoryBroker


def producer(broker: MemoryBroker, namespace: str) -> RolloutProducer:
    return RolloutProducer(broker=broker, environment="math", namespace=namespace)


def publish(to: RolloutProducer, count: int) -> None:
    for _ in range(count):
        to.publish(
            example_id="ex-0",
            prompt_tokens=[1],
            output_tokens=[2],
            logprobs=[-0.5],
            reward=1.0,
            policy_version="step-0",
            weight_step=0,
        )
    to.flush()


def test_figures_of_all_producers_of_a_process_are_added_up() -> None:
    broker = MemoryBroker()
    namespace = new_layout(broker, "math").namespace
    with producer(broker, namespace) as one, producer(broker, namespace) as other:
        end = serve_metrics(one, other, port=0)
        publish(one, 3)
        publish(other, 2)
        values = scraped()
        assert one.stats().delivered == 3
        assert values["rollstream_producer_delivered_entries_total",] == 5
        assert values["rollstream_producer_failed_entries_total",] == 0
        assert values["rollstream_producer_outstanding_entries",] == 0
        causes = {key[1] for key in values if key[0] == "rollstream_producer_waiting_calls"}
        assert causes == {"room", "topic", "flush", "admission"}
        assert get("/healthz") == (200, "ok\n")
    assert get("/healthz")[0] == 503  # They are closed.
    end()
    assert addresses() == []


def test_counts_of_a_collected_producer_stay() -> None:
    broker = MemoryBroker()
    namespace = new_layout(broker, "math").namespace
    with producer(broker, namespace) as one:
        other = producer(broker, namespace)
        end = serve_metrics(one, other, port=0)
        publish(one, 3)
        publish(other, 2)
        assert scraped()["rollstream_producer_delivered_entries_total",] == 5
        other.close()
        gone = weakref.ref(other)
        del other
        gc.collect()
        assert gone() is None
        assert scraped()["rollstream_producer_delivered_entries_total",] == 5
        assert get("/healthz") == (200, "ok\n")
        end()


def test_counts_of_an_ended_handle_stay_while_another_shows() -> None:
    broker = MemoryBroker()
    namespace = new_layout(broker, "math").namespace
    with producer(broker, namespace) as one, producer(broker, namespace) as other:
        end_one, end_other = serve_metrics(one, port=0), serve_metrics(other, port=0)
        publish(one, 3)
        publish(other, 2)
        assert scraped()["rollstream_producer_delivered_entries_total",] == 5
        publish(other, 1)  # No scrape has seen it when the handle ends.
        end_other()
        end_other()
        assert scraped()["rollstream_producer_delivered_entries_total",] == 6
        end_one()
    assert addresses() == []


@pytest.mark.parametrize("port", [-1, 65_536, True, "9464"])
def test_a_port_that_is_none_is_refused(port: object) -> None:
    broker = MemoryBroker()
    with (
        producer(broker, new_layout(broker, "math").namespace) as one,
        pytest.raises(InvalidSettings, match="port"),
    ):
        serve_metrics(one, port=port)  # type: ignore[arg-type]
