"""The commands to a sampler: what each decides and returns, without doing anything. Pure.

- ``command``       ``Command``: what all have in common; ``Reply``
- ``batches``       ``NextBatch``, ``Replace``
- ``shaped``        ``NextShapedBatch``
- ``packs_alone``   which steps belong to ready packs
- ``new_batch``     the event that records a batch
- ``made``          ``RecordMade``: what a batch maker made
- ``trainer``       ``Ack``, ``MarkCheckpointed``, ``Resume``, ``PublishPolicy``
- ``acks``          what an ack says of rows, compared with what the next step carries
- ``pool``          ``ResumePool``, ``AcknowledgeFetch``: of the reader of a ``TrajectoryPool``
- ``announced``     what env workers are told of a state
- ``progress``      ``AskProgress``: what became of examples
- ``evaluation``    ``AskEvaluations``: what rollouts of split ``eval`` earned, by policy
- ``queries``       ``AskStats``, ``AskBatches``, …: they decide and claim nothing
- ``sampling``      ``SampleGroups``, ``ReadGroups``: groups that somebody looks at
- ``requests``      whether a request for groups can be met, and what meets it
- ``choose``        ``sample_groups``: which of the ready groups make a batch
- ``row_limits``    which rollouts of a group are too old
- ``capacity``      how many ready groups each environment may have
- ``dropping``      groups that will never be served, and the events that drop them
- ``held_batches``  the batches that are held, and the groups in their slots
- ``shortages``     ``Shortage``: too few groups, and the error that says what waits and was dropped
- ``drawing``       groups drawn by integer weights, without putting any back
- ``ratio``         the sample-to-insert ratio: which side is ahead, and by how much
"""
