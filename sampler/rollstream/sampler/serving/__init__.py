"""Executes commands, in this process or over Ray.

- ``api``            ``SamplerApi``: public methods to commands
- ``looking``        the public methods that look at groups and decide nothing
- ``local``          ``Sampler``: in the trainer's own process
- ``view``           ``SamplerView``: reads a sampler, and claims nothing
- ``owner``          the engine: decide, append, wait until it is confirmed, reply
- ``calls``          calls under way, and those that wait for groups
- ``configuration``  the sampler's part of the configuration, and the seal logs that it names
- ``lost_logs``      whether the decision log is the one that the files follow from
- ``agreement``      ``Agree``: whether two processes mean the same sampler
- ``ahead``          the batch that will likely be asked for next, made while the trainer trains
- ``payloads``       groups' rows from the store, through a byte-bounded cache
- ``recorded``       final batches that are no longer held, from the record
- ``overdue``        says of batches that nobody acks
- ``rank_reader``    a rank that reads its shares itself
- ``projecting``     writes decisions as JSON files, in a thread of its own
- ``actor``          the Ray actor around an owner (imports ray)
- ``awaited_calls``  calls that coroutines of the actor await and its threads end
- ``pickled``        what peers get, pickled once
- ``attaching``      finds or starts the Ray that has the actor (imports ray)
- ``loopback_ray``   a Ray on 127.0.0.1, and all that is used of Ray's private API (imports ray)
- ``actor_calls``    calls to that actor: awaited, repeated, cancelled (imports ray)
- ``client``         ``SamplerClient`` (imports ray)
- ``aio``            ``AsyncSamplerClient``
"""
