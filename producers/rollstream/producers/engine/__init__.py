"""From what a caller publishes to records in the log.

- ``shell``       how both producers are made, and when they refuse calls (closed, forked)
- ``connecting``  what every producer is made with: a broker, and topics' names
- ``outbox``      the core of both: builds entries, collects failed deliveries (no I/O)
- ``gather``      what is gathered for each partition until it is sent as one record (pure)
- ``sending``     sends records, and settles each entry once
- ``linger``      for how long the sync producer gathers
- ``process``     what becomes of producers when a process is forked, and when it ends
"""
