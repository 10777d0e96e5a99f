"""Logs: the broker, topics, the owned log, and what the logs mean.

Map:

- ``broker``      the interfaces (``Broker``, ``Writer``, ``LogReader``, ``GroupReader``, ``Admin``)
- ``errors``      what a broker may answer, as types
- ``partitioning``  which partition a key belongs to
- ``kafka/``      ``KafkaBroker``: the interfaces over confluent-kafka
- ``memory/``     ``MemoryBroker``: the same in memory, for tests (public)
- ``topics/``     names, layout, creation, checks
- ``reading``     a stretch of one log, record by record
- ``owned/``      one partition, one owner at a time: claim, append, confirmed, fence, follow
- ``folds/``      what a log says: settled offsets and dedupe
- ``status/``     how far each stage is, and which one is stuck
"""
