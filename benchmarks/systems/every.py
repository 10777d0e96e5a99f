"""All systems by name. A process loads only the one that it takes part in, so that one system's
libraries are not in another's memory."""

from __future__ import annotations

from importlib import import_module

from benchmarks.systems.interface import System

_WHERE = {
    "raw": ("raw", "Raw"),
    "rollstream": ("rollstream", "Rollstream"),
    "ray": ("ray_actor", "RayActor"),
    "redis": ("redis_streams", "RedisStreams"),
}
NAMES = tuple(_WHERE)  # In the order of measuring.


def system_named(name: str) -> System:
    """One of ``NAMES``."""
    module, kind = _WHERE[name]
    system: System = getattr(import_module(f"benchmarks.systems.{module}"), kind)()
    return system
