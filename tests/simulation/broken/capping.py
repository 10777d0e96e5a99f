"""Sealers whose caps retire what they should keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

from rollstream.consumers.retention import plan
from rollstream.streams.folds.refs import GroupRef
from simulation.consumers.capped import Capped


class _Done:
    """A sampler that is done with everything."""

    def is_done(self, ref: GroupRef) -> bool:
        return True

    def is_open(self, ref: GroupRef) -> bool:
        return False


class RetiringUnread(Capped):
    """Who plans takes every sampler for done with every group."""

    def run(self) -> None:
        planned = plan.plan_retention

        def blindly(address: Any, flushes: Any, samplers: Mapping[str, object], *more: Any) -> Any:
            return planned(address, flushes, dict.fromkeys(samplers, _Done()), *more)

        with patch("rollstream.consumers.retention.flushes.plan_retention", blindly):
            super().run()
