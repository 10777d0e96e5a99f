"""State as a fold over the events that count.

- ``refs``     identifies sealed groups
- ``seal``     settled source offsets, the low watermark, dedupe
- ``sampler/``  the fold of a sampler, which ``status`` shares
"""
