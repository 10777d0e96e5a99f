"""A rank of the trainer, as a process: batches in, GRPO steps, weights out."""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
from pathlib import Path

import torch

from examples.grpo_torch import settings
from examples.grpo_torch.checkpoint import load_checkpoint, save_checkpoint
from examples.grpo_torch.errors import PEER_LOST, PeerLost
from examples.grpo_torch.loss import grpo_loss
from examples.grpo_torch.model import device_of, new_model, save_weights
from examples.grpo_torch.peers import Peers
from examples.grpo_torch.trained import Trained, record
from examples.grpo_torch.words import PAD
from rollstream.sampler import Batch, Examples, Packs, SamplerClient, plan_packs


def train(args: argparse.Namespace, sampler: SamplerClient, peers: Peers) -> None:
    """Steps up to ``args.steps``, from the checkpoint in ``args.folder`` where there is one."""
    folder, rank = args.folder, args.rank
    model = new_model(args.seed).to(device_of(rank))
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.LEARNING_RATE, betas=(0.9, 0.99))
    saved = load_checkpoint(folder / "checkpoint.pt", model, optimizer)

    def publish(step: int) -> None:
        path = save_weights(model, folder / "weights" / f"step-{step}.safetensors")
        last = {"last": step == args.steps}
        sampler.publish_policy(step, policy_version=f"step-{step}", weights=path, metadata=last)

    if rank == 0:
        step = peers.step_of_rank_0(sampler.resume(saved))
        publish(step)
    else:
        step = peers.step_of_rank_0(-1)
    while step < args.steps:
        batch = sampler.next_batch(
            step, num_groups=settings.BATCH_GROUPS, timeout_s=settings.BATCH_TIMEOUT_S
        )
        # Every rank computes the same plan from the same batch, and fills its own packs alone.
        examples = Examples.of(batch, settings.ADVANTAGE)
        plan = plan_packs(examples.lengths, settings.PACK_LENGTH, ranks=settings.RANKS)
        packs = Packs.of(examples, plan, rank=rank, pad_id=PAD)
        tensors = {k: torch.from_numpy(v).to(model.device) for k, v in packs.arrays().items()}
        loss = grpo_loss(model, tensors, tokens=int(examples.loss_mask.sum()))
        optimizer.zero_grad()
        loss.backward()
        if step == args.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        peers.sum_gradients(model, step)
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.GRADIENT_NORM_MAX)
        optimizer.step()
        if rank == 0:
            sampler.ack(batch)
            publish(step + 1)
            if (step + 1) % settings.CHECKPOINT_EVERY == 0 or step + 1 == args.steps:
                save_checkpoint(folder / "checkpoint.pt", step, model, optimizer)
                sampler.checkpointed(step)
        record(folder / f"rank-{rank}.jsonl", _trained(sampler, batch, model, plan.metrics()))
        step += 1


def _trained(
    sampler: SamplerClient, batch: Batch, model: torch.nn.Module, packed: dict[str, float]
) -> Trained:
    weights = hashlib.sha256()
    for parameter in model.parameters():
        weights.update(parameter.detach().cpu().numpy().tobytes())
    return Trained(
        step=batch.step,
        epoch=sampler.trainer_epoch or 0,
        digest=batch.digest.hex(),
        weights=weights.hexdigest(),
        reward=float(batch.rewards.mean()),
        lag=batch.metrics()["lag/mean"],
        fill=packed["packs/fill"],
    )


def main() -> int:
    """The process: ``python -m examples.grpo_torch.rank --config … --folder … --rank …``.

    Returns:
        The exit code: 0 when every step was taken, 75 when another rank was lost.
    """
    parser = argparse.ArgumentParser()
    for name in ("config", "folder", "meeting-point"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("rank", "steps", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--die-at", type=int, help="the step in whose middle this one kills itself")
    args = parser.parse_args()
    try:
        with (
            Peers(args.rank, settings.RANKS, args.meeting_point, settings.PEER_TIMEOUT_S) as peers,
            SamplerClient.attach(settings.SAMPLER, config=args.config) as sampler,
        ):
            train(args, sampler, peers)
    except PeerLost as error:
        sys.stderr.write(f"grpo: {error}\n")
        return PEER_LOST
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
