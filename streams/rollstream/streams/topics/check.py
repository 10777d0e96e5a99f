"""Compares the topics of a broker with how they must be."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rollstream.streams.broker import Admin, TopicSpec
from rollstream.streams.errors import TopicMismatch
from rollstream.streams.topics.layout import off_without, used_by_readers_alone

_log = logging.getLogger("rollstream.topics")


class Difference(NamedTuple):
    """One setting of a topic, or the topic itself, that is not as it must be.

    Attributes:
        topic: its name.
        what: ``missing``, ``partitions``, ``root`` (of the store), ``root's owner`` (``topic``
            is then the root), ``records`` (of a log that cannot be read), or the name of a setting.
        wanted: the value that it must have.
        found: the actual value, of a root in words; empty where the topic is missing.
        remedy: what to do, for a person.
        off: of a missing topic without which all else works: what does not; else empty.
    """

    topic: str
    what: str
    wanted: str
    found: str
    remedy: str
    off: str = ""

    def __str__(self) -> str:
        if self.what == "missing":
            until = f"; until then {self.off}" if self.off else ""
            return f"{self.topic} is missing: {self.remedy}{until}"
        if self.what == "records":
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
