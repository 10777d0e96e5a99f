"""The sampler's step in the folder of a checkpoint: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollstream.sampler import InvalidRequest
from rollstream.trl.checkpoint import CHECKPOINT, checkpointed_step, write_step


@pytest.mark.parametrize("step", [None, 0, 7])
def test_the_step_that_was_written_is_read(tmp_path: Path, step: int | None) -> None:
    write_step(tmp_path, step)
    assert checkpointed_step(tmp_path) == checkpointed_step(str(tmp_path)) == step


def test_without_a_folder_the_run_begins() -> None:
    assert checkpointed_step(None) is None


@pytest.mark.parametrize("folder", [3, b"checkpoint-2", ["checkpoint-2"], True])
def test_what_is_no_path_is_refused(folder: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"folder is .*; give the path of a checkpoint"):
        checkpointed_step(folder)


def test_a_checkpoint_of_another_trainer_is_refused_with_the_remedy(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "checkpoint-9"):
        with pytest.raises(InvalidRequest, match=r"names no step .* or None where the run begins"):
            checkpointed_step(folder)


@pytest.mark.parametrize(
    "text", ["", "{", "7", "[]", "{}", '{"step": -1}', '{"step": 1.5}', '{"step": true}', "\udc80"]
)
def test_a_file_without_a_step_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / CHECKPOINT).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InvalidRequest, match=f"{CHECKPOINT} names no step"):
        checkpointed_step(tmp_path)
