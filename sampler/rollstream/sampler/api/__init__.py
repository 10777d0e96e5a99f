"""A sampler as a trainer sees it, in this process or over Ray.

- ``aio``  ``AsyncSamplerClient``, and what else is awaited
- ``api``  ``SamplerApi``: a sampler as a trainer sees it, from these three
- ``asking``  ``Asks``: has commands executed, wherever
- ``batch_calls``  the public methods that hand a batch over
- ``client``  ``SamplerClient`` (imports ray)
- ``in_process``  ``AsksInProcess``: has them executed in the process that asks
- ``local``  ``Sampler``: in the trainer's own process
- ``looking``  the public methods that look at groups and decide nothing
- ``trainer_calls``  the public methods that record what a trainer did or wants
- ``view``  ``SamplerView``: reads a sampler, and claims nothing
"""
