"""The folder in which processes of one user find a Ray."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest

pytest.importorskip("ray")

from rollstream.runtime.deadline import Deadline
from rollstream.sampler import SamplerUnavailable
from rollstream.sampler.actor import attaching, loopback_ray
from rollstream.sampler.actor.attaching import folder_of_user, one_at_a_time
from rollstream.sampler.actor.loopback_ray import ADDRESS_FILE, USERS_FILE


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


class ForkedWhileOpen:
    """``open`` in a process that is forked before the file is closed: the child shares it."""

    def __init__(self) -> None:
        self.shared: list[int] = []

    @contextmanager
    def __call__(self, path: Path, mode: str) -> Iterator[IO[str]]:
        with open(path, mode) as file:
            self.shared.append(os.dup(file.fileno()))
            yield file


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkedWhileOpen]:
    made = ForkedWhileOpen()
    monkeypatch.setattr(attaching, "open", made, raising=False)
    yield made
    for descriptor in made.shared:
        os.close(descriptor)


def test_a_process_that_is_forked_meanwhile_keeps_nobody_from_attaching(
    tmp_path: Path, forked: ForkedWhileOpen
) -> None:
    for _ in range(2):
        with one_at_a_time(tmp_path, Deadline(0.0)):
            pass
    assert len(forked.shared) == 2


def test_a_process_that_is_forked_meanwhile_keeps_no_ray_from_starting(
    tmp_path: Path, forked: ForkedWhileOpen
) -> None:
    assert attaching._kept(tmp_path) is None
    with open(tmp_path / ADDRESS_FILE, "a+") as written:
        fcntl.flock(written, fcntl.LOCK_EX | fcntl.LOCK_NB)  # As its keeper does.
    assert len(forked.shared) == 1


def test_whoever_comes_when_a_ray_has_ended_does_not_find_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = SimpleNamespace(
        init=lambda **_: None,
        get_runtime_context=lambda: SimpleNamespace(gcs_address="127.0.0.1:1"),
        shutdown=lambda: None,
    )
    found = []

    @contextmanager
    def opened(path: Path, mode: str) -> Iterator[IO[str]]:
        with open(path, mode) as file:
            yield file
        if path.name == USERS_FILE:  # Who waited for that comes now.
            found.append(attaching._kept(tmp_path))

    monkeypatch.setattr(loopback_ray, "ray", ended)
    monkeypatch.setattr(loopback_ray, "open", opened, raising=False)
    loopback_ray.keep(tmp_path)
    assert found == [None]
