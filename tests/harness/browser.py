"""A headless Chromium, where one is installed."""

from __future__ import annotations

import shutil
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_ARGUMENTS = (
    "--no-sandbox",  # As root of a container.
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium(playwright: Any) -> Any:
    """A browser with a profile of its own, which ends with the block that it is used in."""
    return playwright.chromium.launch(executable_path=CHROMIUM, args=[*_ARGUMENTS])
