"""What samplers tell env workers: policies, and how many groups each may begin.

- ``log``        follows ``admission.<env>``: the thread that reads it
- ``policies``   which policy to sample with, and whether one is stale (pure)
- ``asking``     waits for a policy
- ``newest``     what its records come to, in whatever order they are read
- ``shares``     how many groups a producer may have begun, by what samplers granted it (pure)
- ``standing``   what a producer has begun, and who waits, in their order (pure)
- ``waiting``    serves all that wait for one environment
- ``blocks``     waits for admission as blocks, with and without ``await``
"""
