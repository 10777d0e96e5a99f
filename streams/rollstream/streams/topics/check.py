"""Compares the topics of a broker with how they must be."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rollstream.runtime.deadline import Deadline
from rollstream.streams.broker import Admin, TopicSpec
from rollstream.streams.errors import TopicMismatch
from rollstream.streams.topics.layout import off_without, used_by_readers_alone
from rollstream.streams.topics.specs import IN_SYNC_MIN, REPLICATION

_log = logging.getLogger("rollstream.topics")


class Difference(NamedTuple):
    """One setting of a topic, or the topic itself, that is not as it must be.

    Attributes:
        topic: its name.
        what: ``missing``, ``partitions``, ``root`` (of the store), ``root's owner`` (``topic``
            is then the root), ``records`` (of a log that cannot be read), ``store`` (``topic`` is
            the root, which does not do all that is asked of it), or the name of a setting.
        wanted: the value that it must have.
        found: the actual value, of a root in words; empty where the topic is missing.
        remedy: what to do, for a person.
        off: of a missing topic without which all else works: what does not; else empty.
        warning: whether everything works all the same, as long as no broker stops.
    """

    topic: str
    what: str
    wanted: str
    found: str
    remedy: str
    off: str = ""
    warning: bool = False

    def __str__(self) -> str:
        if self.what == "missing":
            until = f"; until then {self.off}" if self.off else ""
            return f"{self.topic} is missing: {self.remedy}{until}"
        if self.what in ("records", "store"):
            return f"{self.found}; {self.remedy}"
        if self.what == "root":
            if not self.wanted:
                return f"{self.topic} names no root of a store yet; {self.found}: {self.remedy}"
            return f"{self.topic} names root {self.wanted}, but {self.found}: {self.remedy}"
        if self.what == "root's owner":
            return f"{self.topic} belongs to {self.found}, not to {self.wanted}: {self.remedy}"
        return f"{self.topic} has {self.what} {self.found}, not {self.wanted}: {self.remedy}"


def joined(found: Iterable[Difference]) -> list[Difference]:
    """Those that differ in nothing but the topic as one, which names all of its topics. Pure."""
    topics: dict[Difference, list[str]] = {}
    for one in found:
        topics.setdefault(one._replace(topic=""), []).append(one.topic)
    return [one._replace(topic=", ".join(names)) for one, names in topics.items()]


def check_topics(admin: Admin, specs: Sequence[TopicSpec], timeout_s: float) -> list[Difference]:
    """Returns every difference, in the order of ``specs``; empty when there is none.

    Raises:
        BrokerUnavailable, NotAuthorised: the broker's answer, or none in time.
    """
    present = admin.describe([spec.name for spec in specs], timeout_s)
    return [
        difference for spec in specs for difference in differences(spec, present.get(spec.name))
    ]


def check_copies(admin: Admin, specs: Sequence[TopicSpec], timeout_s: float) -> list[Difference]:
    """Returns a warning for each topic whose records do not survive the loss of a broker, or that
    takes none once a broker stops. Topics with the same remedy share a warning. A single broker
    needs none.

    Raises:
        BrokerUnavailable, NotAuthorised: the broker's answer, or none in time.
    """
    deadline = Deadline(timeout_s)
    brokers = admin.brokers(deadline.left_s())
    present = admin.describe([spec.name for spec in specs], deadline.left_s())
    found = [_copies(present[spec.name], brokers) for spec in specs if spec.name in present]
    return joined(one for one in found if one is not None)


def require_topics(admin: Admin, specs: Sequence[TopicSpec], timeout_s: float) -> None:
    """Returns when every topic is as it must be, or is missing and only some function is off
    without it: the log says which. For sealers and samplers: topics of readers are left out.

    Raises:
        TopicMismatch: with every difference and what to do about it.
    """
    used = [spec for spec in specs if not used_by_readers_alone(spec.name)]
    found = check_topics(admin, used, timeout_s)
    if not all(difference.off for difference in found):
        raise TopicMismatch("; ".join(map(str, found)))
    for difference in found:
        _log.warning("%s", difference)


def differences(wanted: TopicSpec, found: TopicSpec | None) -> list[Difference]:
    """Returns the differences of one topic. Pure."""
    name = wanted.name
    if found is None:
        remedy = "run `rollstream topics create`"
        off = off_without(name)
        return [Difference(name, "missing", str(wanted.partitions), "", remedy, off)]
    listed = []
    if found.partitions != wanted.partitions:
        remedy = (
            f"configure {found.partitions} partitions, or set a new kafka.generation or "
            "kafka.namespace and a store.root of its own, and run `rollstream topics create`; "
            "partitions are never added to a live topic"
        )
        listed.append(
            Difference(name, "partitions", str(wanted.partitions), str(found.partitions), remedy)
        )
    for setting, value in wanted.config.items():
        actual = found.config.get(setting, "")
        if actual != value:
            remedy = (
                f"run `kafka-configs.sh --alter --entity-type topics --entity-name {name} "
                f"--add-config {setting}={value}`"
            )
            listed.append(Difference(name, setting, value, actual, remedy))
    return listed


def _copies(found: TopicSpec, brokers: int) -> Difference | None:
    """Returns the warning about how a topic is replicated; None: there is none. Pure."""
    copies, in_sync = found.replication, int(found.config.get(_IN_SYNC, "1"))
    if copies == 1 and brokers >= REPLICATION:
        what, wanted, actual = "replication", REPLICATION, copies
        why, remedy = "the loss of one broker loses records", _REPLICATE
    elif copies >= REPLICATION and in_sync < IN_SYNC_MIN:
        what, wanted, actual = _IN_SYNC, IN_SYNC_MIN, in_sync
        why, remedy = "an acknowledged record may be on one broker alone", _SET_IN_SYNC
    elif 1 < copies <= in_sync:
        what, wanted, actual = _IN_SYNC, copies - 1, in_sync
        why, remedy = "writes stop once one broker stops", _SET_IN_SYNC
    else:
        return None
    told = f"{why}; {remedy.format(what=what, wanted=wanted)}"
    return Difference(found.name, what, str(wanted), str(actual), told, warning=True)


_IN_SYNC = "min.insync.replicas"
_SET_IN_SYNC = (
    "run `kafka-configs.sh --alter --entity-type topics --entity-name TOPIC --add-config "
    "{what}={wanted}`"
)
_REPLICATE = (
    "assign {wanted} replicas to each partition with `kafka-reassign-partitions.sh`, and set "
    "default.replication.factor={wanted} on the brokers"
)
