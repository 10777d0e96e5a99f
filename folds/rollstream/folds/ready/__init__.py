"""The groups that may be served, and whose turn it is. Pure.

- ``example_turns``  the groups that may be served, and whose turn it is
- ``index``  the groups that may be served, and whose turn it is
- ``last_turns``  in which turn each key was served last
- ``needed_steps``  which groups have too few rollouts of weights from a step on
"""
