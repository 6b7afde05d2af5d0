"""Many small wrapped jobs side by side on one cluster: a program that counts in its state directory until it is told to end."""

from __future__ import annotations

import shlex
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from job_wrapper.store import RunLog, open_store
from job_wrapper.store.io_types import Entry, Kind
from slurm_plugin.errors import SlurmUnavailable
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.slurm.client import SlurmClient
from slurm_plugin.slurm.records import Job, Node

COUNT = """\
cd "$SPOTBURST_STATE_DIR"
number=$(cat number 2>/dev/null || echo 0)
begun=$number
count() { number=$((number + 1)); echo $number > .new; mv .new number; }
count
echo "starts at $begun"
until [ -e "$1" ]; do sleep 0.4; count; done
echo "ends at $number"
"""
STATE = "/run/state"
"""In each machine's own /run: an attempt on another machine finds there only what is restored."""
LOOK = 0.4
"""Seconds between looks; what is seen is shared by all that look meanwhile."""
SILENCE = 60.0
"""Seconds for which Slurm may be too busy to answer."""


@dataclass
class Stage:
    """A cluster on which many jobs play at the same time. Its methods may be called from several threads."""

    cluster: LocalCluster
    version: str
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _jobs: tuple[float, tuple[Job, ...]] = (0.0, ())

    def __post_init__(self) -> None:
        self.client: SlurmClient = self.cluster.client()
        (self.cluster.root / "count.sh").write_text(COUNT)
        self.store = open_store(self.cluster.config.checkpoints.uri, prove=False)

    @property
    def modern(self) -> bool:
        """Whether a job that ends within its grace, with whatever exit code, is requeued (24.05+)."""
        return self.version > "24.05"

    def boot(self, nodes: list[str]) -> None:
        """Bring these up before they are needed, so that no job waits for Slurm's tick of 30 s."""
        self.client.update_nodes(nodes, state="power_up")

        def idle() -> bool:
            found = [n for n in self.client.nodes() if n.name in nodes]
            # slurmctld may forget one that registers within the second of its launch, and takes it back at ResumeTimeout.
            if off := [n.name for n in found if n.has("POWERED_DOWN") and not n.has("POWER_UP", "POWERING_UP")]:
                self.client.update_nodes(off, state="power_up")
            return all(n.up and n.has("IDLE") for n in found)

        self.wait(idle, "the nodes", 300)

    def jobs(self) -> tuple[Job, ...]:
        """All that Slurm knows, at most ``LOOK`` seconds old: an older answer may lack what a scene has waited for."""
        with self._lock:
            began = time.monotonic()
            while self._jobs[0] < began - LOOK:
                asked = time.monotonic()
                try:
                    self._jobs = (asked, self.client.jobs())
                except SlurmUnavailable:
                    if asked > began + SILENCE:
                        raise
            return self._jobs[1]

    def node(self, name: str) -> Node:
        return next(n for n in self.client.nodes() if n.name == name)

    def wait(self, look: object, what: str, timeout: float = 180) -> object:
        assert callable(look)
        return self.cluster.wait_for(look, timeout, what, every=LOOK)

    def submit(self, script: str, *options: str) -> Handle:
        """``sbatch --wrap``."""
        arguments = ["--parsable", f"--output={self.cluster.root}/jobs/%A_%a.out", "--open-mode=append"]
        answer = self.cluster.run("sbatch", *arguments, f"--wrap={script}", *options)
        return Handle(self, answer.strip().splitlines()[-1].split(";")[0])

    def wrapped(self, options: str = "", srun: str = "srun") -> str:
        """The line of a batch script that counts under the wrapper."""
        end = self.cluster.root / "jobs" / "end-"
        program = f"bash {self.cluster.root}/count.sh {shlex.quote(str(end))}$SLURM_JOB_ID"
        return f"{srun} spotburst run --interval 2s --state-dir {STATE}-$SLURM_JOB_ID {options} -- {program}"

    def counting(self, *sbatch: str, options: str = "", srun: str = "srun") -> Handle:
        """A job that counts under the wrapper, in its first attempt with a commit."""
        job = self.submit(self.wrapped(options, srun), *sbatch)
        job.until_counting(1)
        return job

    def preempt(self, job: Handle) -> Handle:
        """Have a job of higher priority take its node."""
        return self.submit("sleep 1", "--partition=urgent", f"--nodelist={job.now.nodes[0]}")


