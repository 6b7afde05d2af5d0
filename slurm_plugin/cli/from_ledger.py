"""What the manager's ledger tells the commands, where this user may read it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from slurm_plugin.config import Config
from slurm_plugin.errors import ConfigError
from slurm_plugin.slurm.records import Job

if TYPE_CHECKING:
    from slurm_plugin.ledger import Ledger

_Answer = TypeVar("_Answer")


def from_ledger(config: Config, question: Callable[[Ledger], _Answer]) -> tuple[_Answer | None, str]:
    """(what ``question`` finds in the ledger, ""), or (None, why it can't be read). Never raises for the ledger's own faults."""
    from slurm_plugin.ledger import Ledger

    path = config.state_dir / "ledger.db"
    try:
        ledger = Ledger.open_readonly(path)
    except OSError as error:
        return None, f"{path}: {error.strerror or error}"
    except ConfigError as error:
        return None, str(error)
    try:
        return question(ledger), ""
    except sqlite3.Error as error:
        return None, f"{path}: {error}"
    finally:
        ledger.close()


def number_of(job: str, shown: Job | None) -> int | None:
    """The number under which the ledger has a JOB; None where that can't be told."""
    return shown.job_id if shown is not None else int(job) if re.fullmatch(r"[0-9]{1,18}", job) else None
