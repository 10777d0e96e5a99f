"""Batches for trainers, made from groups' rows. Pure.

- ``assembled``  groups' rows joined into a batch
- ``batch``  ``Batch``: ragged and packed; ``metrics``, ``to_torch``, ``to_jax``
- ``beyond_float32``  groups whose returns make advantages beyond float32
- ``carried``  what a step takes over from the step before it
- ``decided``  what is recorded of a batch, the same for all its ranks
- ``joining``  rows one after the other: where each lies, and the copies
- ``padded``  ``Padded``: the same as rectangles
- ``requested``  the columns that a batch has when they are asked for by name
- ``share``  what it takes to read a rank's share of a batch
- ``tensors``  arrays by name, and as tensors of PyTorch and arrays of JAX
- ``token_arrays``  the named arrays of a batch, and why it lacks one
- ``wanted``  which trajectories of carried groups are still to be trained on
"""
