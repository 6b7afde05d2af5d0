"""For Lightning's Trainer: its whole state into the run's checkpoints, and on from the exact batch.

::

    from job_wrapper.checkpoint.lightning import SpotburstCallback

    spotburst = SpotburstCallback()
    trainer = Trainer(…, callbacks=[spotburst])
    trainer.fit(module, loader, ckpt_path=spotburst.attach(trainer, loader))

Saved is what Lightning's own checkpoints hold (weights, optimizers, schedulers, loops, callbacks, precision plugin, data module),
the random generators, and the position in the data: give the loader a `ResumableSampler`
(``DataLoader(dataset, batch_sampler=ResumableSampler(…))``), and to ``attach`` that loader; Lightning finds the position of a loader with
``state_dict`` by itself, and of any other it begins the epoch anew.
"""

from __future__ import annotations

import logging
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.io import CheckpointIO

from job_wrapper import program
from job_wrapper.checkpoint import data as placing
from job_wrapper.checkpoint.checkpointer import Checkpointer
from job_wrapper.errors import UsageError

log = logging.getLogger("spotburst")

PATH = "spotburst"
"""Stands for the restored checkpoint in ``fit(ckpt_path=…)``."""


class SpotburstCallback(Callback):
    """Saves between batches when asked. Options are those of `Checkpointer`.

    Elsewhere than under ``spotburst run``, and without ``uri`` and ``run``, it does nothing. Raises as `Checkpointer` does: from
    ``attach`` what a restore raises, from ``fit`` ``SystemExit`` when the node goes away, and ``CheckpointFailed``.
    """

    def __init__(self, **options: Any) -> None:
        self.checkpoint: Checkpointer | None = None
        """After ``attach``."""
        self._options = options
        self._batches = 0
        self._resumed = False
        self._placed = False

    def attach(self, trainer: Trainer, data: Any = None) -> str | None:
        """Restore the newest checkpoint. What it returns goes to ``trainer.fit(ckpt_path=…)``: None for a new run.

        ``data`` as for `Checkpointer`. Call it once, before ``fit``. One process a job.
        """
        if self.checkpoint is not None:
            raise UsageError("SpotburstCallback: already attached; make one for each Trainer")
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        if self not in callbacks:
            raise UsageError("SpotburstCallback: give it to the Trainer first: Trainer(callbacks=[spotburst])")
        callbacks.remove(self)
        callbacks.append(self)  # what other callbacks do after a batch is in its checkpoint
        state = _State(trainer)
        self._placed = data is not None
        self.checkpoint = Checkpointer(trainer=state, data=data if self._placed else False, **self._options)
        environment: Any = trainer._accelerator_connector.cluster_environment
        if self.checkpoint.active and hasattr(environment, "auto_requeue"):
            environment.auto_requeue = False  # Lightning would save and requeue a second time at Slurm's signal
        if not self.checkpoint.restored:
            return None
        self._resumed = True
        trainer.strategy.checkpoint_io = _Restored(state, trainer.strategy.checkpoint_io)
        return PATH

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """All else is restored now."""
        if self.checkpoint is None:
            return
        if self._resumed:
            combined: Any = trainer.fit_loop._combined_loader
            for loader in [] if combined is None else combined.flattened:
                if placing.has_state(loader):
                    loader.state_dict()  # torchdata's makes its iterator now, and draws what it draws
                elif not self._placed:
                    log.warning(placing.WITHOUT_DATA, self.checkpoint.completed)
        self.checkpoint.restore_rng()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The save boundary, unless gradients are still being summed (they are in no checkpoint), or the epoch ends now."""
        self._batches += 1
        self._resumed = False
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # 0: never
        if self.checkpoint is not None and self.checkpoint.active and every and not trainer.global_step % every:
            _tell(trainer, outputs)
        loop = trainer.fit_loop
        if not loop._should_accumulate() and not loop.epoch_loop._num_ready_batches_reached():
            self._step()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The save boundary of the last epoch's last batch: all that is done at an epoch's end is done."""
        if self._resumed:
            # A checkpoint made here. Lightning would take the old epoch's end for the new one's; this epoch begins as any other.
            trainer.fit_loop.epoch_loop.restarting = False
            trainer.fit_loop._resuming_from_checkpoint = False
            sampler = self.checkpoint._sampler if self.checkpoint is not None else None
            if sampler is not None:
                sampler.set_epoch(sampler.consumed // sampler.batches)
            self._resumed = False
        self._step()

    def _step(self) -> None:
        if self.checkpoint is not None and self._batches:
            batches, self._batches = self._batches, 0
            self.checkpoint.step(batches)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The final state."""
        self._step()
        if self.checkpoint is not None:
            self.checkpoint.close()


def _tell(trainer: Trainer, outputs: Any) -> None:
    """The module's own values, and its loss, for the curves of ``spotburst report``."""
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
    values = {"loss": loss, **trainer.callback_metrics}
    program.log(trainer.global_step, **{k: float(v) for k, v in values.items() if v is not None})


class _State:
    """The trainer's state as one thing with a state_dict. What is loaded waits until Lightning asks for it."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.saved: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        if self.trainer.lightning_module is None:
            return {}  # not fitting yet
        tree: dict[str, Any] = self.trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        return tree

    def load_state_dict(self, tree: dict[str, Any]) -> None:
        if "pytorch-lightning_version" not in tree:
            raise ValueError("it was not made by Lightning")
        self.saved = tree


class _Restored(CheckpointIO):
    """Gives out the restored state under ``PATH``; all else is the other's."""

    def __init__(self, state: _State, other: CheckpointIO) -> None:
        self.state, self.other = state, other

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        self.other.save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        if str(path) == PATH:
            saved, self.state.saved = self.state.saved, {}
            return saved
        loaded: dict[str, Any] = self.other.load_checkpoint(path, map_location, weights_only)
        return loaded

    def remove_checkpoint(self, path: Any) -> None:
        self.other.remove_checkpoint(path)
