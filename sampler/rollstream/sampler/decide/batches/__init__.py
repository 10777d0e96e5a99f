"""Commands that decide batches, and how a batch is recorded. Pure.

- ``acks``  what an ack says of rows, compared with what the next step carries
- ``held_batches``  the batches that are held, and the groups in their slots
- ``made``  what a batch maker made, compared with what it made before
- ``new_batch``  the event that records a batch
- ``next_batch``  ``NextBatch``, ``Replace``
- ``packs_alone``  which steps belong to ready packs
- ``shaped``  ``NextShapedBatch``
"""
