"""Whether two processes mean the same sampler: what it works by, compared key by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from rollstream.folds.state import SamplerState
from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.sampler.configuration import partitions_of, sampler_config
from rollstream.sampler.decide.command import Command, ResultContext
from rollstream.sampler.errors import ConfigurationDiffers

_ROOT = "store.root"
_SECRET = ("password", "secret", "pem", "oauth")  # In names of properties of librdkafka.


_CORRECT_ROOT = (
    "a deployment has one root: correct store.root here; `rollstream topics check` says which one "
    "it is"
)
_SAME = (
    "attach with the same configuration, or end that actor first: one on this machine ends with "
    "the last process that is attached"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agree(Command[None]):
    """Succeeds where the sampler runs with this configuration."""

    claims: ClassVar[bool] = False
    claims_next: ClassVar[bool] = True
    config: RollstreamConfig

    def result(self, state: SamplerState, context: ResultContext) -> None:
        check_same(state.name, context.config, self.config)


def check_same(name: str, running: RollstreamConfig, given: RollstreamConfig) -> None:
    """Returns where both say the same about all that a sampler works by: ``kafka``, ``store.root``,
    its own section, and the partitions of its environments.

    Raises:
        ConfigurationDiffers: with the first key that they differ in, and both values.
        UnknownSampler: one has no such sampler.
    """
    ours, theirs = _settings(name, given), _settings(name, running)
    for key in sorted(ours.keys() | theirs.keys()):
        if ours.get(key) != theirs.get(key):
            shown = not key.startswith("kafka.client.") or not any(map(key.__contains__, _SECRET))
            here, there = (
                (repr(of.get(key)) if shown else "a value that is not shown")
                for of in (ours, theirs)
            )
            raise ConfigurationDiffers(
                f"the actor of sampler {name!r} runs with {key} = {there}, and here it is {here}; "
                f"{_CORRECT_ROOT if key == _ROOT else _SAME}",
                key=key,
                running=theirs.get(key) if shown else None,
                given=ours.get(key) if shown else None,
            )


def _settings(name: str, config: RollstreamConfig) -> dict[str, object]:
    sections = {
        "kafka": config.kafka.model_dump(),
        "store": {"root": config.store.root},
        "environments": {e: {"partitions": n} for e, n in partitions_of(name, config).items()},
        "samplers": {name: sampler_config(name, config).model_dump()},
    }
    return dict(_flat(sections, ""))


def _flat(section: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
