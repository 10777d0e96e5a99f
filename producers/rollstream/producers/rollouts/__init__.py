"""Rollouts, groups and trajectories: what a caller gives, and what becomes of it.

- ``fields``      what ``publish`` takes, as a table: names, checks, defaults (pure)
- ``arguments``   the same for type checkers and ``help``: names and types
- ``validate``    arguments to a segment's fields, or ``InvalidRollout`` (pure)
- ``arrays``      array-likes to packed bytes (pure)
- ``group``       a dispatched group, as a ``with`` block
- ``membership``  what a group publishes, and what it still lacks (no I/O)
- ``trajectory``  a rollout of several segments, as a ``with`` block
- ``blocks``      how groups and trajectories publish entry by entry, awaited or not
- ``together``    ``publish_many``: what the members share is checked once
"""
