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
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from job_wrapper.counted import counted
from job_wrapper.errors import SpotburstError
from job_wrapper.store import RunLog, open_store
from job_wrapper.store.io_types import Entry
from slurm_plugin import render
from slurm_plugin.cloud.provider import LaunchRequest
from slurm_plugin.errors import LocalCloudError
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.timeline import Attempt, attempts, gap

HERE = Path(__file__).resolve().parent
GRACE = 30
STEPS = 1200
LOG_EVERY = 10
"""Steps."""
RECLAIM_AT, VANISH_AT, PREEMPT_AT = 200, 500, 800
"""Steps at which the three things happen."""
NOTICE_LIMIT = 10.0
"""Seconds from notice to training again that a machine with nothing else to do stays under."""


class Demo:
    """One run of the demo in a folder of its own."""

    def __init__(self, folder: Path, steps: int, step_time: float) -> None:
        self.folder = folder
        self.steps = steps
        self.step_time = step_time
        self.started = time.monotonic()
        self.failed: list[str] = []
        """What did not come out as it must."""
        settings = yaml.safe_load((HERE / "burst.yaml").read_text(encoding="utf-8"))
        self.cluster = LocalCluster(folder / "cluster", settings)
        self.alone = SlurmAlone(folder / "alone", settings)

    def say(self, text: str) -> None:
        """One line, with the time since the start."""
        print(f"[{time.monotonic() - self.started:6.1f} s] {text}", flush=True)

    def run(self) -> bool:
        """Everything; whether the two trainings came out the same."""
        self.say("starting munge, slurmctld and the manager; machines are process trees in namespaces of their own")
        with self.cluster as cluster, self.alone.cluster:
            version = "{}.{:02}.{}".format(*cluster.version())
            self.say(f"Slurm {version} is up: partitions {', '.join(p.name for p in cluster.config.partitions)}")
            job = self.submit("spot", "train", wrapped=True)
            self.say(f"sbatch examples/train.sbatch: job {job} waits for a spot node, which has to be made first")
            reference = self.submit("ondemand", "undisturbed", wrapped=False)
            self.say(f"the same training without spotburst and undisturbed, on demand: job {reference}")
            self.say(
                "a second cluster beside it, without spotburst: a job is requeued there, to measure what Slurm alone needs"
            )
            self.alone.start()
            self.say("the node boots, Slurm starts the job at its next 30 s tick, and torch is imported: about 45 s")

            self.until_step(job, RECLAIM_AT)
            node = self.node_of(job)
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
            self.wait(lambda: self.state(reference) in ("COMPLETED", ""), 300, f"job {reference}'s end")
            self.say(f"job {job} is {self.state(job)}")
            for command in ("describe", "attempts", "checkpoints"):
                print(f"\n$ spotburst {command} {job}")
                print(cluster.run("spotburst", command, job), flush=True)
            self.say("waiting for the second cluster, where Slurm alone makes the requeued job wait about 2 minutes")
            alone = self.alone.seconds(self)
            return self.verdict(job, alone)

    # What the demo does

    def submit(self, partition: str, name: str, *, wrapped: bool) -> str:
        """One training job by ``sbatch``, with the wrapper or without."""
        command = ["--steps", str(self.steps), "--out", str(self.folder / name), "--log-every", str(LOG_EVERY)]
        if not wrapped:
            text = shlex.join(["srun", sys.executable, str(HERE / "train.py"), *command])
            return self.cluster.submit(text, f"--partition={partition}", "--gres=gpu:1", f"--job-name={name}")
        options: tuple[str | Path, ...] = (HERE / "train.sbatch", *command, "--step-time", str(self.step_time))
        answer = self.cluster.run(
            *("sbatch", "--parsable", f"--partition={partition}", f"--output={self.cluster.root}/jobs/%j.out"),
            *options,
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

        def look() -> Any:
            self.alone.requeue_once_running()
            return what()

        self.cluster.wait_for(look, timeout, text, every=0.2)

    def until_step(self, job: str, step: int) -> None:
        """Wait until a checkpoint at or after that step is committed."""

        def there() -> bool:
            commits = [a.last_step for a in self.attempts(job) if a.last_step is not None]
            return bool(commits) and commits[-1] >= step

        self.wait(there, 300, f"a checkpoint of job {job} at step {step} or later")
        self.say(
            f"job {job} on {self.node_of(job)}: a checkpoint at step {self.attempts(job)[-1].last_step} is committed"
        )

    def until_epoch(self, job: str, epoch: int) -> None:
        """Wait until that attempt has claimed the run."""
        self.wait(lambda: len(self.attempts(job)) >= epoch, 90, f"attempt {epoch} of job {job}")
        self.say(f"job {job} is back, on {self.node_of(job)} (attempt {epoch})")

    def until_end(self, job: str) -> None:
        """Wait until the program has ended."""
        self.wait(lambda: self.state(job) in ("COMPLETED", "FAILED", ""), 180, f"job {job}'s end")

    # What came of it

    def verdict(self, job: str, alone: float) -> bool:
        """Print the timeline and the comparison."""
        made = self.attempts(job)
        repeated = self.repeated(job)
        print("\nTimeline")
        for number, one in enumerate(made):
            print(f"  attempt {one.epoch} on {one.node}: {describe_attempt(one)}")
            if number + 1 < len(made):
                lost = again(repeated[number], one) if number < len(repeated) else "steps done again: unknown"
                print(f"    {describe_gap(one, made[number + 1])}; {lost}")
        good = len(made) == 4 and made[-1].why == "finished"
        expected = "" if good else "; 4 were expected, the last one finished: the timeline says what ended the others"
        self.check(good, f"{counted(len(made), 'attempt')}, the last one {made[-1].why}{expected}")
        if len(made) > 1 and made[1].resumed is not None and made[0].noticed is not None:
            seconds = made[1].resumed - made[0].noticed
            load = os.getloadavg()[0] / (os.cpu_count() or 1)
            slow = (
                f"; more than {NOTICE_LIMIT:g} s: this machine is busy, load {load:.1f} a core"
                if seconds > NOTICE_LIMIT
                else ""
            )
            print(f"      from notice to training again, torch's import included: {seconds:.1f} s{slow}")
            print(
                f"      Slurm alone, from `scontrol requeue` to the script's start, on a node that is up: {alone:.1f} s"
            )
        else:
            self.check(False, "the log does not tell how long the reclaim took")
        self.same()
        if not self.failed:
            print("\nRESULT the two trainings are bit-identical")
        return not self.failed

    def check(self, good: bool, text: str) -> None:
        """One line of the result."""
        print(("ok    " if good else "FAIL  ") + text)
        if not good:
            self.failed.append(text)

    def repeated(self, job: str) -> list[tuple[int, int]]:
        """For each resume: how many steps are known to be beyond the step at which the job went on, and how many there may be."""
        lost, last = [], 0
        for line in self.cluster.output(job).splitlines():
            words = line.split()
            if line.startswith("step ") and words[1].isdigit():
                last = int(words[1])
            elif line.startswith("resumed at step "):
                unprinted = last + LOG_EVERY - 1
                lost.append((max(0, last - int(words[3])), max(0, unprinted - int(words[3]))))
        return lost

    def same(self) -> None:
        """Check that both trainings left the same weights, optimizer state and samples."""
        results = [self.folder / name for name in ("train", "undisturbed")]
        for folder in results:
            if not (folder / "final.pt").is_file():
                self.check(False, f"the training in {folder} did not finish: there is no final.pt")
                return
        import torch

        states = [torch.load(folder / "final.pt", weights_only=True) for folder in results]
        for part in ("model", "optimizer"):
            mine, other = dict(leaves(states[0][part])), dict(leaves(states[1][part]))
            different = [k for k in sorted({*mine, *other}) if not equal(mine.get(k), other.get(k))]
            self.check(
                not different and bool(mine),
                f"{part}: {len(mine)} values compared" + "".join(f"; {k} differs" for k in different[:5]),
            )
        samples = [(folder / "samples.jsonl").read_bytes() for folder in results]
        steps = counted(len(samples[0].splitlines()), "step")
        self.check(samples[0] == samples[1], f"samples: the ids of {steps} compared")


class SlurmAlone:
    """What Slurm does by itself with a job that is requeued on a node that is up: measured on a cluster without a manager."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.cluster = LocalCluster(folder, settings, manager=False)
        self.job = ""
        self.requeued = 0.0

    def start(self) -> None:
        """A job on a node, requeued as a signal handler in a job script would do it."""
        cluster = self.cluster
        self.job = cluster.submit("date +%s.%N; srun sleep 600", "--partition=ondemand", "--open-mode=append")
        node = cluster.wait_for(self._wanted, 30, "the power-up of a node")
        nodeset = next(n for n in cluster.config.nodesets if node in n.node_names)
        offering = cluster.config.offerings_of(nodeset)[0]
        settings = asdict(render.node_config(cluster.config, nodeset, node, offering))
        cluster.cloud().launch([LaunchRequest(str(uuid.uuid4()), node, nodeset.name, offering, settings)])

    def _wanted(self) -> str | None:
        return next((n.name for n in self.cluster.client().nodes() if n.has("POWERING_UP")), None)

    def requeue_once_running(self) -> None:
        """Does nothing until the job has started, and nothing more once it is requeued."""
        if not self.requeued and self._starts():
            self.requeued = time.time()
            self.cluster.run("scontrol", "requeue", self.job)

    def seconds(self, demo: Demo) -> float:
        """From the requeue to the second start."""
        demo.wait(
            lambda: len(self._starts()) > 1, 240, f"the second start of job {self.job} on the cluster without spotburst"
        )
        return self._starts()[1] - self.requeued

    def _starts(self) -> list[float]:
        return [float(line) for line in self.cluster.output(self.job).splitlines() if line.replace(".", "").isdigit()]


def describe_attempt(one: Attempt) -> str:
    """Steps, commits and why it ended."""
    begun = f"from step {one.restored_step}" if one.restored_step is not None else "from the start"
    return f"{begun}, {counted(one.commits, 'commit')}, the last at step {one.last_step}; {one.why}"


def again(steps: tuple[int, int], one: Attempt) -> str:
    """What was done again of ``one``'s steps: after a notice it ended at its last commit; else its output tells, line by line."""
    least, most = steps
    return (
        f"{counted(least, 'step')} done again"
        if one.noticed is not None
        else f"{least} to {counted(most, 'step')} done again"
    )


def describe_gap(before: Attempt, after: Attempt) -> str:
    """How the run got from one attempt to the next."""
    between = gap(before, after)
    if before.noticed is not None:
        steps = (
            ("to commit", before.notice_to_commit),
            ("to requeue", between.notice_to_requeue),
            ("to the wrapper's start", between.notice_to_claim),
            ("to training again", between.notice_to_resumed),
        )
        return "from the notice " + ", ".join(f"{text} {value:.1f} s" for text, value in steps if value is not None)
    if before.last_commit is None or after.resumed is None:
        return "it was lost before its first commit"
    return f"from its last commit to training again {after.resumed - before.last_commit:.1f} s"


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


def failure(what: str, folder: Path, load: float, processors: int) -> str:
    """The last lines of a demo that failed: what did, where to look, that time may be the reason, how to go on. ``load``: of the last minute."""
    details = folder / "failure.txt"
    return "\n".join(
        (
            f"\nRESULT FAILED: {what}",
            f"  logs: {folder}/cluster/log, {folder}/alone/log; the jobs' output: {folder}/cluster/jobs"
            + (f"; all that was to be seen: {details}" if details.is_file() else ""),
            f"  other work on this machine? Then it may only have been too slow: load {load:.1f} on {counted(processors, 'processor')}",
            "  to go on: `make demo` again, with nothing else running; if the same fails then, begin with cluster/log/manager.log",
        )
    )


def main() -> int:
    """Run the demo; 0 if all came out the same."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=HERE.parent / ".work" / "demo", help="where everything goes")
    parser.add_argument("--steps", type=int, default=STEPS, help="length of the training")
    parser.add_argument("--step-time", type=float, default=0.05, help="least seconds a step")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    try:
        if folder.exists():
            for name in ("cluster", "alone"):
                LocalCluster(folder / name).stop()
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        demo = Demo(folder, arguments.steps, arguments.step_time)
        if demo.run():
            return 0
        what = "; ".join(demo.failed)
    except LocalCloudError as error:
        print(f"demo: {error}\nRESULT FAILED: it can't run here", file=sys.stderr)
        return 1
    except (SpotburstError, AssertionError, TimeoutError, subprocess.TimeoutExpired) as error:
        what, _, rest = str(error).partition("\n")
        if rest:
            (folder / "failure.txt").write_text(f"{error}\n", encoding="utf-8")
    except KeyboardInterrupt:
        print("demo: stopped; everything that it started is taken down", file=sys.stderr)
        return 130
    sys.stdout.flush()
    print(failure(what, folder, os.getloadavg()[0], os.cpu_count() or 1), file=sys.stderr)
    return 1


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
