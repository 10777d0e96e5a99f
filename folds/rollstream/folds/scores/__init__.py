"""Scores that come late, early, or for evaluations. Pure.

- ``early_scores``  scores that wait for their group, and those of no use
- ``evaluated``  what evaluations earned; members that failed, aborted, truncated
- ``late_scores``  which groups take late scores, and what of them
- ``recently_sealed``  scores that wait for their group, and those of no use
"""
