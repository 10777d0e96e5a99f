"""The folder of a run: emptied first, where a run of these examples wrote it."""

from __future__ import annotations

import shutil
from pathlib import Path

from examples.demo.errors import FolderNotOurs

MARK = ".rollstream-demo"  # A folder without it is somebody else's and is not emptied.


def empty_folder(folder: Path) -> None:
    """Makes it, or empties it.

    Raises:
        FolderNotOurs: there are files in it that no demo wrote; nothing was touched.
    """
    if folder.exists():
        if any(folder.iterdir()) and not (folder / MARK).exists():
            raise FolderNotOurs(folder)
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
