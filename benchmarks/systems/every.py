"""Which systems there are."""

from benchmarks.systems.interface import System
from benchmarks.systems.raw import Raw
from benchmarks.systems.ray_actor import RayActor
from benchmarks.systems.redis_streams import RedisStreams


def every_system() -> list[System]:
    """In the order of measuring."""
    return [Raw(), RayActor(), RedisStreams()]
