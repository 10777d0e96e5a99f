"""Publishes again what dead letters hold.

- ``settled``   what the seal logs say became of the entries that letters are about
- ``retrying``  ``retry_letters``: publishes what can be read now
"""

from rollstream.consumers.dead_letters.retrying import Outcome, retry_letters

__all__ = ["Outcome", "retry_letters"]
