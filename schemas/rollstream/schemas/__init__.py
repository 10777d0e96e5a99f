"""The Avro schemas, their Python forms, and the pure rules that several packages share.

Map, a line a file:

- ``avsc/``            the only list of fields; one file a schema and version
- ``wire_schemas``     loads them; fingerprints; which fields are packed arrays
- ``rules``            the rules on a rollout's fields, with their limits
- ``codec``            encodes and decodes events (Avro single-object encoding)
- ``event_converter``  events to fastavro's dicts and back
- ``plain_writer``     writes rollouts without rare fields faster than fastavro does
- ``rollout_reader``   reads rollouts; ``header_reader`` their headers, ``varint`` Avro's integers
- ``header``           ``RolloutHeader``: all that a decision may read, never a token
- ``columns``          ``Columns``: many segments as ragged arrays
- ``records``          ``RolloutRecord`` and relatives: the user's view of rollouts
- ``events/``          one dataclass an event, by log
- ``reasons``          why a rollout was settled, why a group was sealed or dropped
- ``order``            policies: lag, branches
- ``ids``              segment ids, group ids, group keys, partition addresses
- ``digest``           xxh3 over decoded rows
- ``errors``           the root of all errors
"""
