"""How fast do two sealers seal on while one of three brokers is silent and keeps its connections?

``PYTHONPATH=tests python -m benchmarks.three_brokers`` starts three brokers in containers and
publishes at one rate. It pauses a broker that does not coordinate the sealers' group, and then,
with other sealers, the one that does. It prints what was sealed a second of the partitions that
other brokers lead, as shares of what was sealed before.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path

from harness.containers import ThreeKafkas, why_no_kafka_container
from harness.silent_broker import WAIT_S, SealersOfThree
from rollstream.streams.broker import Broker, TopicPartition
from rollstream.streams.kafka import KafkaBroker

WINDOW_S = 40.0
FENCED_S = 12.0  # Kafka gives a silent broker up after 9 s or a little more; appends wait for it.
PUBLISH_EVERY_S = 0.1


def main() -> None:
    reason = why_no_kafka_container()
    if reason is not None:
        raise SystemExit(reason)
    with tempfile.TemporaryDirectory() as name, ThreeKafkas() as kafkas:
        for coordinates in (False, True):
            with SealersOfThree(kafkas, Path(name) / str(coordinates)) as sealers:
                _measure(kafkas, sealers, coordinates=coordinates)


def _measure(kafkas: ThreeKafkas, sealers: SealersOfThree, *, coordinates: bool) -> None:
    with KafkaBroker(kafkas.bootstrap) as broker:
        sealers.until_shared(broker)
    silent = sealers.choose(coordinates=coordinates)
    led, ended = sealers.led_by_others(silent), threading.Event()
    with sealers.beside(silent) as broker:
        publishing = threading.Thread(target=_publish, args=(sealers, broker, led, ended))
        publishing.start()
        time.sleep(WINDOW_S)
        paused_s = time.time()
        with kafkas.paused(silent):
            time.sleep(WINDOW_S)
        ended.set()
        publishing.join()
        sealers.until_sealed(broker, led)
        sealed = [(at_us / 1e6 - paused_s, n) for at_us, n in sealers.flushes(broker, led)]
    before = _sealed(sealed, FENCED_S - WINDOW_S, 0.0)
    paused, fenced = (_sealed(sealed, start, WINDOW_S) / before for start in (0.0, FENCED_S))
    silence_s = max(after - at for (at, _), (after, _) in pairwise(sorted(sealed)))
    print(f"the silent broker {'coordinates' if coordinates else 'does not coordinate'} the group:")
    print(f"  before it was silent       {before:.1f} rollouts/s of {len(led)} partitions")
    print(f"  while it is, of that       {paused:.0%}")
    print(f"  the same from {FENCED_S:g} s on     {fenced:.0%}")
    print(f"  nothing was sealed for     {silence_s:.1f} s", flush=True)


def _publish(
    sealers: SealersOfThree,
    broker: Broker,
    sources: Collection[TopicPartition],
    ended: threading.Event,
) -> None:
    writer = broker.writer()
    while not ended.wait(PUBLISH_EVERY_S):
        sealers.publish(writer, sources)
        writer.poll()
    assert writer.flush(WAIT_S) == 0


def _sealed(sealed: Collection[tuple[float, int]], start_s: float, stop_s: float) -> float:
    """How many a second."""
    return sum(n for at_s, n in sealed if start_s <= at_s < stop_s) / (stop_s - start_s)


if __name__ == "__main__":
    main()
