"""When flushes of a partition begin. Pure."""

from __future__ import annotations

from rollstream.runtime.config.sections import EnvironmentConfig

# What fills a file: it is flushed at once.
FULL_ENTRIES = 1_024
FULL_BYTES = 8 * 1024 * 1024
# What is worth a file waits for SPACING_S only, since producers and trainers that bound what is in
# flight would wait for a full file. A slow partition takes longer to have this many, and flushes at
# the age of its oldest.
WORTH_ENTRIES = 128
SPACING_S = 0.15
# That a producer lives is reported between flushes: its entry only has to be settled some time, and
# a seal log is kept for ever. ``status`` alarms where an entry waits for ``expire_after_s``.
ALIVE_INTERVAL_S = 600.0


class FlushCadence:
    """A flush is due when what is decided fills a file, or when the oldest of it was decided
    ``flush_interval_s`` ago, or ``SPACING_S`` where it is worth a file.

    So a partition writes at most one flush in ``flush_interval_s``, or one with at least
    ``WORTH_ENTRIES`` entries or ``FULL_BYTES``, and nothing that is decided waits longer than
    ``flush_interval_s`` for its flush to begin, unless the one before it still runs. Entries that
    say only that a producer lives wait for others, or ``ALIVE_INTERVAL_S``, or half of
    ``expire_after_s``.

    Args:
        config: ``flush_interval_s``, and what a flush holds at most.
    """

    def __init__(self, config: EnvironmentConfig) -> None:
        self._interval_s = config.flush_interval_s
        alive_s = min(ALIVE_INTERVAL_S, config.expire_after_s / 2)
        self._alive_s = max(alive_s, config.flush_interval_s)
        self._full_entries = min(FULL_ENTRIES, config.max_flush_rollouts)
        self._full_bytes = min(FULL_BYTES, config.max_flush_bytes)
        # Since when any entry waits, and any that says more than that a producer lives.
        self._any_s: float | None = None
        self._oldest_s: float | None = None

    def waiting(self, entries: int, alive: int, now_s: float) -> None:
        """So many entries are decided and in no flush that began, of which so many say only that a
        producer lives."""
        self._any_s = _since(self._any_s, entries, now_s)
        self._oldest_s = _since(self._oldest_s, entries - alive, now_s)

    def due(self, entries: int, alive: int, size: int, now_s: float) -> bool:
        """Whether so many entries, which write ``size`` bytes and wait, are to be flushed now."""
        if entries >= self._full_entries or size >= self._full_bytes:
            return True
        interval_s = self._interval_s
        if entries - alive >= WORTH_ENTRIES:
            interval_s = min(interval_s, SPACING_S)
        if self._oldest_s is not None and now_s - self._oldest_s >= interval_s:
            return True
        return self._any_s is not None and now_s - self._any_s >= self._alive_s


def _since(since_s: float | None, entries: int, now_s: float) -> float | None:
    if entries == 0:
        return None
    return now_s if since_s is None else since_s
