"""Packs that are ready when an optimizer step begins: one decision a step.

- ``aio``  ``AsyncReadyPacks`` (imports ray)
- ``decision``  the channel of the step, its packs, and what is carried to the next one
- ``offered``  the trajectories that a step could train on, in the order of the queue
- ``queue``  the packs that can be made of them, pure in version
- ``steps``  ``ReadyPacks``: packs that are ready when an optimizer step begins
"""
