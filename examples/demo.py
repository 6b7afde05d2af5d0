"""The main job, end to end, on a real Slurm: sbatch, burst, reclaim, resume, finish. Run it with ``make demo``.

A training job runs on spot nodes of the embedded cloud. Its first node is reclaimed with notice, its second vanishes without, and on
its third a job from a partition with more priority preempts it. The same training runs undisturbed beside it, without spotburst.
In the end both must have the same weights, optimizer state and sequence of samples, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from job_wrapper.errors import SpotburstError
from job_wrapper.store import RunLog, open_store
from job_wrapper.store.io_types import Entry
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.timeline import Attempt, attempts, gap

HERE = Path(__file__).resolve().parent
GRACE = 30
STEPS = 1200
RECLAIM_AT, VANISH_AT, PREEMPT_AT = 200, 500, 800
"""Steps at which the three things happen."""
NOTICE_LIMIT = 10.0
"""Seconds from notice to the first new step that the demo must stay under."""


class Demo:
    """One run of the demo in a folder of its own."""

    def __init__(self, folder: Path, steps: int, step_time: float) -> None:
        self.folder = folder
        self.steps = steps
        self.step_time = step_time
        self.started = time.monotonic()
        settings = yaml.safe_load((HERE / "burst.yaml").read_text(encoding="utf-8"))
        self.cluster = LocalCluster(folder / "cluster", settings)

    def say(self, text: str) -> None:
        """One line, with the time since the start."""
        print(f"[{time.monotonic() - self.started:6.1f} s] {text}", flush=True)

    def run(self) -> bool:
        """Everything; whether the two trainings came out the same and in time."""
        self.say("starting munge, slurmctld and the manager; machines are process trees in namespaces of their own")
        with self.cluster as cluster:
            version = ".".join(str(n) for n in cluster.version())
            self.say(f"Slurm {version} is up: partitions {', '.join(p.name for p in cluster.config.partitions)}")
            job = self.submit("spot", "train", wrapped=True)
            self.say(f"sbatch examples/train.sbatch: job {job} waits for a spot node, which has to be made first")
            reference = self.submit("ondemand", "undisturbed", wrapped=False)
            self.say(f"the same training without spotburst and undisturbed, on demand: job {reference}")
            alone = SlurmAlone(cluster)

            self.until_step(job, RECLAIM_AT)
            node = self.node_of(job)
            alone.requeue()
            self.say(f"-> the cloud reclaims {node}: 120 s notice")
            cluster.cloud().reclaim(node)
            self.until_epoch(job, 2)

            self.until_step(job, VANISH_AT)
            node = self.node_of(job)
            self.say(f"-> {node} vanishes without notice")
            cluster.cloud().vanish(node)
            self.until_epoch(job, 3)

            self.until_step(job, PREEMPT_AT)
            node = self.node_of(job)
            urgent = cluster.submit("srun sleep 5", "--partition=urgent", f"--nodelist={node}", "--job-name=urgent")
            self.say(f"-> job {urgent} of partition urgent preempts it on {node}: GraceTime {GRACE} s")
            self.until_epoch(job, 4)

            self.until_end(job)
            self.wait(lambda: self.state(reference) in ("COMPLETED", ""), 120, f"job {reference}'s end")
            self.say(f"job {job} is {self.state(job)}")
            alone.wait(self)
            for command in ("describe", "attempts", "checkpoints"):
                print(f"\n$ spotburst {command} {job}")
                print(cluster.run("spotburst", command, job), flush=True)
            return self.verdict(job, alone)

    # What the demo does

    def submit(self, partition: str, name: str, *, wrapped: bool) -> str:
        """One training job by ``sbatch``, with the wrapper or without."""
        command = ["--steps", str(self.steps), "--step-time", str(self.step_time), "--out", str(self.folder / name)]
        if not wrapped:
            text = shlex.join(["srun", sys.executable, str(HERE / "train.py"), *command])
            return self.cluster.submit(text, f"--partition={partition}", "--gres=gpu:1", f"--job-name={name}")
        answer = self.cluster.run(
            *("sbatch", "--parsable", f"--partition={partition}", f"--output={self.cluster.root}/jobs/%j.out"),
            *(HERE / "train.sbatch", *command),
            env={"TRAIN": str(HERE / "train.py"), "TRAIN_PYTHON": sys.executable},
        )
        return answer.strip()

    def entries(self, job: str) -> list[Entry]:
        """The run's log; empty before the first attempt."""
        store = open_store(self.cluster.config.checkpoints.uri)
        return RunLog(store, f"{self.cluster.config.cluster}/{job}/main").entries()

    def attempts(self, job: str) -> list[Attempt]:
        """The run's attempts so far."""
        return attempts(self.entries(job))

    def state(self, job: str) -> str:
        """The job's state as squeue shows it; "" once Slurm has forgotten it."""
        return self.cluster.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T", check=False).strip()

    def node_of(self, job: str) -> str:
        """Where it runs."""
        return self.attempts(job)[-1].node

    def wait(self, what: Callable[[], Any], timeout: float, text: str) -> None:
        """Wait, or end the demo with the state of everything."""
        self.cluster.wait_for(what, timeout, text, every=0.2)

    def until_step(self, job: str, step: int) -> None:
        """Wait until a checkpoint at or after that step is committed."""

        def there() -> bool:
            commits = [a.last_step for a in self.attempts(job) if a.last_step is not None]
            return bool(commits) and commits[-1] >= step

        self.wait(there, 120, f"a checkpoint of job {job} at step {step} or later")
        self.say(
            f"job {job} on {self.node_of(job)}: a checkpoint at step {self.attempts(job)[-1].last_step} is committed"
        )

    def until_epoch(self, job: str, epoch: int) -> None:
        """Wait until that attempt has claimed the run."""
        self.wait(lambda: len(self.attempts(job)) >= epoch, 90, f"attempt {epoch} of job {job}")
        self.say(f"job {job} is back, on {self.node_of(job)} (epoch {epoch})")

    def until_end(self, job: str) -> None:
        """Wait until the program has ended."""
        self.wait(lambda: self.state(job) in ("COMPLETED", "FAILED", ""), 180, f"job {job}'s end")

    # What came of it

    def verdict(self, job: str, alone: SlurmAlone) -> bool:
        """Print the timeline and the comparison."""
        made = self.attempts(job)
        print("\nTimeline")
        for number, one in enumerate(made):
            after = gap(made[number - 1], one) if number else None
            print(f"  attempt {one.epoch} on {one.node}: {describe_attempt(one)}")
            if after is not None:
                before = made[number - 1]
                lost = None if before.noticed is not None else self.lost_steps(job, before, one)
                print(f"    {describe_gap(before, one, lost)}")
        ok = True
        first = made[1].resumed
        if first is None or made[0].noticed is None:
            print("FAIL  the log does not tell how long the reclaim took")
            ok = False
        else:
            seconds = first - made[0].noticed
            ok &= check(
                seconds < NOTICE_LIMIT,
                f"from notice to training again: {seconds:.1f} s (must be below {NOTICE_LIMIT:g} s)",
            )
            print(f"      Slurm alone, `scontrol requeue` on a node that is up, measured beside it: {alone.text}")
        ok &= check(len(made) == 4 and made[-1].why == "finished", f"{len(made)} attempts, the last one finished")
        ok &= self.same()
        print("\nRESULT " + ("the two trainings are bit-identical" if ok else "FAILED"))
        return ok

    def lost_steps(self, job: str, before: Attempt, after: Attempt) -> int | None:
        """Steps that ``before`` had printed beyond where ``after`` went on."""
        seen = [
            int(line.split()[1])
            for line in self.cluster.output(job).splitlines()
            if line.startswith("step ") and line.split()[1].isdigit()
        ]
        peak = 0
        for step in seen:
            if step < peak and after.restored_step is not None and step <= after.restored_step + 50:
                break
            peak = step
        return None if after.restored_step is None else max(0, peak - after.restored_step)

    def same(self) -> bool:
        """Whether both trainings left the same weights, optimizer state and samples."""
        import torch

        results = [self.folder / name for name in ("train", "undisturbed")]
        states = [torch.load(folder / "final.pt", weights_only=True) for folder in results]
        ok = True
        for part in ("model", "optimizer"):
            mine, other = dict(leaves(states[0][part])), dict(leaves(states[1][part]))
            different = [k for k in sorted({*mine, *other}) if not equal(mine.get(k), other.get(k))]
            ok &= check(
                not different and bool(mine),
                f"{part}: {len(mine)} values compared" + "".join(f"; {k} differs" for k in different[:5]),
            )
        samples = [(folder / "samples.jsonl").read_bytes() for folder in results]
        ok &= check(samples[0] == samples[1], f"samples: the ids of {len(samples[0].splitlines())} steps compared")
        return ok


