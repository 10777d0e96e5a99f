"""Groups' rows: read from the store, or from the record.

- ``ahead``  the batch that will likely be asked for next, made while the trainer trains
- ``as_sealed``  a group's rows as its event has them, where its file is lost
- ``deliver``  what is read for a command, once it is decided
- ``handed_out``  of which batches a share was handed out, and of which none is any more
- ``payloads``  groups' rows from the store, through a byte-bounded cache
- ``rank_reader``  a rank that reads its shares itself
- ``reading``  reads groups of files, side by side where the store is behind a network
- ``recorded``  final batches that are no longer held, from the record
- ``repairing``  other groups for those whose files cannot be read
- ``resolved``  recorded batches with their groups, found once for all ranks
"""
