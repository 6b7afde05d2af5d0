"""Train a small language model with transformers' Trainer and spotburst's callback.

    python train_hf.py
    spotburst run --uri file:///tmp/checkpoints --run mine -- python train_hf.py

What spotburst needs is marked with "spotburst" at the end of the line.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

from job_wrapper.checkpoint.hf import SpotburstCallback  # spotburst

VOCABULARY, LENGTH = 32, 16


class Pace(TrainerCallback):
    """Tells of each step, and makes it take a while."""

    def __init__(self, step_time: float) -> None:
        self.step_time = step_time

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(self.step_time)
        print(f"step {state.global_step}", flush=True)


def words(samples: int) -> list[dict[str, torch.Tensor]]:
    """Words of 3 to 6 letters, repeated."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    for _ in range(samples):
        size = int(torch.randint(3, 7, (), generator=generator))
        word = torch.randint(0, VOCABULARY, (size,), generator=generator)
        rows.append(word[torch.arange(LENGTH) % size])
    return [{"input_ids": row, "labels": row} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small language model with transformers.")
    parser.add_argument("--epochs", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument("--step-time", type=float, default=0.0, metavar="SECONDS", help="least time that a step takes")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the final weights are written")
    args = parser.parse_args()
    set_seed(1)

    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
    )
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        num_train_epochs=args.epochs,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=0.005,
        warmup_steps=4,
        eval_strategy="epoch",
        logging_steps=5,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=1,
    )
    spotburst = SpotburstCallback(config={"epochs": args.epochs})  # spotburst
    trainer = Trainer(
        model, arguments, train_dataset=words(50), eval_dataset=words(8), callbacks=[Pace(args.step_time), spotburst]
    )
    trainer.train(resume_from_checkpoint=spotburst.attach(trainer))  # spotburst
    if args.out:
        torch.save(model.state_dict(), args.out)


if __name__ == "__main__":
    main()
