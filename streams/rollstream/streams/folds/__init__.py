"""State as a fold over the events that count.

- ``refs``     identifies sealed groups
- ``seal``     settled source offsets, the low watermark, dedupe
- ``waiting``  the rule which sealed groups cannot be served as they are
- ``sampler/``  the fold of a sampler, which ``status`` shares
"""
