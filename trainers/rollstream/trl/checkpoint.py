"""The sampler's step in the folder of a checkpoint; imports no PyTorch."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any

from rollstream.sampler import InvalidRequest

CHECKPOINT = "rollstream.json"
"""The file in a checkpoint's folder that names the sampler's step."""


def checkpointed_step(folder: str | PathLike[str] | None) -> int | None:
    """Returns the sampler's step that a checkpoint of ``RolloutTrainer`` holds, for ``resume``;
    None: there is no folder, or nothing was trained on before it was saved, so the run begins.

    Raises:
        InvalidRequest: the folder is no path, or its ``rollstream.json`` is missing, cannot be
            read, or names no step.
    """
    if folder is None:
        return None
    if not isinstance(folder, str | PathLike):
        raise InvalidRequest(f"folder is {folder!r:.200}; give the path of a checkpoint, or None")
    path = Path(folder) / CHECKPOINT
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        found = error
    step = found.get("step", -1) if isinstance(found, dict) else -1
    if step is None or (type(step) is int and step >= 0):
        return step
    raise InvalidRequest(
        f"{path} names no step ({found!r:.200}). Give a checkpoint that RolloutTrainer saved with "
        "a SamplerCallback, or None where the run begins"
    )


def write_step(folder: Path, step: int | None) -> None:
    """Writes the step into the folder; None: nothing was trained on."""
    (folder / CHECKPOINT).write_text(json.dumps({"step": step}) + "\n", encoding="utf-8")
