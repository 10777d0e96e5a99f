"""What the logs say: state as a fold over the events that count.

- ``seal``   settled source offsets, the low watermark, dedupe
"""
