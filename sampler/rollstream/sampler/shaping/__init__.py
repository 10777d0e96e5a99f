"""Batches for trainers, made from columns. Pure.

- ``batch``       ``Batch``: ragged and packed; ``Padded``, ``metrics``, ``to_torch``, ``to_jax``
- ``requested``   the columns that a batch has when they are asked for by name
- ``assembled``   groups' rows joined into a batch
- ``packing``     rows one after the other: where each lies, and the copies
"""
