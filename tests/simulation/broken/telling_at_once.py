"""Sealers that tell of producers from the first record on that they read, as if no owner had before
them: what is still to be read again counts as ended meanwhile."""

from __future__ import annotations

from unittest.mock import patch

from rollstream.streams.folds.seal import SealFold
from simulation.consumers.sealers import Sealers

_NEVER = property(lambda fold: False, lambda fold, value: None)


class TellingAtOnce(Sealers):
    """The world of one seed."""

    def run(self) -> None:
        with patch.object(SealFold, "tells_of_producers", _NEVER, create=True):
            super().run()
