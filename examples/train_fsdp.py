"""Train a small model on several ranks with FSDP: fully_shard, torchrun, and spotburst's ShardedCheckpointer.

    torchrun --nproc-per-node 2 train_fsdp.py --steps 40
    spotburst run --uri file:///tmp/checkpoints --run mine -- torchrun --nproc-per-node 2 train_fsdp.py --steps 40

On several nodes: train_fsdp.sbatch. Without GPUs it runs on the CPU with gloo. What spotburst needs is marked with "spotburst" at the end of the line.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from job_wrapper.checkpoint import ResumableSampler  # spotburst
from job_wrapper.checkpoint.sharded import ShardedCheckpointer  # spotburst

BATCH = 8
"""Samples of a step on all ranks together: it stays the same if the number of ranks changes."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small model on several ranks.")
    parser.add_argument("--steps", type=int, default=40, help="training steps in all (default: %(default)s)")
    parser.add_argument("--step-time", type=float, default=0.0, metavar="SECONDS", help="least time that a step takes")
    parser.add_argument("--lr", type=float, default=0.01, help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where rank 0 writes the final weights")
    return parser.parse_args()


def meet(backend: str) -> None:
    """torchrun tells each rank who it is; where srun starts a task a rank, Slurm does. MASTER_ADDR and MASTER_PORT: see train_fsdp.sbatch."""
    if "RANK" not in os.environ and "SLURM_PROCID" in os.environ:
        os.environ["RANK"], os.environ["WORLD_SIZE"] = os.environ["SLURM_PROCID"], os.environ["SLURM_STEP_NUM_TASKS"]
    dist.init_process_group(backend)


def main() -> None:
    args = parse_arguments()
    gpu = torch.cuda.is_available()
    # NCCL moves the gradients; gloo carries what the ranks tell each other about checkpoints.
    meet("cpu:gloo,cuda:nccl" if gpu else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(1)

    x = torch.randn(200, 16)
    dataset = TensorDataset(x, x.roll(1, dims=1).tanh())
    sampler = ResumableSampler(dataset, seed=1, batch_size=BATCH // ranks, rank=rank, world_size=ranks)  # spotburst
    loader = DataLoader(dataset, batch_sampler=sampler)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 16)).to(device)
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh(device.type, (ranks,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.steps + 1)
    torch.manual_seed(100 + rank)  # each rank drops out other units

    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    config = {"steps": args.steps, "lr": args.lr, "batch": BATCH}
    with ShardedCheckpointer(**state, data=sampler, config=config, total=args.steps) as checkpoint:  # spotburst
        if checkpoint.restored and rank == 0:
            print(f"resumed at step {checkpoint.completed}", flush=True)
        while checkpoint.completed < args.steps:
            for inputs, targets in loader:
                loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                time.sleep(args.step_time)
                if rank == 0:
                    print(f"step {checkpoint.completed + 1} loss {loss.item():.6f}", flush=True)
                checkpoint.step()  # spotburst
                if checkpoint.completed == args.steps:
                    break

    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if args.out and rank == 0:
        torch.save(weights, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
