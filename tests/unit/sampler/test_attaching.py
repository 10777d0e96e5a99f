"""The folder in which processes of one user find a Ray."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("ray")

from rollstream.sampler import SamplerUnavailable
from rollstream.sampler.serving.attaching import folder_of_user


def test_the_folder_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = folder_of_user()
    assert folder == folder_of_user()
    assert tmp_path in folder.parents
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("trap", ["open to others", "a link elsewhere"])
def test_a_folder_that_others_may_have_written_to_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"rollstream-{os.getuid()}"
    if trap == "open to others":
        folder.mkdir()
        folder.chmod(0o777)
    else:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SamplerUnavailable, match=r"rollstream-\d+ is not this user's alone"):
        folder_of_user()
