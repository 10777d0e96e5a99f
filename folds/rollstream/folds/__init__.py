"""The fold over the logs of a sampler, shared by the sampler, sealers and ``status``. Pure.

- ``group/``   what is known of a group, packed
- ``life/``    what becomes of groups: alive, waiting, taken, dropped, retired
- ``ready/``   the groups that may be served, and whose turn it is
- ``batches/`` served batches, and how their rows ended
- ``scores/``  scores that come late, early, or for evaluations
- ``branches``  where the trainer left weights that it had made
- ``choosing``  from a sampler's configuration to what its decisions depend on
- ``pace``  how fast rollouts are sealed, and how long that and acks take
- ``published``  the policies that a trainer published
- ``remedies``  why groups are not served, and what to do about it
- ``saved_state``  the state as bytes, for a snapshot
- ``state``  ``SamplerState``: the fold over the seal logs and the decision log
"""