@dataclass
class Handle:
    """One job, or one task of an array (``id`` as users type it)."""

    stage: Stage
    id: str

    @property
    def now(self) -> Job:
        """As Slurm shows it."""
        found: list[Job] = []
        self.stage.wait(
            lambda: found.extend(j for j in self.stage.jobs() if j.name_id == self.id) or found, f"job {self.id}", 60
        )
        return found[0]

    def summary(self) -> str:
        """Where it stands, in a line."""
        job = self.now
        flags = ",".join(sorted(job.states))
        log = " ".join(f"{entry.kind.name}({entry.epoch})" for entry in self.entries())
        where = f"priority {job.priority}, {job.restart_count} restarts, on {job.nodes}"
        return f"job {self.id} is {flags}, reason {job.reason}, {where}; its run: {log or 'nothing'}; it wrote: {self.output[-500:]!r}"

    @property
    def output(self) -> str:
        array, _, task = self.id.partition("_")
        path = self.stage.cluster.root / "jobs" / f"{array.split('+')[0]}_{task or 4294967294}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def starts(self) -> list[int]:
        """The number from which each attempt's program counted on."""
        return [int(line.split()[-1]) for line in self.output.splitlines() if line.startswith("starts at ")]

    def entries(self) -> list[Entry]:
        return RunLog(self.stage.store, f"{self.stage.cluster.config.cluster}/{self.id}/main").entries()

    def kinds(self, kind: Kind) -> list[str]:
        """The reasons of all entries of a kind."""
        return [str(e.body.get("reason", "")) for e in self.entries() if e.kind is kind]

    @property
    def interrupted(self) -> list[str]:
        return self.kinds(Kind.INTERRUPTED)

    def until(self, look: object, what: str, timeout: float = 180) -> None:
        assert callable(look)
        try:
            self.stage.wait(look, f"job {self.id}: {what}", timeout)
        except TimeoutError as error:
            raise TimeoutError(f"{self.summary()}; {error}") from error

    def until_committed(self, epoch: int, timeout: float = 180) -> None:
        """Until that attempt has committed."""
        self.until(
            lambda: any(e.kind is Kind.COMMIT and e.epoch == epoch for e in self.entries()),
            f"a commit of attempt {epoch}",
            timeout,
        )

    def until_counting(self, epoch: int, timeout: float = 180) -> None:
        """Until that attempt's program has said that it counts, and has counted something that is committed.

        What a program says takes its way through srun, and may come after a commit. A machine that vanishes meanwhile takes it along.
        """
        self.until(lambda: len(self.starts) >= epoch, f"start {epoch} of its program", timeout)
        newest = max(entry.seq for entry in self.entries())
        self.until(
            lambda: any(e.kind is Kind.COMMIT and e.epoch == epoch and e.seq > newest for e in self.entries()),
            f"a commit of attempt {epoch}",
            timeout,
        )

    def until_state(self, *states: str, timeout: float = 180) -> Job:
        self.until(
            lambda: self.now.has(*states) and not self.now.has("COMPLETING"), f"state {' or '.join(states)}", timeout
        )
        return self.now

    def until_running(self, restart: int, timeout: float = 180) -> None:
        """Until its attempt with that restart count, or a later one, runs."""
        self.until(
            lambda: self.now.running and self.now.restart_count >= restart, f"to run, restart {restart}", timeout
        )

    def until_back(self, epoch: int = 2, timeout: float = 180) -> None:
        """Until it counts on from its newest checkpoint in that attempt."""
        self.until_counting(epoch, timeout)
        assert len(self.starts) == epoch
        assert all(number > 0 for number in self.starts[1:]), f"begun anew: {self.starts}"
        assert self.starts == sorted(self.starts)

    def finish(self, timeout: float = 180) -> None:
        """Let the program end, and wait until the job is completed for good: its run ended once, with success."""
        Path(f"{self.stage.cluster.root}/jobs/end-{self.now.job_id}").touch()
        self.until(
            lambda: self.kinds(Kind.END) and self.now.has("COMPLETED") and not self.now.has("COMPLETING"),
            "its end",
            timeout,
        )
        assert self.kinds(Kind.END) == ["Finished"]

    def until_recorded(self, *states: str, timeout: float = 60) -> None:
        """Until accounting says that of its attempts, oldest first: slurmctld tells slurmdbd some time after it has done a thing."""
        last: list[str] = []

        def there() -> bool:
            last[:] = self.records()
            return last == list(states)

        try:
            self.stage.wait(there, "accounting", timeout)
        except TimeoutError as error:
            raise AssertionError(f"accounting says {last} of job {self.id}, not {list(states)}; {error}") from error

    def records(self) -> list[str]:
        """What accounting says of each attempt, oldest first."""
        done = self.stage.cluster.run("sacct", "-D", "-X", "-n", "-P", "-j", self.id, "-o", "Submit,State")
        return [line.partition("|")[2] for line in sorted(done.split("\n")) if line]
