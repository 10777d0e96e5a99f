"""What the logs say: state as a fold over the events that count.

- ``refs``     names of sealed groups
- ``seal``     settled source offsets, the low watermark, dedupe
- ``waiting``  the rule which sealed groups cannot be served as they are
"""
