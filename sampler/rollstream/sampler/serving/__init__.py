"""Who executes what was decided.

- ``door``        ``SamplerApi``: public methods to commands
- ``local``       ``Sampler``: in the trainer's own process
- ``owner``       the engine behind every door: decide, append, hear, apply, reply
- ``seal_logs``   what was sealed, from all partitions
- ``payloads``    groups' rows from the store, through a byte-bounded cache
- ``projecting``  decisions as JSON files, off the trainer's way
- ``actor``       the Ray actor around an owner (imports ray)
- ``client``      ``SamplerClient`` (imports ray)
- ``aio``         ``AsyncSamplerClient``
"""
