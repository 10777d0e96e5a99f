"""A data-parallel rank that trains on ready packs, as a process: ``python -m
harness.ready_packs_rank``. Needs PyTorch."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from examples.grpo_torch.errors import PEER_LOST, PeerLost
from examples.grpo_torch.peers import Peers
from rollstream.runtime.config.ready_packs import ReadyPacksConfig
from rollstream.sampler import ChannelA, ChannelB, Packs, ReadyPacks, SamplerClient
from rollstream.schemas.digest import combined

PEER_TIMEOUT_S = 30.0
WINDOW = 2  # Micro-batches of a step on channel B.
SETTINGS = ReadyPacksConfig.model_validate(
    {
        "schedule": {"b_ratio": 0.5},
        "pack_length": 16,
        "num_groups": 12,
        "gradient_accumulation_steps": WINDOW,
        "queue_limit": 8,
        "prefetch_target_packs": 4,
        "version_window": 8,
    }
)


class Model:
    """A layer that counts its forward passes."""

    def __init__(self) -> None:
        self.layer = torch.nn.Linear(SETTINGS.pack_length, 1)
        self.forwards = 0
        self.layer.register_forward_hook(self._count)

    def _count(self, *_: object) -> None:
        self.forwards += 1

    def learn(self, inputs: Any) -> None:
        """Adds to its gradients."""
        self.layer(inputs).sum().backward()


def decision(decided: ChannelA | ChannelB) -> dict[str, Any]:
    """What all ranks have in common of a step, and this rank's packs by their digest."""
    common = {
        "step": decided.step,
        "channel": type(decided).__name__,
        "batch": decided.batch.digest.hex(),
        "metrics": dict(decided.metrics),
    }
    if isinstance(decided, ChannelA):
        return common
    return common | {"versions": decided.versions, "packs": digest(decided.packs)}


def digest(packs: Packs) -> str:
    arrays = sorted(packs.arrays().items())
    return combined([part for name, a in arrays for part in (name.encode(), a.tobytes())]).hex()


def train(args: argparse.Namespace, sampler: SamplerClient, peers: Peers) -> None:
    """Steps up to ``args.steps``; each is on record before its gradients are summed."""
    ready = ReadyPacks(sampler, SETTINGS, dp_rank=args.rank, dp_size=args.ranks)
    first = sampler.resume(args.saved, later="replay") if args.rank == 0 else -1
    model = Model()
    with args.record.open("a") as record:
        for step in range(peers.step_of_rank_0(first), args.steps):
            decided = ready.next_step(step, timeout_s=PEER_TIMEOUT_S)
            before = model.forwards
            if isinstance(decided, ChannelB):
                for index, tokens in enumerate(decided.packs.tokens):
                    if step == args.die_at and index == 1:
                        os.kill(os.getpid(), signal.SIGKILL)
                    model.learn(torch.from_numpy(tokens).float())
            else:
                model.learn(torch.ones(SETTINGS.pack_length))
            line = decision(decided) | {"forwards": model.forwards - before}
            record.write(json.dumps(line) + "\n")
            record.flush()
            peers.sum_gradients(model.layer, step)
            if args.rank == 0:
                ready.ack(decided)
                if step == args.save_at:
                    sampler.checkpointed(step)


def main() -> int:
    """Returns the exit code: 75 when another rank was lost."""
    parser = argparse.ArgumentParser()
    for name in ("config", "meeting-point", "record"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("rank", "ranks", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("saved", "save-at", "die-at"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--sampler", required=True)
    args = parser.parse_args()
    try:
        with (
            Peers(args.rank, args.ranks, args.meeting_point, PEER_TIMEOUT_S) as peers,
            SamplerClient.attach(args.sampler, config=args.config) as sampler,
        ):
            train(args, sampler, peers)
    except PeerLost as error:
        sys.stderr.write(f"{error}\n")
        return PEER_LOST
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
