"""A sampler as a Ray actor, and the calls to it (imports ray).

- ``actor_calls``  calls to that actor: awaited, repeated, cancelled (imports ray)
- ``agreement``  ``Agree``: whether two processes mean the same sampler
- ``attaching``  finds or starts the Ray that has the actor (imports ray)
- ``awaited_calls``  calls that coroutines of the actor await and its threads end
- ``loopback_ray``  a Ray on 127.0.0.1, and all that is used of Ray's private API (imports ray)
- ``pickled``  what peers get, pickled once
- ``sampler_actor``  the Ray actor around an owner (imports ray)
- ``stored``  batches in Ray's object store before they are asked for (imports ray)
"""
