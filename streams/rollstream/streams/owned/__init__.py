"""A partition that has one owner at a time (docs/architecture.md, "The owned log").

- ``fence``      pure: which events of a partition count
- ``fold``       pure: what a log folds into (the interface), and how far it was folded
- ``reading``    the event in a record; none: no owner wrote it; or ``UnreadableLog``
- ``state``      what an owner may do
- ``sending``    an owner's appends, one on its way at a time
- ``clients``    the clients that owners share: one that appends, a few that read
- ``lending``    ``Lender``: readers that are lent to one thread at a time
- ``appends``    events on their way, looked after by a loop that waits for none
- ``log_clock``  log time between two records, and whether this machine's clock agrees
- ``log``        ``OwnedLog``: claim, append, wait until it is confirmed
- ``adoption``   where a fold may start, so that start-up stays short
- ``follow``     ``Follower``: reads the events that count, without owning the logs, and puts aside
                 what cannot be read on
"""
