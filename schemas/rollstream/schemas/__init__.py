"""The Avro schemas, their Python forms, and the pure rules that several packages share.

Map, a line a file:

- ``avsc/``            the only list of fields; one file a schema and version
- ``wire_schemas``     loads them; fingerprints; which fields are packed arrays
- ``fields``           the fields of a rollout segment, from ``ingest_record.vN.avsc``
- ``ingest/``          records of the ingest log: several entries as columns
- ``rules``            the rules on a rollout's fields, with their limits
- ``metadata``         what a rollout's ``metadata`` may be
- ``codec``            encodes and decodes events (Avro single-object encoding)
- ``event_converter``  events to fastavro's dicts and back
- ``columns``          ``Columns``: many segments as ragged arrays
- ``records``          ``RolloutRecord`` and relatives: the user's view of rollouts
- ``events/``          one dataclass an event, by log
- ``reasons``          why a rollout was settled, why a group was sealed or dropped
- ``order``            policies: lag, branches
- ``ids``              segment ids, group ids, group keys, partition addresses
- ``digest``           xxh3 over decoded rows
- ``other_names``      refuses other systems' names of arguments, with ours
- ``errors``           the root of all errors
- ``choosing``         every setting that a sampler's decisions depend on, as one value
- ``scoring``          how late scores count: their versions and their digest
"""
