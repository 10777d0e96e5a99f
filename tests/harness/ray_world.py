"""The sampler over Ray: a real actor, on a real broker and a real disk."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import ray

from harness.sampler_worlds import ENVIRONMENTS, LocalWorld, config_of, new_name
from rollstream.sampler import SamplerApi, SamplerClient
from rollstream.sampler.actor.loopback_ray import RAY_NAMESPACE
from rollstream.sampler.api.client import actor_name
from rollstream.store.local import LocalBlobs
from rollstream.streams.kafka import KafkaBroker


class RayWorld(LocalWorld):
    """``open`` makes clients of one actor; a restart is a kill -9 of its process."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        config = config_of(folder.as_uri(), new_name(), bootstrap=bootstrap)
        super().__init__(KafkaBroker(bootstrap), LocalBlobs(folder), config)
        self._folder = folder
        self._clients: list[SamplerClient] = []

    def open(self) -> SamplerApi:
        self._clients.append(SamplerClient.attach(self.name, config=self.config))
        return self._clients[-1]

    def config_file(self) -> Path:
        """The configuration as another process reads it."""
        kafka, store, sampler = self.config.kafka, self.config.store, self.config.samplers
        lines = [
            f'[kafka]\nbootstrap = "{kafka.bootstrap}"\nnamespace = "{kafka.namespace}"',
            f'[store]\nroot = "{store.root}"',
            *(f"[environments.{e}]\npartitions = {n}" for e, n in ENVIRONMENTS.items()),
            f"[samplers.{self.name}]\nenvironments = {list(sampler[self.name].environments)}",
        ]
        file = self._folder / "rollstream.toml"
        file.write_text("\n".join(lines))
        return file

    def restart(self) -> None:
        os.kill(self._clients[-1].stats().pid, signal.SIGKILL)

    def close(self) -> None:
        if ray.is_initialized():  # Or Ray would start one of its own here, to look for the actor.
            with contextlib.suppress(ValueError):  # It never was, or has left by itself.
                ray.kill(ray.get_actor(actor_name(self.name, self.config), namespace=RAY_NAMESPACE))
        super().close()
