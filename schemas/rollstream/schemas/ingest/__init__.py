"""Records of the ingest log: several entries as columns, in one Avro record.

Map, a line a file:

- ``entry``    ``EntryKind``, and what an entry is while a producer holds it
- ``encode``   entries to the bytes of a record
- ``wire``     how Avro holds a record: the header, and the payload behind it, which is not copied
- ``frame``    where a record's columns lie, that their lengths agree, and what they hold
- ``record``   ``IngestRecord``: a record that was read; its entries, and parts of it as records
- ``checks``   which entries of a record break a rule of ``rollstream.schemas.rules``
- ``gather``   entries, of several records, to ``Columns``
"""
