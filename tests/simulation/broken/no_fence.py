"""An owned log whose fence lets everything pass."""

from __future__ import annotations

from typing import Any

from rollstream.schemas.events import Event
from rollstream.streams.folds.seal import SealFold
from rollstream.streams.owned.fence import Fence
from rollstream.streams.owned.log import OwnedLog


class OpenFence(Fence):
    """Whoever writes counts."""

    def admits(self, offset: int, event: Event) -> bool:
        super().admits(offset, event)
        return True


def without_fence(*args: Any, **kwargs: Any) -> OwnedLog[SealFold]:
    return OwnedLog(*args, **kwargs, make_fence=OpenFence)
