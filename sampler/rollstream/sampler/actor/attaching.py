"""Finds the Ray in which a sampler's actor runs, from any process of this machine.

A user has one folder on a machine for that. Who attaches holds its lock until the actor is found or
made, so that two that come at the same moment find the same one.
"""

from __future__ import annotations

import fcntl
import logging
import os
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO

import ray
from ray.exceptions import AuthenticationError

from rollstream.runtime.deadline import Deadline
from rollstream.sampler.actor.loopback_ray import (
    ADDRESS_FILE,
    LOOPBACK,
    PROGRAM,
    RAY_NAMESPACE,
    USERS_FILE,
    configured_address,
    loopback_only,
    show_token,
)
from rollstream.sampler.errors import ForkedSampler, SamplerUnavailable
from rollstream.sampler.forked import IN_EACH_PROCESS

ATTACH_FILE = "attach"  # Locked by the process that attaches.
LOG_FILE = "log"  # What the Ray that the machine's processes share printed last.
TRY_AGAIN_S = 0.02  # How often a lock is tried that another process has.
ANSWER_S = 2.0  # A Ray that runs accepts a connection by then.

# Kept as long as this process lives: the shared locks, and the programs that it started.
_used: dict[Path, IO[str]] = {}
_keepers: list[subprocess.Popen[bytes]] = []
_forked_off_connected = False  # This process has its parent's connection, and none of its threads.


def _after_fork() -> None:
    global _forked_off_connected  # noqa: PLW0603 - it is the process that was forked
    _forked_off_connected = _forked_off_connected or ray.is_initialized()


os.register_at_fork(after_in_child=_after_fork)  # Ray does not look, and hangs.


def folder_of_user() -> Path:
    """Where this user's processes on this machine find each other; one for each version of Ray and
    Python, since Ray does not mix them.

    Raises:
        SamplerUnavailable: somebody else might have written there.
    """
    folder = Path(tempfile.gettempdir()) / f"rollstream-{os.getuid()}"
    for made in (folder, folder / f"ray-{ray.__version__}-python-{platform.python_version()}"):
        made.mkdir(mode=0o700, exist_ok=True)
        status = made.lstat()
        if status.st_uid != os.getuid() or status.st_mode & 0o077 or made.is_symlink():
            raise SamplerUnavailable(
                f"{made} is not this user's alone, so what it says about a Ray is not to be "
                "trusted; remove it, or set TMPDIR, or pass the address of a Ray"
            )
    return made


@contextmanager
def one_at_a_time(folder: Path, deadline: Deadline) -> Iterator[None]:
    """The block is executed by one process of the machine at a time.

    Raises:
        SamplerUnavailable: not this one's turn by the deadline.
    """
    with open(folder / ATTACH_FILE, "a+") as file:
        _lock(file, fcntl.LOCK_EX, deadline, "another process attaches")
        try:
            yield
        finally:
            # Closed alone it stays locked as long as a process that was forked meanwhile lives.
            fcntl.flock(file, fcntl.LOCK_UN)


def connect(folder: Path, actor: str, address: str | None, deadline: Deadline) -> None:
    """Connects this process to the Ray that has the actor, or is to have it.

    Without an address that is the one that this process is connected to; the one that the
    environment names (``RAY_ADDRESS``); the one in which a process of this machine last found the
    actor; the one that this user's processes share on this machine, which is started where there
    is none, and ends with the last process that uses it.

    Raises:
        SamplerUnavailable: it does not let this process in, or did not start by the deadline.
        ForkedSampler: this process was forked off one that is connected to Ray.
    """
    if _forked_off_connected:
        raise ForkedSampler(
            f"this process, {os.getpid()}, was forked off one that is connected to Ray, so it "
            f"cannot use Ray itself; {IN_EACH_PROCESS}"
        )
    if ray.is_initialized():
        return
    address = address or configured_address()
    level = logging.INFO  # Ray's own.
    if address is None:
        level = logging.ERROR
        address = _recorded(folder, actor) or _shared_ray(folder, deadline)
        # An address that is found here is of this user's own Ray, which asks for the user's token:
        # on a new machine that Ray has only now written it.
        show_token()
    with loopback_only() if address.startswith(LOOPBACK) else nullcontext():
        try:
            ray.init(
                address=address,
                namespace=RAY_NAMESPACE,
                log_to_driver=False,
                logging_level=level,
            )
        except (ConnectionError, AuthenticationError) as error:
            (folder / actor).unlink(missing_ok=True)  # It may have named this address.
            raise SamplerUnavailable(
                f"no connection to Ray at {address}: check that it runs and can be reached there; "
                "where it asks for a token, as Ray does by default, give this process the "
                "cluster's (the same ~/.ray/auth_token, or RAY_AUTH_TOKEN) and set "
                "RAY_AUTH_MODE=token in its environment before it starts"
            ) from error


def record(folder: Path, actor: str) -> None:
    """Notes for other processes of this machine where the actor is."""
    address: str = ray.get_runtime_context().gcs_address
    if address == _kept(folder):
        (folder / actor).unlink(missing_ok=True)  # They find it there anyway.
        return
    new = folder / f"{actor}.new"
    new.write_text(address)
    new.replace(folder / actor)


def _recorded(folder: Path, actor: str) -> str | None:
    """Where the actor was found last, if a Ray may still be there."""
    try:
        address = (folder / actor).read_text()
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), ANSWER_S).close()
    except (OSError, ValueError):
        return None
    return address


def _shared_ray(folder: Path, deadline: Deadline) -> str:
    """The address of the Ray that this user's processes share on this machine. Started where there
    is none, it stays as long as this process does."""
    if folder not in _used:
        users = open(folder / USERS_FILE, "a+")  # noqa: SIM115 - closed by the end of the process
        _lock(users, fcntl.LOCK_SH, deadline, "the Ray of this machine ends")
        _used[folder] = users
    address = _kept(folder)
    if address is not None:
        return address
    (folder / ADDRESS_FILE).write_text("")
    with open(folder / LOG_FILE, "w") as log:
        # A session of its own: others may use it when this process has ended.
        keeper = subprocess.Popen(
            [sys.executable, "-P", PROGRAM, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    _keepers.append(keeper)
    while not (address := _kept(folder)):
        if keeper.poll() is not None:
            said = (folder / LOG_FILE).read_text(errors="replace").strip().rpartition("\n")[2]
            raise SamplerUnavailable(
                f"Ray did not start on this machine: {said or 'it ended without a word'} "
                f"({folder / LOG_FILE} has all)"
            )
        if deadline.passed():
            raise SamplerUnavailable(
                f"Ray did not start on this machine within {deadline.timeout_s:.0f} s; "
                f"{folder / LOG_FILE} says why"
            )
        deadline.wait(TRY_AGAIN_S)
    return address


def _kept(folder: Path) -> str | None:
    """The address of the Ray that a keeper has there: empty while it starts; None: none has."""
    with open(folder / ADDRESS_FILE, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            return file.read()
        fcntl.flock(file, fcntl.LOCK_UN)  # As in `one_at_a_time`.
    return None


def _lock(file: IO[str], kind: int, deadline: Deadline, why: str) -> None:
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if deadline.passed():
                raise SamplerUnavailable(
                    f"{file.name} is locked: {why} since {deadline.timeout_s:.0f} s; attach again"
                ) from None
            deadline.log_waiting(lambda: f"{file.name}: {why}")
            deadline.wait(TRY_AGAIN_S)
        else:
            return
