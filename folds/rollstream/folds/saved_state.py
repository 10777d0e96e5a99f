"""A sampler's state as bytes, with how far its decision log was folded. Pure.

Bytes: a line of JSON that says whose state it is, then the state's objects. Nothing is assumed
about where they come from: they are checked before anything is made of them, and only objects that
such a state consists of are made.
"""

from __future__ import annotations

import copy
import json
import pickle
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from io import BytesIO
from typing import Any

import xxhash

import rollstream
from rollstream.folds.state import SamplerState
from rollstream.schemas import codec
from rollstream.schemas.events import Claimed
from rollstream.streams.owned.fold import FoldPlace, SavedFold

FORMAT = 1
# Of the fold: with another one no state that was saved is gone on from, and a start folds all logs.
# Count it up where a fold comes to something else, or a state holds something else or in another
# way. A test pins the sources for which it stands (tests/harness/fold_version.py).
FOLD_VERSION = 4
_OWN = ("rollstream.schemas.", "rollstream.folds.", "rollstream.streams.folds.")
_FOREIGN = frozenset(
    {
        ("builtins", "set"),
        ("builtins", "frozenset"),
        ("collections", "Counter"),
        ("collections", "OrderedDict"),
        ("collections", "defaultdict"),
        ("builtins", "dict"),
        ("array", "_array_reconstructor"),
        ("array", "array"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("numpy._core.numeric", "_frombuffer"),
        ("numpy.core.numeric", "_frombuffer"),
    }
)


class UnusableState(ValueError):
    """The bytes hold no state that can be gone on from; the message says why."""


def to_pieces(saved: SavedFold[SamplerState], identity: Mapping[str, str]) -> Iterator[bytes]:
    """The state; what ``from_bytes`` takes, joined, with the same identity.

    Args:
        identity: what sets the sampler, its log and its root apart from every other.
    """
    place = saved.place
    parts = _Parts()
    pickle.Pickler(parts, protocol=5).dump(saved.fold)
    head = {
        "format": FORMAT,
        "software": rollstream.__version__,
        "fold": FOLD_VERSION,
        "identity": dict(identity),
        "next_offset": place.next_offset,
        "record": place.record.hex(),
        "claim": [place.claim[0], codec.encode(place.claim[1]).hex()],
        "claims": place.claims,
    }
    line = json.dumps(head).encode()
    yield b"\n".join((_checksum([line, *parts.written]), line, b""))
    yield from parts.written


def from_bytes(
    data: bytes, identity: Mapping[str, str], like: SamplerState
) -> SavedFold[SamplerState]:
    """The state that ``to_pieces`` was given.

    Args:
        like: an empty state of the same name, settings and logs; others may be the settings that a
            fold does not look at, and the state has those of ``like``.

    Raises:
        UnusableState: they are damaged, another sampler's, log's or root's, of other settings or
            logs, or another version of the fold wrote them.
    """
    file = BytesIO(data)  # Which copies only what is read.
    checksum, line = file.readline().rstrip(b"\n"), file.readline().rstrip(b"\n")
    if _checksum([line, memoryview(data)[file.tell() :]]) != checksum:
        raise UnusableState("it is damaged")
    head = json.loads(line)
    if (head.get("format"), head.get("fold")) != (FORMAT, FOLD_VERSION):
        raise UnusableState(f"another version of the fold wrote it ({head.get('software')})")
    if head["identity"] != dict(identity):
        raise UnusableState(f"it is of {head['identity']}, not of {dict(identity)}")
    try:
        state = _Unpickler(file).load()
    except UnusableState:
        raise
    except Exception as error:  # By a change of a class for which the version was not counted up.
        raise UnusableState(f"it cannot be made again: {error!r}") from error
    if not isinstance(state, SamplerState) or not state.is_like(like):
        raise UnusableState("it is of other settings or seal logs")
    state.choosing = like.choosing
    claimed = codec.decode_as(Claimed, bytes.fromhex(head["claim"][1]))
    place = FoldPlace(
        head["next_offset"],
        bytes.fromhex(head["record"]),
        (head["claim"][0], claimed),
        tuple(head["claims"]),
    )
    return SavedFold(state, place)


def _checksum(parts: Iterable[bytes | memoryview]) -> bytes:
    hashed = xxhash.xxh3_128()
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest().encode()


def copied(value: Any, seen: dict[int, Any] | None = None) -> Any:
    """A copy of a state that changes no more with it; what never changes is shared.

    Containers hold values of one kind: the first one tells. Tuples that change are named ones. An
    object's own ``__copy__`` says how it is copied; of large ones that is quicker.
    """
    seen = {} if seen is None else seen
    if id(value) in seen or not _changes(value):
        return seen.get(id(value), value)
    if isinstance(value, dict | list | set | array):
        seen[id(value)] = copy.copy(value)
        if isinstance(value, dict) and _changes(next(iter(value.values()), None)):
            seen[id(value)].update({name: copied(each, seen) for name, each in value.items()})
        elif isinstance(value, list) and _changes(next(iter(value), None)):
            seen[id(value)][:] = [copied(each, seen) for each in value]
    elif isinstance(value, tuple):
        seen[id(value)] = type(value)(*(copied(each, seen) for each in value))
    elif is_dataclass(value) or hasattr(value, "__copy__"):
        seen[id(value)] = copy.copy(value)
    else:
        seen[id(value)] = object.__new__(type(value))
        # An object's attributes differ in kind.
        vars(seen[id(value)]).update({n: copied(each, seen) for n, each in vars(value).items()})
    return seen[id(value)]


def _changes(value: Any) -> bool:
    """Whether an object of a state ever changes: frozen dataclasses, texts and the like do not."""
    if isinstance(value, tuple):
        return any(map(_changes, value))
    if isinstance(value, dict | list | set | array):
        return True
    if isinstance(value, Enum):
        return False
    if is_dataclass(value):
        frozen: bool = getattr(type(value), "__dataclass_params__").frozen  # noqa: B009
        return not frozen
    return hasattr(value, "__dict__") and type(value).__module__.startswith(_OWN)


class _Parts:
    """Takes what is pickled in pieces, some kilobytes each: between two, other threads go on."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, part: bytes | memoryview) -> None:
        self.written.append(bytes(part))


class _Unpickler(pickle.Unpickler):
    """Makes only what a state consists of."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _FOREIGN:
            return super().find_class(module, name)
        if module.startswith(_OWN):
            found = super().find_class(module, name)
            if isinstance(found, type):
                return found
        raise UnusableState(f"it holds {module}.{name}, which no state does")
