"""How long no broker could be reached, as far as a process saw it."""

from __future__ import annotations

import threading
from collections import deque

from rollstream.runtime.clock import Clock
from rollstream.streams.broker import Broker

NAMED_FROM_S = 5.0  # A shorter outage explains no lack of groups.
KEPT_MAX = 64


class Outages:
    """Notes outages while somebody looks. Any thread may call it."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._ended: deque[tuple[float, float, str]] = deque(maxlen=KEPT_MAX)
        self._now: tuple[float, str] | None = None  # Since when, and why.
        self._looking = threading.Lock()  # Two threads would note the end of one outage twice.

    def look(self) -> str:
        """Returns why no broker can be reached; empty: as far as is known, one can."""
        with self._looking:
            why, now_s, before = self._broker.outage(), self._clock.monotonic_s(), self._now
            if why:
                self._now = (now_s if before is None else before[0], why)
            elif before is not None:
                self._now = None
                self._ended.append((before[0], now_s, before[1]))
            return why

    def since(self, begun_s: float) -> str:
        """Returns the outage of a wait that began at ``begun_s`` of the monotonic clock, in words;
        empty: there was none that counts."""
        with self._looking:
            now_s, present, ended = self._clock.monotonic_s(), self._now, [*self._ended]
        spans = [*ended, *([] if present is None else [(present[0], now_s, present[1])])]
        within = [(end - max(begin, begun_s), why) for begin, end, why in spans if end > begun_s]
        away_s = sum(one for one, _ in within)
        if away_s < NAMED_FROM_S:
            return ""
        return (
            f"For {away_s:.0f} s of the {now_s - begun_s:.0f} s that this call waited, no broker "
            f"could be reached: {within[-1][1]}. If the broker was away, workers and sealers were "
            "cut off, too: wait longer, or ask again. What the logs hold: "
        )
