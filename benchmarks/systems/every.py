"""Loads a system by its name, so that a process has no other system's libraries in memory."""

from __future__ import annotations

from importlib import import_module

from benchmarks.systems.interface import System

_SYSTEMS = {
    "raw": ("raw", "Raw"),
    "rollstream": ("rollstream", "Rollstream"),
    "admitted": ("rollstream", "Admitted"),
    "ray": ("ray_actor", "RayActor"),
    "redis": ("redis_streams", "RedisStreams"),
}
NAMES = tuple(_SYSTEMS)  # In the order of measuring.


def system_named(name: str) -> System:
    """The system with this name, one of ``NAMES``."""
    module, kind = _SYSTEMS[name]
    system: System = getattr(import_module(f"benchmarks.systems.{module}"), kind)()
    return system