class SlurmAlone:
    """What Slurm does by itself with a job that is requeued, on a node that is up: measured, not quoted."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.job = cluster.submit(
            "date +%s.%N; srun sleep 600", "--partition=ondemand", "--job-name=alone", "--open-mode=append"
        )
        self.requeued = 0.0
        self.text = "not measured"

    def requeue(self) -> None:
        """As a signal handler in a job script would."""
        self.cluster.wait_for(lambda: self.cluster.output(self.job), 90, f"job {self.job}'s start")
        self.requeued = time.time()
        self.cluster.run("scontrol", "requeue", self.job)

    def wait(self, demo: Demo) -> None:
        """Until it runs again."""
        demo.say(f"waiting for job {self.job}, which was requeued without spotburst at the time of the reclaim")
        demo.wait(lambda: len(self.cluster.output(self.job).split()) > 1, 240, f"job {self.job}'s second start")
        self.text = f"{float(self.cluster.output(self.job).split()[1]) - self.requeued:.1f} s"
        demo.say(f"job {self.job} runs again: {self.text} after its requeue")
        self.cluster.run("scancel", self.job)


def describe_attempt(one: Attempt) -> str:
    """Steps, commits and why it ended."""
    begun = f"from step {one.restored_step}" if one.restored_step is not None else "from the start"
    return f"{begun}, {one.commits} commits, the last at step {one.last_step}; {one.why}"


def describe_gap(before: Attempt, after: Attempt, lost: int | None) -> str:
    """How the run got from one attempt to the next."""
    between = gap(before, after)
    words = []
    if before.noticed is not None:
        if before.notice_to_commit is not None:
            words.append(f"notice to commit {before.notice_to_commit:.1f} s")
        for text, value in (
            ("to requeue", between.notice_to_requeue),
            ("to the wrapper's start", between.notice_to_claim),
        ):
            if value is not None:
                words.append(f"{text} {value:.1f} s")
        lost = max(0, (before.last_step or 0) - (after.restored_step or 0))
    elif before.last_commit is not None and after.resumed is not None:
        words.append(f"last commit to training again {after.resumed - before.last_commit:.1f} s")
    if before.noticed is not None and between.notice_to_resumed is not None:
        words.append(f"to training again {between.notice_to_resumed:.1f} s")
    words.append("lost: " + ("unknown" if lost is None else f"{lost} steps"))
    return ", ".join(words)


def check(good: bool, text: str) -> bool:
    """One line of the result."""
    print(("ok    " if good else "FAIL  ") + text)
    return good


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every leaf of nested dicts and lists, with its path."""
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in leaves(inner, f"{path}.{key}")]
    if isinstance(value, list | tuple):
        return [leaf for index, inner in enumerate(value) for leaf in leaves(inner, f"{path}.{index}")]
    return [(path.lstrip("."), value)]


def equal(one: Any, other: Any) -> bool:
    """Equal bit for bit; a missing value equals nothing."""
    import torch

    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return one.contiguous().view(-1).view(torch.uint8).equal(other.contiguous().view(-1).view(torch.uint8))
    return type(one) is type(other) and repr(one) == repr(other)


def main() -> int:
    """Run the demo; 0 if all came out the same and in time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=HERE.parent / ".work" / "demo", help="where everything goes")
    parser.add_argument("--steps", type=int, default=STEPS, help="length of the training")
    parser.add_argument("--step-time", type=float, default=0.05, help="least seconds a step")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    try:
        if folder.exists():
            LocalCluster(folder / "cluster").stop()
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        return 0 if Demo(folder, arguments.steps, arguments.step_time).run() else 1
    except (SpotburstError, AssertionError, TimeoutError, subprocess.TimeoutExpired) as error:
        print(f"demo: {error}\nRESULT FAILED", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: stopped; everything that it started is taken down", file=sys.stderr)
        return 130


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
