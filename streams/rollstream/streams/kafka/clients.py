"""The librdkafka clients of this process, which a process that is forked off it never frees.

Freeing one joins its threads. A forked child has the client's memory and none of its threads, so
it would hang, or abort, as soon as the last name of its parent's client is given to another.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any, TypeVar

import confluent_kafka

_ALIVE: weakref.WeakSet[Any] = weakref.WeakSet()
T = TypeVar("T")


class Producer(confluent_kafka.Producer):
    """One that takes weak references, as ``AdminClient`` does."""


class Consumer(confluent_kafka.Consumer):
    """The same."""


def kept_in_children(client: T) -> T:
    """Returns the client, which lives for ever in each child that is forked off while it lives
    here."""
    _ALIVE.add(client)
    return client


def _keep_those_of_the_parent() -> None:
    """No name refers to them for ever: at its end the interpreter takes all names away."""
    for client in list(_ALIVE):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
    _ALIVE.clear()


os.register_at_fork(after_in_child=_keep_those_of_the_parent)
