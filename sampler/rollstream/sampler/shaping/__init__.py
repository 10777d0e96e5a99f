"""Batches for trainers, made from columns. Pure.

- ``batch``       ``Batch``: ragged and packed; ``metrics``, ``to_torch``, ``to_jax``
- ``assembled``   groups' rows joined into a batch
- ``scratch``     memory that batches are made in
- ``padded``      the ragged batch as rectangles
- ``ranks``       data-parallel shares of one recorded batch
"""
