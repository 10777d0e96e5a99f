"""State as a fold over the events that count.

- ``entries``  settled entries, packed into numbers
- ``refs``     identifies sealed groups
- ``remembered``  segments that were settled lately, compactly
- ``seal``     what became of each entry, the low watermark, dedupe
- ``reported``, ``in_flight``  what sealers report of now; how producers stand
"""
