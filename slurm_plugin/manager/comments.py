"""What is to be said in jobs' comments: gathered over a pass and written at its end, since when many jobs lose their nodes, words come last.

A comment is its user's, too, and Slurm only replaces it as a whole. So it is read anew right before it is written: what a user has made
of it while the pass went on stays. (Slurm has no way to close the gap of milliseconds between the two.)
"""

from __future__ import annotations

import time
from collections.abc import Callable

from job_wrapper.comments import comment
from slurm_plugin.errors import SlurmUnavailable
from slurm_plugin.manager.say import log
from slurm_plugin.slurm.client import SlurmClient
from slurm_plugin.slurm.records import Job

LONGEST = 3.0
"""Seconds of a pass after which no further comment is begun; the rest are written by the next passes."""
FEW = 5
"""Up to so many comments are read job by job; of more, all jobs are asked for at once."""


class Comments:
    """Of one pass after another. ``steady`` tells how long something takes, in seconds."""

    def __init__(self, client: SlurmClient, steady: Callable[[], float] = time.monotonic) -> None:
        self._client, self._steady = client, steady
        self._wanted: dict[int, tuple[str, str]] = {}
        """By job: its name, and what is to be said. The newest word counts."""

    def tell(self, job: Job, text: str) -> None:
        """Say it at the end of the pass."""
        self._wanted[job.job_id] = job.name_id, text

    def tell_now(self, job: Job, text: str) -> None:
        """Say it at once: Slurm takes no comment of a job that has ended. Raises ``SlurmRefused``, ``SlurmUnavailable``."""
        self._wanted.pop(job.job_id, None)
        standing = self._client.comment(job.name_id)
        if standing is not None:
            self._set(job.name_id, standing, text)

    def write(self) -> None:
        """All that is to be said, as far as time allows. Raises ``SlurmUnavailable``: what is left is said later."""
        began = self._steady()
        known: dict[int, str] | None = None
        if len(self._wanted) > FEW:
            known = {job.job_id: job.comment for job in self._client.jobs()}
        while self._wanted and self._steady() - began < LONGEST:
            job_id, (name, text) = next(iter(self._wanted.items()))
            try:
                standing = self._client.comment(name) if known is None else known.get(job_id)
                if standing is not None:
                    self._set(name, standing, text)
            except SlurmUnavailable:
                raise
            except Exception as error:  # whatever it is, it must not stand before all others for ever
                log.warning("a comment could not be written", job=name, error=str(error) or repr(error))
            del self._wanted[job_id]

    def _set(self, name: str, standing: str, text: str) -> None:
        new = comment(standing, text)
        if new != standing:
            self._client.set_comment(name, new)
