"""Scenes: each job template of ``examples/``, and the jobs of docs/beside.md's other tools, reclaimed once and gone on with."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping

from job_wrapper.errors import ExitCode
from job_wrapper.store.io_types import Kind
from tests.cluster.counting import Handle, Stage
from tests.fixtures.pages import ROOT, block
from tests.fixtures.terminal import Terminal
from tests.fixtures.unmet import unmet

EXAMPLES = ROOT / "examples"
PATIENCE = 600.0
"""Seconds: each attempt of some imports torch, beside all the others."""


def submit(stage: Stage, template: str, *words: object, options: tuple[str, ...] = (), **environment: str) -> Handle:
    """``sbatch`` of a template from its own folder, as its first lines say."""
    answer = stage.cluster.run(
        *("sbatch", "--parsable", f"--output={stage.cluster.root}/jobs/%A_%a.out", *options, template),
        *map(str, words),
        env=environment,
        cwd=EXAMPLES,
    )
    return Handle(stage, answer.strip())


def reclaim(stage: Stage, job: Handle) -> None:
    """Take its node, once its program has said something."""
    stage.cluster.cloud().reclaim(job.now.nodes[0])


def completed(job: Handle) -> None:
    """Wait until it is done, in two attempts."""
    job.until_state("COMPLETED", timeout=PATIENCE)
    assert job.kinds(Kind.END) == ["Finished"]
    assert job.interrupted == ["aws reclaim"]
    assert job.now.restart_count == 1


def numbers(before: str, text: str) -> list[int]:
    """The numbers that follow those words, line by line."""
    return [int(n) for n in re.findall(rf"^{re.escape(before)} (\d+)", text, re.MULTILINE)]


def state_directory(stage: Stage) -> None:
    """heat.sbatch: the result is that of an undisturbed run, to the last digit."""
    result, alone = stage.cluster.root / "rod", stage.cluster.root / "alone"
    alone.mkdir()
    job = submit(stage, "heat.sbatch", 60, 1, result, STATE="/run/heat")
    job.until(lambda: numbers("begins at step", job.output), "its program")
    job.until(lambda: len(job.kinds(Kind.COMMIT)) > 2, "a step that is saved")
    reclaim(stage, job)
    completed(job)
    begun = numbers("begins at step", job.output)
    assert len(begun) == 2
    assert 0 == begun[0] < begun[1] < 60
    undisturbed = alone / "result"
    subprocess.run(
        ["sh", EXAMPLES / "heat.sh", "60", "0", undisturbed],
        env={**os.environ, "SPOTBURST_STATE_DIR": str(alone)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    assert result.read_text() == undisturbed.read_text()


def array(stage: Stage) -> None:
    """array.sbatch: one task is brought back and goes on in its list; the other never notices."""
    folder = stage.cluster.root / "items"
    folder.mkdir()
    jobs = submit(stage, "array.sbatch", 30, 1, folder, options=("--array=1-2",)).id
    one, two = Handle(stage, f"{jobs}_1"), Handle(stage, f"{jobs}_2")
    one.until(lambda: (folder / "1-4").exists(), "its fourth item: it has told of the third")
    reclaim(stage, one)
    completed(one)
    two.until_state("COMPLETED", timeout=PATIENCE)
    assert two.now.restart_count == 0
    assert {path.name for path in folder.iterdir()} == {f"{t}-{n}" for t in (1, 2) for n in range(1, 31)}
    begun = numbers("task 1 begins after item", one.output)
    assert len(begun) == 2
    assert 3 <= begun[1] < 30


def lightning(stage: Stage) -> None:
    """train_lightning.sbatch: each step once, and Lightning's own requeueing leaves the job to the wrapper."""
    job = submit(stage, "train_lightning.sbatch", "--epochs", 4, "--step-time", 1.5)
    job.until(lambda: 3 in numbers("step", job.output), "its third step", PATIENCE)
    reclaim(stage, job)
    completed(job)
    assert numbers("step", job.output) == list(range(1, 29))


def transformers(stage: Stage) -> None:
    """train_hf.sbatch, undisturbed; resumed it is in tests/unit/checkpoint/test_examples.py."""
    job = submit(stage, "train_hf.sbatch", "--epochs", 1)
    job.until_state("COMPLETED", timeout=PATIENCE)
    assert job.kinds(Kind.END) == ["Finished"]
    assert numbers("step", job.output) == list(range(1, 8))


