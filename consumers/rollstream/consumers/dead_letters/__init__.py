"""Reads dead letters, and publishes again what they hold.

- ``reading``   ``read_letters``: every letter, and whether it was published again
- ``settled``   what the seal logs say became of the entries that letters are about
- ``retrying``  ``retry_letters``: publishes what can be read now
"""

from rollstream.consumers.dead_letters.reading import StoredLetter, read_letters
from rollstream.consumers.dead_letters.retrying import Outcome, retry_letters

__all__ = ["Outcome", "StoredLetter", "read_letters", "retry_letters"]
