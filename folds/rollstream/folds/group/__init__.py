"""What is known of a group. Pure.

- ``earned``  what rollouts earned: sums, mean and spread
- ``eligible``  the rules which groups cannot be served: not as they are, or never
- ``example_counts``  how often something became of the groups of each example
- ``failure_reasons``  why members failed, in few texts
- ``known``  a sealed group as the seal log describes it
- ``known_groups``  all that are alive, as bytes
- ``packed_refs``  what the ready groups are sorted by, compactly
- ``packed_rows``  all that are alive, as bytes
- ``score_targets``  which groups take late scores, and what of them
- ``scored``  which groups take late scores, and what of them
- ``sorted_rows``  what the ready groups are sorted by, compactly
- ``unfinished``  what evaluations earned; members that failed, aborted, truncated
"""
