"""Batches for trainers, made from columns. Pure.

- ``batch``       ``Batch``: ragged and packed; ``metrics``, ``to_torch``, ``to_jax``
- ``padded``      ``Padded``: the same as rectangles
- ``prompt_response`` ``PromptResponse``: examples in the shape of trainers that pad
- ``tensors``     arrays by name, and as tensors of PyTorch and arrays of JAX
- ``token_arrays`` the named arrays of a batch, and why it lacks one
- ``requested``   the columns that a batch has when they are asked for by name
- ``share``       what it takes to read a rank's share of a batch
- ``assembled``   groups' rows joined into a batch
- ``examples``    ``Examples`` and ``RLExample``: what a loss is computed from
- ``on_first_use`` arrays that are computed when first asked for
- ``turns``       which turns of a trajectory are one sequence
- ``advantages``  how much better than its group each trajectory did
- ``makers/``     which rollouts are trained on
- ``packs/``      examples packed into sequences of one length, balanced over ranks
- ``ready_packs/`` packs that are ready when an optimizer step begins
- ``carried``     what a step takes over from the step before it
- ``wanted``      which trajectories of carried groups are still to be trained on
- ``joining``     rows one after the other: where each lies, and the copies
- ``as_sealed``       a group's rows as its event has them, where its file is lost
- ``beyond_float32``  groups whose returns make advantages beyond float32
- ``policy_order``    which of two policies is the newer one
"""
