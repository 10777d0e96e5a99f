"""Checks what a producer is made with, or raises ``InvalidSettings``. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from rollstream.producers.errors import InvalidSettings
from rollstream.producers.rollouts.fields import POLICY_FIELDS, checked
from rollstream.runtime.addresses import check_bootstrap
from rollstream.schemas.errors import InvalidRollout, shown
from rollstream.schemas.rules import whole_number
from rollstream.streams.topics.layout import BadName, check_name_in_topic


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
        raise InvalidSettings(str(wrong)) from None
    topic_names = {"namespace": namespace, "environment": stamped["environment"]}
    for field, name in topic_names.items():
        if not isinstance(name, str):
            raise InvalidSettings(f"{field} is {name!r}; give a string")
        if field == "environment" and not name:
            continue  # Calls name it.
        try:
            check_name_in_topic(name)
        except BadName as wrong:
            raise InvalidSettings(f"{field} {wrong}") from None
    return at_least_1("generation", generation)


def check_broker(bootstrap: Any, broker: Any) -> None:
    """Exactly one of them is given, and can be what it should be."""
    if (bootstrap is None) == (broker is None):
        raise InvalidSettings(
            f"bootstrap is {bootstrap!r} and broker {broker!r}; "
            "give one of them, for example RolloutProducer('localhost:9092', …)"
        )
    if bootstrap is None:
        if not callable(getattr(broker, "writer", None)):
            raise InvalidSettings(
                f"broker is {broker!r}; give a MemoryBroker or KafkaBroker, or Kafka's host:port "
                "as bootstrap"
            )
        return
    if not isinstance(bootstrap, str) or not bootstrap.strip():
        found = "empty" if isinstance(bootstrap, str) else repr(bootstrap)
        raise InvalidSettings(
            f"bootstrap is {found}; give Kafka's host:port, for example "
            "RolloutProducer('localhost:9092', …)"
        )
    try:
        check_bootstrap(bootstrap)
    except ValueError as error:
        raise InvalidSettings(f"bootstrap: {error}") from None


def check_policy_request(environment: Any, lineage: Any, newer_than: Any) -> None:
    """The environment can name a topic, and the others can be what ``policy`` takes."""
    if not environment:
        raise InvalidSettings("environment is empty; name it at the producer or at the call")
    if not isinstance(environment, str):
        raise InvalidSettings(f"environment is {environment!r}; give a string")
    try:
        check_name_in_topic(environment)
    except BadName as wrong:
        raise InvalidSettings(f"environment {wrong}") from None
    if lineage is not None and not isinstance(lineage, str):
        raise InvalidSettings(f"lineage is {lineage!r}; give a string, or None")
    if newer_than is not None and not all(hasattr(newer_than, name) for name in POLICY_FIELDS):
        raise InvalidSettings(
            f"newer_than is {newer_than!r:.200}; give what producer.policy() returned, or None"
        )


def at_least_1(name: str, value: Any) -> int:
    """The whole number, which is 1 or more."""
    try:
        number = whole_number(name, value)
    except InvalidRollout:
        number = 0
    if number < 1:
        raise InvalidSettings(f"{name} is {shown(value)}; give a whole number, 1 or more")
    return number


def check_timeout(timeout_s: Any, *, zero_allowed: bool = False) -> None:
    """A time-out is a finite number of seconds, and not negative."""
    number = isinstance(timeout_s, Real) and not isinstance(timeout_s, bool)
    if number and math.isfinite(timeout_s) and (timeout_s > 0 or (zero_allowed and not timeout_s)):
        return
    bound = "0 or more" if zero_allowed else "more than 0"
    raise InvalidSettings(f"timeout_s is {timeout_s!r}; give a number of seconds, {bound}")
