"""Train a small transformer on made-up text: the example that spotburst's demo runs, and that runs as it is on a laptop.

    python train.py --steps 200
    spotburst run --uri file:///tmp/checkpoints --run mine -- python train.py --steps 200

Each sample is a short word repeated with a rule, so that there is something to learn. Training is deterministic: however often it
is stopped and resumed, the weights, the optimizer's state and the order of samples come out the same to the last bit.
What spotburst needs is marked with "spotburst" at the end of the line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from job_wrapper.checkpoint import Checkpointer, ResumableSampler  # spotburst

VOCABULARY = 32
LENGTH = 32


class Words(Dataset):
    """Sample n is a word of 3 to 6 letters, repeated, each time shifted by one letter of the alphabet."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        size = int(torch.randint(3, 7, (), generator=generator))
        word = torch.randint(0, VOCABULARY, (size,), generator=generator)
        place = torch.arange(LENGTH + 1)
        return index, (word[place % size] + place // size) % VOCABULARY


class Transformer(nn.Module):
    """A decoder of the usual kind, with tied embeddings."""

    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        nn.init.normal_(self.embedding.weight, std=0.05)
        self.position = nn.Parameter(torch.randn(LENGTH, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.output = nn.Linear(width, VOCABULARY, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens) + self.position
        return self.output(self.layers(hidden, mask=self.mask, is_causal=True))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small transformer on made-up text.")
    parser.add_argument("--steps", type=int, default=200, help="training steps in all (default: %(default)s)")
    parser.add_argument(
        "--step-time", type=float, default=0.0, metavar="SECONDS", help="shortest time that a step takes"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the final state and the order of samples")
    parser.add_argument("--samples", type=int, default=1000, help="samples in the data set (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=16, help="(default: %(default)s)")
    parser.add_argument("--width", type=int, default=64, help="width of the model (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--lr", type=float, default=3e-3, help="highest learning rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="processes that load data (default: %(default)s)")
    parser.add_argument("--log-every", type=int, default=20, metavar="STEPS", help="(default: %(default)s)")
    return parser.parse_args()


def main() -> int:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)

    dataset = Words(args.samples)
    sampler = ResumableSampler(dataset, seed=args.seed, batch_size=args.batch_size)  # spotburst
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=args.workers)
    model = Transformer(args.width, args.layers, dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.steps + 1)
    seen = torch.full((args.steps, args.batch_size), -1, dtype=torch.int32)  # the samples of each step
    # Only what decides the result: where it is written, or how fast it goes, may change between two attempts.
    config = {k: v for k, v in vars(args).items() if k not in ("step_time", "out", "workers", "log_every")}

    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "seen": seen}
    with Checkpointer(**state, data=sampler, config=config, total=args.steps) as checkpoint:  # spotburst
        if checkpoint.restored:
            print(f"resumed at step {checkpoint.completed}", flush=True)
        model.train()
        while checkpoint.completed < args.steps:
            for ids, tokens in loader:
                began = time.monotonic()
                logits = model(tokens[:, :-1])
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                seen[checkpoint.completed, : len(ids)] = ids.int()
                time.sleep(max(0.0, args.step_time - (time.monotonic() - began)))
                step = checkpoint.completed + 1
                if step % args.log_every == 0 or step == args.steps:
                    print(f"step {step} loss {loss.item():.6f}", flush=True)
                    checkpoint.log(loss=loss.item())  # spotburst
                checkpoint.step()  # spotburst
                if checkpoint.completed == args.steps:
                    break

    if args.out:
        write_results(args.out, model, optimizer, seen)
    print(f"done after {args.steps} steps", flush=True)
    return 0


def write_results(out: Path, model: nn.Module, optimizer: torch.optim.Optimizer, seen: torch.Tensor) -> None:
    """``final.pt`` (weights and optimizer state) and ``samples.jsonl`` (one line a step)."""
    out.mkdir(parents=True, exist_ok=True)
    final, part = out / "final.pt", out / "final.pt.part"
    with part.open("wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    part.replace(final)
    samples, part = out / "samples.jsonl", out / "samples.jsonl.part"
    with part.open("w") as file:
        for step, row in enumerate(seen.tolist(), start=1):
            file.write(json.dumps({"step": step, "samples": [i for i in row if i >= 0]}) + "\n")
    part.replace(samples)


if __name__ == "__main__":
    sys.exit(main())
