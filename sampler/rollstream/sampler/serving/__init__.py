"""Executes commands, in this process or over Ray.

- ``api``         ``SamplerApi``: public methods to commands
- ``local``       ``Sampler``: in the trainer's own process
- ``owner``       the engine: decide, append, wait until it is confirmed, reply
- ``seal_logs``   folds the seal logs into the state
- ``payloads``    groups' rows from the store, through a byte-bounded cache
- ``projecting``  writes decisions as JSON files, in a thread of its own
- ``actor``       the Ray actor around an owner (imports ray)
- ``client``      ``SamplerClient`` (imports ray)
- ``aio``         ``AsyncSamplerClient``
"""
