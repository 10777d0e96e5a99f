"""Logs: brokers, topics, the owned log, and the state that the logs hold.

Map:

- ``broker``      the interfaces (``Broker``, ``Writer``, ``LogReader``, ``GroupReader``, ``Admin``)
- ``errors``      the errors that brokers and owned logs raise
- ``partitioning``  which partition a key belongs to
- ``kafka/``      ``KafkaBroker``: the interfaces over confluent-kafka
- ``memory/``     ``MemoryBroker``: the same in memory, for tests (public)
- ``timed``       a broker whose appends and questions are timed
- ``topics/``     names, layout, creation, checks
- ``reading``     a stretch of one log, record by record
- ``dead_letters``  what sealers could not read, and whether it was published again
- ``damaged``     where a log goes on behind records that the broker does not deliver
- ``compacted``  a compacted log, from its beginning on and on
- ``reports``     follows what sealers report of now
- ``troubles``    what a sealer commits beside an offset: its claim, and what hinders it
- ``tracing``     where rollouts are, by the logs that sealers read and write
- ``owned/``      a partition with one owner at a time: claim, append, fence, follow
- ``folds/``      state from events: settled entries, dedupe, what sealers report
"""
