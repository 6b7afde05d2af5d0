"""For all tests: Hypothesis measures no time (a busy machine is no fault), and who starts them changes nothing."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "spotburst",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    # CI asks about the change before it: with the same examples each time. `make test` looks for new ones.
    derandomize="SPOTBURST_TEST_SAME" in os.environ,
)
settings.load_profile("spotburst")
pytest.register_assert_rewrite("tests.unit.checkpoint.training")

_OURS = ("SPOTBURST_TEST_", "SPOTBURST_CHAOS_SEEDS", "SPOTBURST_LOG_HISTORIES", "SPOTBURST_MODEL_FAULTS")
"""Settings of the tests themselves."""
_OF_OTHERS = (
    "SLURM_", "SPOTBURST_", "SBATCH_", "SRUN_", "SQUEUE_", "SINFO_", "AWS_", "AZURE_", "GOOGLE_", "GCE_", "CLOUDSDK_",
    "NOTIFY_SOCKET", "WATCHDOG_",
)  # fmt: skip
"""What a job, a cluster or an account (or the service) that starts the tests has set: programs would turn to those."""


def _as_anywhere() -> None:
    """Before any test module is imported, and in each worker."""
    for name in list(os.environ):
        if name.startswith(_OF_OTHERS) and not name.startswith(_OURS):
            del os.environ[name]
    # The servers of the tests are on this machine, and no proxy leads to them.
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1", "localhost"]))
    os.environ["LC_ALL"] = "C.UTF-8"  # ansible wants UTF-8, and the system's programs speak English in it
    # A shell ignores Ctrl-C for what it starts in the background, and programs inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.umask(0o022)  # other users read what a test lays out for them


_as_anywhere()