def session(environ: Mapping[str, str]) -> Terminal:
    """session.sh on a terminal of its own."""
    return Terminal(["sh", EXAMPLES / "session.sh", "mine"], {**environ, "STATE": "/run/session", "SHELL": "/bin/sh"})


def interactive(stage: Stage) -> None:
    """session.sh: its folder is saved when the node goes away, and found again by the same command."""
    with session(stage.cluster.environment) as terminal:
        terminal.until("epoch 1", PATIENCE)
        terminal.type("echo kept > /run/session/file; echo on $SLURMD_NODENAME.\n")
        terminal.until("on spot-", PATIENCE)
        terminal.until(".", PATIENCE)
        (node,) = re.findall(r"on (spot-\d+)\.", terminal.text)
        stage.cluster.cloud().reclaim(node, notice=60)
        terminal.until("*** This node goes away", PATIENCE)
        assert terminal.end() == ExitCode.PREEMPTED
    with session(stage.cluster.environment) as terminal:
        terminal.until("going on from the checkpoint", PATIENCE)
        terminal.type("echo it is $(cat /run/session/file).; exit\n")
        terminal.until("it is kept.", PATIENCE)
        assert terminal.end() == 0


def submitit(stage: Stage) -> None:
    """docs/beside.md's program: submitit's own signal does not have it requeued, a reclaim does, and its result is the function's."""
    folder = stage.cluster.root / "submitit"
    folder.mkdir()
    program = folder / "program.py"
    # Longer than it takes, however busy the machine is, to do all this to it.
    text = block("docs/beside.md", "python", "import submitit").replace("(count, 150)", "(count, 400)")
    program.write_text(text, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, program],
        cwd=folder,
        env=stage.cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as submitting:
        assert submitting.stdout is not None
        job = Handle(stage, submitting.stdout.readline().strip())
        job.until_committed(1)
        stage.cluster.run("scancel", "--signal=USR2", job.id)
        log = folder / "submitit" / f"{job.id}_0_log.err"
        job.until(lambda: "SIGUSR2 received" in log.read_text(errors="replace"), "the signal")
        assert job.now.running
        reclaim(stage, job)
        said = submitting.communicate(timeout=PATIENCE)[0]
    found = re.search(r"^\((\d+), 400\)$", said, re.MULTILINE)
    assert found, said
    assert 0 < int(found[1]) < 400, "it went on from its checkpoint"
    completed(job)


def snakemake(stage: Stage) -> None:
    """docs/beside.md's rule and command: the workflow waits for the job that is requeued, and ends well."""
    if shutil.which("snakemake", path=stage.cluster.environment["PATH"]) is None:
        unmet("needs snakemake, which needs Python 3.11")
    folder = stage.cluster.root / "snakemake"
    bin_dir = folder / "bin"
    bin_dir.mkdir(parents=True)
    rule = block("docs/beside.md", "", "rule heat:").replace("sh heat.sh 60 0.3", f"sh {EXAMPLES}/heat.sh 60 1")
    (folder / "Snakefile").write_text(f'rule all:\n    input: "rod-1"\n\n{rule}', encoding="utf-8")
    # The executor drops SLURM_CONF; on other clusters slurm.conf is where Slurm looks by itself.
    srun = bin_dir / "srun"
    srun.write_text(f'#!/bin/sh\nSLURM_CONF={stage.cluster.slurm_conf} exec /usr/bin/srun "$@"\n', encoding="utf-8")
    srun.chmod(0o755)
    command = block("docs/beside.md", "sh", "snakemake --executor").split()
    log = folder / "log"
    environment = stage.cluster.environment
    with (
        log.open("w") as out,
        subprocess.Popen(
            [*command, "--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "5"],
            cwd=folder,
            env={**environment, "PATH": f"{bin_dir}:{environment['PATH']}", "HOME": str(folder)},
            stdout=out,
            stderr=subprocess.STDOUT,
        ) as workflow,
    ):
        try:
            stage.wait(lambda: re.search(r"SLURM jobid \d+\D", log.read_text()), "Snakemake's job", PATIENCE)
            (number,) = re.findall(r"SLURM jobid (\d+)", log.read_text())
            job = Handle(stage, number)
            job.until_committed(1, PATIENCE)
            reclaim(stage, job)
            job.until_committed(2, PATIENCE)
            assert workflow.wait(timeout=PATIENCE) == 0, log.read_text()
        finally:
            if workflow.poll() is None:
                workflow.terminate()
    assert (folder / "rod-1").read_text().startswith("60\n")
    assert job.interrupted == ["aws reclaim"]
    assert job.kinds(Kind.END) == ["Finished"]
