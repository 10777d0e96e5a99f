"""Sealers whose reports of producers are wrong."""

from __future__ import annotations

from unittest.mock import patch

from rollstream.consumers.assembling.in_flight import ProducersInFlight
from rollstream.consumers.sealing.intake import Intake
from simulation.consumers.sealers import Sealers


class TellingAtOnce(Sealers):
    """They report from the first record on that they read, as if no owner had before them: what is
    still to be read again counts as ended meanwhile."""

    def run(self) -> None:
        with patch.object(Intake, "is_caught_up", lambda intake: True):
            super().run()


class KeepingWhatEnded(Sealers):
    """A group that ended stays open for whoever reads the reports."""

    def run(self) -> None:
        with patch.object(ProducersInFlight, "commit", lambda producers, plan: None):
            super().run()
