"""Blobs on a local disk (or anything mounted like one)."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedWriter
from itertools import islice
from pathlib import Path

import numpy as np

from rollstream.runtime.entropy import Entropy, SystemEntropy
from rollstream.store.blobs import BlobInfo, Bytes, Pieces, ends_before, names_of
from rollstream.store.errors import BlobExists, BlobMissing, StoreError, StoreFull, StoreRefused
from rollstream.store.layout import ROOT_ID

STAGING = ".staging"  # Names that begin with a dot are never blobs.
LISTED_MAX = 1 << 18  # Names of a folder in memory, at most twice; about 40 MiB.
DURABLE_FOLDERS_MAX = 4096  # Folders remembered as synced; above it all are forgotten once.
_NO_RIGHT = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REMEDIES = {
    errno.EMFILE: "raise the files that this process may open: `ulimit -n`, or LimitNOFILE= of its "
    "systemd unit",
    errno.ENFILE: "raise the files that this machine may open: `sysctl fs.file-max`",
}


class LocalBlobs:
    """Keeps blobs as files below a folder. A blob survives a power failure once ``create`` returns.

    No reader sees any part of it before. A process that is killed during ``create`` leaves at most
    one file under ``.staging``, which ``list`` does not show. Threads and processes may share it.
    Methods: see ``Blobs``.

    Writes are refused if the root is no longer the same folder. If a mount is lost, the disk below
    it shows, and files written there would vanish once the mount is back. The root's id, once it
    was read or created here, also identifies a mount that comes back as another device.
    """

    # A link alone is atomic but not durable: after a power failure the name could refer to missing
    # bytes, and every later attempt would see "exists". So the bytes are synced first, then they
    # get their name, then the folders are synced.
    #
    # A mount may be lost at any moment, so the root is compared once the staged file is open. If
    # the root is lost after that, there is no staged file to link or rename.

    def __init__(self, root: Path, *, entropy: Entropy | None = None) -> None:
        self.root = Path(os.path.abspath(root))
        self._entropy = entropy or SystemEntropy()
        self._lock = threading.Lock()
        self._root = str(self.root)  # Paths are text: joining ``Path``s costs more than a write.
        self._durable_folders: set[str] = set()
        self._root_id = b""  # The bytes of that blob, once known.
        with _as_store_errors(self._root):
            self._root_identity = _identity(self._root)

    def create(self, path: str, data: Bytes | Pieces) -> None:
        target = self._target(path)
        folder = os.path.dirname(target)
        with self._writing(path, folder), self._staged(data) as staged:
            self._ensure_folder(folder)
            try:
                os.link(staged, target)
            except FileExistsError:
                # The process that linked it may have been killed before it synced the name.
                _sync_folder(folder)
                raise BlobExists(f"{path} exists below {self.root}; it was left as it is") from None
            _sync_folder(folder)
        if path == ROOT_ID:
            self._root_id = bytes(data)

    def replace(self, path: str, data: Bytes | Pieces) -> None:
        target = self._target(path)
        folder = os.path.dirname(target)
        with self._writing(path, folder), self._staged(data) as staged:
            self._ensure_folder(folder)
            os.rename(staged, target)
            _sync_folder(folder)

    def read(self, path: str) -> bytes:
        with _as_store_errors(path), open(self._target(path), "rb") as file:
            data = file.read()
        if path == ROOT_ID and _identity(self._root) == self._root_identity:
            self._root_id = data
        return data

    def read_ranges(self, path: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        # Not mapped: bytes would change after they were compared with their sum, and who touches a
        # page of a file that was cut short meanwhile is killed.
        runs = _runs(spans)
        with _as_store_errors(path):
            handle = os.open(self._target(path), os.O_RDONLY)
            try:
                read = [_read_range(handle, run[0][0], run[-1][1]) for run in runs]
            finally:
                os.close(handle)
        found: list[memoryview] = []
        for run, data in zip(runs, read, strict=True):
            start, stop = run[0][0], run[-1][1]
            if len(data) < stop - start:
                raise ends_before(path, stop)
            found += [data[first - start : last - start] for first, last in run]
        return found

    def info(self, path: str) -> BlobInfo | None:
        target = self._target(path)
        with _as_store_errors(path):
            return BlobInfo(path, os.stat(target).st_size) if os.path.isfile(target) else None

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> Iterator[BlobInfo]:
        """A blob that is created or deleted meanwhile may be left out."""
        folder, _, beginning = prefix.rpartition("/")
        start = self._target(folder) if folder else self._root
        with _as_store_errors(prefix):
            yield from islice(_walk(start, f"{folder}/" if folder else "", beginning, after), limit)

    def delete(self, path: str) -> None:
        with _as_store_errors(path):
            _unlink(self._target(path))

    def delete_staged(self, before_us: int) -> int:
        old: list[str] = []
        with _as_store_errors(STAGING), suppress(FileNotFoundError):
            for entry in list(os.scandir(os.path.join(self._root, STAGING))):
                with suppress(FileNotFoundError):
                    if entry.stat().st_mtime_ns < before_us * 1_000:
                        old.append(entry.path)
            for file in old:
                _unlink(file)
        return len(old)

    @property
    def requests_at_once(self) -> int:
        return 1

    def local_path(self, path: str) -> Path | None:
        return Path(self._target(path))

    def address(self, path: str) -> str:
        return self._target(path) if path else self._root

    def _target(self, path: str) -> str:
        return os.path.join(self._root, *names_of(path))

    @contextmanager
    def _writing(self, path: str, folder: str) -> Iterator[None]:
        """Turns FileNotFoundError during a write into StoreError and forgets that the folders are
        durable, so that the next attempt makes them again."""
        with _as_store_errors(path):
            self._make_first_root()
            try:
                yield
            except FileNotFoundError as error:
                with self._lock:
                    self._durable_folders.difference_update(self._up_to_root(folder))
                self._compare_root()
                raise StoreError(
                    f"{path}: its folder below {self.root} was removed meanwhile; the next attempt "
                    "makes it again"
                ) from error

    @contextmanager
    def _staged(self, data: Bytes | Pieces) -> Iterator[str]:
        """Yields a synced file under ``.staging`` with these bytes, which is removed in the end."""
        staged = os.path.join(self._root, STAGING, self._entropy.token())
        try:
            with self._opened(staged) as file:
                self._compare_root()
                file.writelines(data.buffers if isinstance(data, Pieces) else (data,))
                file.flush()
                os.fsync(file.fileno())
            yield staged
        finally:
            _unlink(staged)

    def _opened(self, staged: str) -> BufferedWriter:
        try:
            return open(staged, "xb")
        except FileNotFoundError:
            self._compare_root()
            Path(staged).parent.mkdir(exist_ok=True)
            return open(staged, "xb")

    def _make_first_root(self) -> None:
        """Makes the root of a new store; never one that existed when this object was made."""
        if self._root_identity is not None:
            return
        with self._lock:
            if self._root_identity is None:
                self.root.mkdir(parents=True, exist_ok=True)
                self._root_identity = _identity(self._root)

    def _compare_root(self) -> None:
        found = _identity(self._root)
        if found == self._root_identity:
            return
        if not self._has_root_id():
            raise StoreError(
                f"{self.root} is not the folder that it was (was a mount lost?); nothing is "
                "written until it is back. If it is meant to be another one, restart this process"
            )
        with self._lock:
            self._root_identity = found
            self._durable_folders.clear()

    def _has_root_id(self) -> bool:
        try:
            return bool(self._root_id) and (self.root / ROOT_ID).read_bytes() == self._root_id
        except OSError:
            return False

    def _up_to_root(self, folder: str) -> Sequence[str]:
        """The folder and its parents below the root."""
        found = []
        while folder != self._root:
            found.append(folder)
            folder = os.path.dirname(folder)
        return found

    def _ensure_folder(self, folder: str) -> None:
        """Makes the folder and syncs its name and those of its parents, up to the root's own.

        Parents that exist are synced too, once: the process that made them may have been killed
        before it synced them.
        """
        with self._lock:
            if folder in self._durable_folders:
                return
        self._compare_root()
        self._make_folders(folder)
        synced = []
        for made in (*self._up_to_root(folder), self._root):
            parent = os.path.dirname(made)
            _sync_folder(parent)
            synced.append(made)
            with self._lock:
                if parent in self._durable_folders:
                    break
        with self._lock:
            if len(self._durable_folders) >= DURABLE_FOLDERS_MAX:
                self._durable_folders.clear()
            self._durable_folders.update(synced)

    def _make_folders(self, folder: str) -> None:
        # Not with parents=True, which would make a lost root again. The name of a folder that is
        # made here is not synced yet, whatever this object remembers of an earlier one.
        with self._lock:
            for missing in reversed(self._up_to_root(folder)):
                try:
                    os.mkdir(missing)
                except FileExistsError:
                    continue
                self._durable_folders.discard(missing)


def _read_range(handle: int, start: int, stop: int) -> memoryview:
    """The bytes of an open file; fewer where it ends before."""
    data = np.empty(stop - start, np.uint8).data
    read = 0
    while read < len(data) and (count := os.preadv(handle, [data[read:]], start + read)):
        read += count
    return data[:read]


def _runs(spans: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """The spans, those that follow one another together."""
    runs: list[list[tuple[int, int]]] = []
    for span in spans:
        if runs and runs[-1][-1][1] == span[0]:
            runs[-1].append(span)
        else:
            runs.append([span])
    return runs


def _identity(folder: str) -> tuple[int, int] | None:
    """The folder's device and inode; None where there is none."""
    try:
        found = os.stat(folder)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _unlink(file: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(file)


def _walk(folder: str, at: str, beginning: str, after: str) -> Iterator[BlobInfo]:
    """Yields the blobs below a folder, whose path is ``at``, that come after a path, in the order
    of paths. A folder of more than ``LISTED_MAX`` names is read once for each so many of them."""
    reached = after.removeprefix(at).partition("/")[0] if after.startswith(at) else ""
    names = _first_names(folder, beginning, reached)
    while names:
        for name in names:
            path = f"{at}{name}"
            if name.endswith("/"):
                if path > after or after.startswith(path):
                    yield from _walk(os.path.join(folder, name), path, "", after)
            elif path > after:
                with suppress(FileNotFoundError):
                    yield BlobInfo(path, os.stat(os.path.join(folder, name)).st_size)
        names = _first_names(folder, beginning, names[-1]) if len(names) == LISTED_MAX else []


def _first_names(folder: str, beginning: str, after: str) -> list[str]:
    """The first names in a folder behind one, in the order of paths: a folder's ends with ``/``."""
    names: list[str] = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or not entry.name.startswith(beginning):
                continue
            name = f"{entry.name}/" if entry.is_dir() else entry.name
            if name > after:
                names.append(name)
            if len(names) == 2 * LISTED_MAX:
                names = sorted(names)[:LISTED_MAX]
    return sorted(names)[:LISTED_MAX]


def _sync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _as_store_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, IsADirectoryError) as error:
        raise BlobMissing(f"there is no blob {path}") from error
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise StoreFull(
                f"no space is left for {path} ({error.strerror}); free some or move the root"
            ) from error
        kind = StoreRefused if error.errno in _NO_RIGHT else StoreError
        remedy = _REMEDIES.get(error.errno or 0, "check the disk and the folder's rights")
        raise kind(f"{path}: {error.strerror} ({error.filename}); {remedy}") from error
