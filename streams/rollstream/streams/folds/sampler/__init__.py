"""The fold over a sampler's logs, shared by the sampler that decides and by ``status``. Pure.

- ``state``     ``SamplerState``: the fold over the seal logs and the decision log
- ``known``     a sealed group as the seal log describes it
- ``ready``, ``example_turns``  the groups that may be served, and whose turn it is
- ``known_groups``, ``packed_rows``  all that are alive, as bytes
- ``packed_refs``, ``sorted_rows``  what the ready groups are sorted by, compactly
- ``waiting``   groups that cannot be served as they are, the oldest first
- ``eligible``  the rules which groups cannot be served: not as they are, or never
- ``retired``   groups of retired files, and the recorded cursor
- ``decided``   what decisions do to groups, in whatever order flushes and decisions are folded
- ``taken``, ``to_come``  what was decided about groups: taken ones, and those to come
- ``dispatched``  groups that were dispatched and are not back yet, or never came
- ``failure_reasons``  why members failed, in few texts
- ``late_scores``, ``scored``, ``score_targets``  which groups take late scores, and what of them
- ``early_scores``, ``recently_sealed``  scores that wait for their group, and those of no use
- ``evaluated``, ``unfinished``  what evaluations earned; members that failed, aborted, truncated
- ``pace``      how fast rollouts are sealed, and how long that and acks take
- ``served``    a served batch, and what became of examples
- ``row_outcomes``, ``row_ends``  what acks say of rows, and how the rows of final batches ended
- ``saved_state``  the state as bytes, for a snapshot
- ``remedies``  why groups are not served, and what to do about it
- ``alive_groups``     sealed groups that have not ended, and why some wait
- ``branches``         where the trainer left weights that it had made
- ``choosing``         from a sampler's configuration to what its decisions depend on
- ``earned``           what rollouts earned: sums, mean and spread
- ``last_turns``       in which turn each key was served last
- ``published``        the policies that a trainer published
- ``uses``             how often groups were handed out, and which are still needed
"""
