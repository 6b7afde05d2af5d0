"""For transformers' Trainer: its whole state into the run's checkpoints, and on from the exact step.

::

    from job_wrapper.checkpoint.hf import SpotburstCallback

    spotburst = SpotburstCallback()
    trainer = Trainer(model, args, train_dataset=…, callbacks=[spotburst])
    trainer.train(resume_from_checkpoint=spotburst.attach(trainer))

Saved are weights, optimizer, scheduler, AMP scaler, the trainer's state (log, best metric, stateful callbacks), the loss summed
since the last log, and the random generators. Trainer's own checkpoints in ``output_dir`` are not needed (``save_strategy="no"``).

What a dataset draws from the global random generators while it loads is not repeated after a resume: Trainer reads ahead.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from job_wrapper import program
from job_wrapper.checkpoint.checkpointer import Checkpointer
from job_wrapper.checkpoint.members import member
from job_wrapper.errors import UsageError

_RUNNING = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")
"""What Trainer keeps in itself between two steps, and its own checkpoints do not hold."""
_CURVES = ("loss", "eval_loss", "learning_rate", "grad_norm")
"""What of its log is told to the wrapper."""


class SpotburstCallback(TrainerCallback):
    """Saves between steps when asked, after the step was logged and evaluated. Options are those of `Checkpointer`.

    Elsewhere than under ``spotburst run``, and without ``uri`` and ``run``, it does nothing. Raises as `Checkpointer` does: from
    ``attach`` what a restore raises, from ``train`` ``SystemExit`` when the node goes away, and ``CheckpointFailed``.
    """

    def __init__(self, **options: Any) -> None:
        self.checkpoint: Checkpointer | None = None
        """After ``attach``."""
        self._options = options
        self._parts: _Parts | None = None
        self._folder = ""
        self._epoch_ended = False

    def attach(self, trainer: Any) -> str | None:
        """Restore the newest checkpoint. What it returns goes to ``trainer.train(resume_from_checkpoint=…)``: None for a new run.

        Call it once, before ``train``, when the trainer has its model. One process a job.
        """
        if self.checkpoint is not None:
            raise UsageError("SpotburstCallback: already attached; make one for each Trainer")
        if trainer.model is None:
            raise UsageError("SpotburstCallback: give the Trainer a model; model_init is not supported")
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        parts = self._parts = _Parts(trainer)
        # Trainer finds its place in the data by itself.
        self.checkpoint = Checkpointer(trainer=parts, **{"data": False, **self._options})
        if not self.checkpoint.active:
            return None
        trainer._maybe_log_save_evaluate = self._boundary(trainer, trainer._maybe_log_save_evaluate)
        if not self.checkpoint.restored:
            return None
        # Trainer asks a folder for where it stands, and these methods for the rest.
        self._folder = tempfile.mkdtemp(prefix="spotburst-")
        (Path(self._folder) / "trainer_state.json").write_text(json.dumps(parts.saved["state"]))
        for name, act in (
            ("_load_from_checkpoint", parts.load_model),
            ("_load_optimizer_and_scheduler", parts.load_optimizer),
            ("_load_scaler", parts.load_scaler),
            ("_load_rng_state", self.checkpoint.restore_rng),
        ):
            setattr(trainer, name, self._instead(act, getattr(trainer, name)))
        return self._folder

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Trainer has just set its running sums to zero."""
        if self._parts is not None and self._folder:
            self._parts.load_running()
            shutil.rmtree(self._folder, ignore_errors=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Of what follows it is known by this that it is not an epoch's end."""
        self._epoch_ended = False

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See ``on_step_end``."""
        self._epoch_ended = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """The trainer's own values, for the curves of ``spotburst report``."""
        numbers = {k: v for k, v in (logs or {}).items() if isinstance(v, int | float) and k in _CURVES}
        if self.checkpoint is not None and numbers:
            program.log(state.global_step, **numbers)

    def _instead(self, act: Callable[[], None], original: Callable[..., Any]) -> Callable[..., Any]:
        def load(checkpoint: Any, *args: Any, **kwargs: Any) -> Any:
            return act() if checkpoint == self._folder else original(checkpoint, *args, **kwargs)

        return load

    def _boundary(self, trainer: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        def then_save(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._after(trainer)
            return result

        return then_save

    def _after(self, trainer: Any) -> None:
        """The step is logged and evaluated. An epoch's last one waits for what the epoch's end does."""
        checkpoint = self.checkpoint
        if checkpoint is None:
            return
        last = float(trainer.state.epoch or 0.0).is_integer() or trainer.control.should_training_stop
        if last and not self._epoch_ended:
            return
        if trainer.state.global_step > checkpoint.completed:
            checkpoint.step()
        if self._epoch_ended and trainer.control.should_training_stop:
            checkpoint.close()  # now: the best weights may be loaded next


class _Parts:
    """The trainer's state as one thing with a state_dict. What is loaded waits until Trainer has made what it belongs to."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.saved: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        trainer = self.trainer
        return {
            "model": trainer.model.state_dict(),
            "optimizer": _state(trainer.optimizer),
            "scheduler": _state(trainer.lr_scheduler),
            "scaler": _state(getattr(trainer.accelerator, "scaler", None)),
            "state": self._trainer_state(),
            "running": {name: getattr(trainer, name) for name in _RUNNING if hasattr(trainer, name)},
        }

    def load_state_dict(self, tree: dict[str, Any]) -> None:
        if set(tree) != set(self.state_dict()):
            raise ValueError("it was not made by this callback")
        self.saved = tree

    def _trainer_state(self) -> dict[str, Any]:
        """As Trainer writes it to ``trainer_state.json``."""
        trainer = self.trainer
        tree: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(trainer.state)))
        callbacks: dict[str, Any] = {}
        for one in [*trainer.callback_handler.callbacks, trainer.control]:
            if isinstance(one, ExportableState):
                callbacks.setdefault(type(one).__name__, []).append(one.state())
        tree["stateful_callbacks"] = {name: s[0] if len(s) == 1 else s for name, s in callbacks.items()}
        return tree

    def load_model(self) -> None:
        self._load("model", self.trainer.model)

    def load_optimizer(self) -> None:
        self._load("optimizer", self.trainer.optimizer)
        self._load("scheduler", self.trainer.lr_scheduler)

    def load_scaler(self) -> None:
        self._load("scaler", getattr(self.trainer.accelerator, "scaler", None))

    def load_running(self) -> None:
        for name, value in self.saved["running"].items():
            if hasattr(value, "device"):
                value = value.to(self.trainer.args.device)
            setattr(self.trainer, name, value)
        self.saved = {}  # all is set

    def _load(self, name: str, target: Any) -> None:
        if target is not None and self.saved[name] is not None:
            member(name, target).restore(self.saved[name])


def _state(one: Any) -> Any:
    return None if one is None else one.state_dict()
