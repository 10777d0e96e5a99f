"""What a trainer makes of batches, in its own process.

- ``examples/``     ``Examples``: what a loss is computed from
- ``makers/``       which rollouts are trained on
- ``packs/``        examples packed into sequences of one length, balanced over ranks
- ``ready_packs/``  packs that are ready when an optimizer step begins
- ``aio``  ``AsyncTrainingBatches``, ``AsyncTrajectoryPool`` (imports ray)
- ``given_mix``  refuses a mix that no step could have, and warns of what it leaves out
- ``given_sampler``  refuses what is no sampler where one has to be given
- ``left_over``  the batch of each step, with what the one before left over, for these two
- ``training_batches``  ``TrainingBatches``: what a batch maker made of each step
- ``trajectory_pool``  ``TrajectoryPool``: finished prompt groups, first come, first served
"""
