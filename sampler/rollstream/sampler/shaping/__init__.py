"""Batches for trainers, made from columns. Pure.

- ``batch``       ``Batch``: ragged and packed; ``Padded``, ``metrics``, ``to_torch``, ``to_jax``
- ``assembled``   groups' rows joined into a batch
- ``scratch``     memory that batches are made in
"""
