"""A Ray on 127.0.0.1 that lives as long as any process uses it.

All that Rollstream uses of Ray's private API is in this file, since no public one serves:

- ``_node_ip_address`` and ``ENABLE_RAY_CLUSTER``: by its public API Ray listens on every interface.
- ``_system_config``: its workers would give way to every other process, and trainers wait for one.
- ``maybe_enable_token_auth_if_token_available``: a process that names an address does not show the
  token that Ray wrote on this machine, unless the variable for that was set before Ray was loaded.
- ``Node``: by its public API Ray starts three more Python processes, and none serves anybody here.

Run as a program it starts that Ray, writes where it is, and ends it when nobody uses it any more.
It is a program of its own so that no trainer's Ray ends with the process that happened to start it.
It loads Ray alone: it needs little memory.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray
from ray._private import ray_constants
from ray._private.node import Node

try:
    from ray._private.authentication.authentication_token_setup import (
        maybe_enable_token_auth_if_token_available as _enable_token_auth,
    )
except ImportError:  # Before Ray 2.60, which asks for no token unless it is told to.

    def _enable_token_auth(warn_if_disabled: bool = True) -> bool:
        return False


LOOPBACK = "127.0.0.1"
RAY_NAMESPACE = "rollstream"
OBJECT_STORE_BYTES = 256 * 1024 * 1024  # Batches on their way, no more.
PROGRAM = __file__
ADDRESS_FILE = "address"  # Locked while there is such a Ray; holds its address.
USERS_FILE = "users"  # Each process that uses it shares a lock of this.
# They start the HTTP API, the autoscaler, and what sends the workers' logs to drivers.
NOT_NEEDED = ("start_api_server", "start_monitor", "start_log_monitor")
_CLUSTERS_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_ray_log = logging.getLogger(_enable_token_auth.__module__)


def configured_address() -> str | None:
    """The ``RAY_ADDRESS`` of the environment, where it is set."""
    return os.environ.get("RAY_ADDRESS") or None


def allow_get_beside_event_loop() -> None:
    """From now on Ray does not warn of a ``ray.get`` in this actor's process, where threads call it
    and the event loop never does."""
    os.environ.setdefault("RAY_WARN_BLOCKING_GET_INSIDE_ASYNC", "0")


def show_token() -> None:
    """From now on this process shows this user's token to a Ray that it joins, where there is one
    and ``RAY_AUTH_MODE`` is not set.

    The first Ray that a user starts on a machine writes the token: call this when it is up."""
    before = _ray_log.level
    _ray_log.setLevel(logging.ERROR)  # It would warn of this, and tell how to turn it off.
    try:
        _enable_token_auth(warn_if_disabled=False)
    finally:
        _ray_log.setLevel(before)


@contextmanager
def _one_token() -> Iterator[None]:
    """Of two Rays that start at once for a user without a token both have the same one.

    Each would write its own, the later over the earlier, whose Ray nobody could join any more.
    """
    token = Path.home() / ".ray" / "auth_token"
    if token.exists() and token.stat().st_size:
        yield
        return
    token.parent.mkdir(exist_ok=True)
    with open(token.with_name("rollstream.lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def loopback_only() -> Iterator[None]:
    """A Ray started within listens on 127.0.0.1 only; one that does can be joined.

    Ray replaces a loopback address by the machine's own, and listens on every interface, unless it
    takes the machine for one that cannot form clusters. It reads that from this variable: here at
    import, in the processes that it starts later.
    """
    before = os.environ.get(_CLUSTERS_VARIABLE), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[_CLUSTERS_VARIABLE] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before[1]
        if before[0] is None:
            del os.environ[_CLUSTERS_VARIABLE]
        else:
            os.environ[_CLUSTERS_VARIABLE] = before[0]


def _start_only_what_is_needed() -> None:
    """Rays that this process starts from now on take half of the processor time to start."""
    for method in NOT_NEEDED:
        setattr(Node, method, lambda *_, **__: None)


def keep(folder: Path) -> None:
    """Starts a Ray, writes its address, and ends it when nobody shares the users' lock any more.

    The folder has one keeper at a time. The file must be empty.
    """
    _start_only_what_is_needed()
    # The users' lock is freed last: who gets it must not find the address of what has ended.
    with open(folder / USERS_FILE, "a+") as users, open(folder / ADDRESS_FILE, "a+") as written:
        fcntl.flock(written, fcntl.LOCK_EX)  # Who looks for a keeper has it for a moment.
        with loopback_only(), _one_token():
            ray.init(
                address="local",
                namespace=RAY_NAMESPACE,
                num_cpus=1,
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _system_config={"worker_niceness": 0},
                _node_ip_address=LOOPBACK,
            )
        address: str = ray.get_runtime_context().gcs_address
        written.write(address)
        written.flush()
        fcntl.flock(users, fcntl.LOCK_EX)  # Waits for the last user, however it ends.
        ray.shutdown()


if __name__ == "__main__":
    # Ctrl-C in the terminal of the process that started it is meant for that one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep(Path(sys.argv[1]))
