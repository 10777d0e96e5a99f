"""Checks what a producer is made with, or raises ``InvalidSettings``. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from rollstream.producers.errors import InvalidSettings
from rollstream.producers.rollouts.fields import POLICY_FIELDS, checked
from rollstream.runtime.addresses import check_bootstrap
from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.rules import whole_number
from rollstream.streams.topics.layout import BadName, check_name_in_topic

_EXAMPLE = "for example RolloutProducer('localhost:9092', …)"


def check_names(stamped: Mapping[str, Any], namespace: Any, generation: Any) -> int:
    """The producer's names can be stamped on rollouts, and name a topic; returns the generation.

    Args:
        stamped: ``environment``, ``replica_id``, ``worker_id`` and ``lineage``.
    """
    try:
        for field, name in stamped.items():
            # Calls may name it, and what is in training the lineage.
            if (field, name) not in (("environment", ""), ("lineage", None)):
                checked(field, name)
    except InvalidRollout as wrong:
        raise InvalidSettings(wrong.field, wrong.value, wrong.remedy, wrong.finding) from None
    _check_in_topic("namespace", namespace)
    if stamped["environment"]:
        _check_in_topic("environment", stamped["environment"])
    return at_least_1("generation", generation)


def check_broker(bootstrap: Any, broker: Any) -> None:
    """Exactly one of them is given, and can be what it should be."""
    if (bootstrap is None) == (broker is None):
        finding = f"is {bootstrap!r} and broker {broker!r}"
        remedy = f"give one of them, {_EXAMPLE}"
        raise InvalidSettings("bootstrap", bootstrap, remedy, finding)
    if bootstrap is None:
        if not callable(getattr(broker, "writer", None)):
            remedy = "give a MemoryBroker or KafkaBroker, or Kafka's host:port as bootstrap"
            raise InvalidSettings("broker", broker, remedy)
        return
    if not isinstance(bootstrap, str) or not bootstrap.strip():
        finding = "is empty" if isinstance(bootstrap, str) else ""
        raise InvalidSettings(
            "bootstrap", bootstrap, f"give Kafka's host:port, {_EXAMPLE}", finding
        )
    try:
        check_bootstrap(bootstrap)
    except ValueError as error:
        raise InvalidSettings("bootstrap", bootstrap, str(error)) from None


def check_policy_request(environment: Any, lineage: Any, newer_than: Any) -> None:
    """The environment can name a topic, and the others can be what ``policy`` takes."""
    if not environment:
        remedy = "name it at the producer or at the call"
        raise InvalidSettings("environment", environment, remedy, "is empty")
    _check_in_topic("environment", environment)
    if lineage is not None and not isinstance(lineage, str):
        raise InvalidSettings("lineage", lineage, "give a string, or None")
    if newer_than is not None and not all(hasattr(newer_than, name) for name in POLICY_FIELDS):
        remedy = "give what producer.policy() returned, or None"
        raise InvalidSettings("newer_than", newer_than, remedy)


def _check_in_topic(field: str, name: Any) -> None:
    """The name can be a part of a topic's name."""
    if not isinstance(name, str):
        raise InvalidSettings(field, name, "give a string")
    try:
        check_name_in_topic(name)
    except BadName as wrong:
        raise InvalidSettings(field, name, wrong.remedy, wrong.finding) from None


def at_least_1(name: str, value: Any) -> int:
    """The whole number, which is 1 or more."""
    try:
        number = whole_number(name, value)
    except InvalidRollout:
        number = 0
    if number < 1:
        raise InvalidSettings(name, value, "give a whole number, 1 or more")
    return number


def check_timeout(timeout_s: Any, *, zero_allowed: bool = False) -> None:
    """A time-out is a finite number of seconds, and not negative."""
    number = isinstance(timeout_s, Real) and not isinstance(timeout_s, bool)
    if number and math.isfinite(timeout_s) and (timeout_s > 0 or (zero_allowed and not timeout_s)):
        return
    bound = "0 or more" if zero_allowed else "more than 0"
    raise InvalidSettings("timeout_s", timeout_s, f"give a number of seconds, {bound}")
