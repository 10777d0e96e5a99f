"""Served batches, looked at again.

- ``replay``  recomputes a served batch from its cursor and seed, or checks it from the files alone
"""

from rollstream.sampler.history.replay import FileCheck, Replayed, check_from_files, replay_step

__all__ = ["FileCheck", "Replayed", "check_from_files", "replay_step"]
