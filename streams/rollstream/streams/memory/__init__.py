"""The broker in memory: deterministic, for tests and for users who test their own loops (public).

- ``logs``      ``MemoryLogs``: topics, records and groups, shared by any number of brokers
- ``group``     consumer groups: who holds which partition
- ``broker``    ``MemoryBroker`` and its ``Admin``
- ``writer``    ``MemoryWriter``
- ``reader``    ``MemoryReader``
- ``member``    ``MemoryGroupReader``
"""

from rollstream.streams.memory.broker import MemoryBroker
from rollstream.streams.memory.logs import MemoryLogs

__all__ = ["MemoryBroker", "MemoryLogs"]
