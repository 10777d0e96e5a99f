"""From what a caller publishes to records in the log.

- ``shell``     how both producers of rollouts are made, and what they ask samplers for
- ``producer``  what every producer is: a broker, names of topics, an engine, and an end
- ``outbox``    builds entries (no I/O)
- ``gather``    what is gathered for each partition until it is sent as one record (pure)
- ``engine``    the thread behind a producer: gathers, sends, and settles each entry once
- ``holding``   entries that are held until it is known where they belong
- ``hooks``     what the engine asks of its producer
- ``sending``   sends records, and learns what became of each
- ``topics``    which partition a key belongs to; asks the broker
- ``waits``     calls that wait for the engine
- ``stats``     ``ProducerStats``
- ``failures``  failed deliveries that no caller was told of so far
- ``process``   what becomes of producers when a process is forked, and when it ends
"""
