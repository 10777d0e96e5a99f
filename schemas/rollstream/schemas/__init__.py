"""What travels: the Avro schemas, their Python forms, and the pure rules that several rooms share.

Map, a line a file:

- ``avsc/``          the only list of fields; one file a schema and version
- ``wire_schemas``   loads them; fingerprints; which fields are packed arrays
- ``codec``          events to bytes and back (Avro single-object encoding)
- ``event_converter`` events as fastavro's dicts and back
- ``plain_writer``   the bytes of a rollout without rare fields, sooner than fastavro has them
- ``rollout_reader`` the way back; ``header_reader`` reads its header, ``varint`` the numbers in it
- ``header``         ``RolloutHeader``: all that a decision may read, never a token
- ``columns``        ``Columns``: many segments as ragged arrays
- ``records``        ``RolloutRecord`` and relatives: the user's view, made at a door
- ``events/``        one dataclass an event, by log
- ``reasons``        why a rollout was settled, why a group was sealed or dropped
- ``order``          policies: lag, branches
- ``ids``            uids, group ids, group keys
- ``rules``          the rules on a rollout's fields, with their limits
- ``digest``         xxh3 over decoded rows
- ``errors``         the root of all errors
"""
