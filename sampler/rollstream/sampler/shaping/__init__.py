"""Batches for trainers, made from columns. Pure.

- ``batch``       ``Batch``: ragged and packed; ``metrics``, ``to_torch``, ``to_jax``
- ``padded``      ``Padded``: the same as rectangles
- ``token_arrays`` the named arrays of a batch, and why it lacks one
- ``requested``   the columns that a batch has when they are asked for by name
- ``share``       what it takes to read a rank's share of a batch
- ``assembled``   groups' rows joined into a batch
- ``joining``     rows one after the other: where each lies, and the copies
"""
