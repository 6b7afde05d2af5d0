"""``spotburst shell JOB``: a shell on a running job's node, in the environment and the folder of its program."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from job_wrapper.errors import UsageError
from slurm_plugin.cli import completion
from slurm_plugin.cli.acting import NotPossible, SlurmJobArgument, commands, find_job, require_running
from slurm_plugin.cli.source import ConfigOption, settings
from slurm_plugin.slurm.command import environment
from slurm_plugin.slurm.records import Job

INSIDE = r"""
job=$1; shift
oldest() {
    for folder in $(ls -d /proc/[0-9]* 2>/dev/null | sort -t / -k 3 -n); do
        lines=$( (tr '\0' '\n' <"$folder/environ") 2>/dev/null) || continue
        printf '%s\n' "$lines" | grep -q '^SPOTBURST_SHELL=' && continue
        printf '%s\n' "$lines" | grep -q -x "SLURM_JOB_ID=$job" || continue
        printf '%s\n' "$lines" | grep -q "$1" && return
    done
    return 1
}
# The program under the wrapper; else the job's first step; else its batch script.
if oldest '^SPOTBURST_EPOCH=' || oldest '^SLURM_STEP_ID=[0-9]' || oldest '^SLURM_JOB_ID='; then
    cd "$folder/cwd" || echo "spotburst: the program's folder can't be entered; here is $PWD" >&2
    shell=$(printf '%s\n' "$lines" | sed -n 's/^SHELL=//p' | head -n 1)
    [ $# -gt 0 ] || set -- "${shell:-/bin/sh}"
    # Not by env(1): a program's arguments are everybody's to read, and its environment may hold keys.
    exec python3 -I -c '
import os, sys
own = dict(one.split(b"=", 1) for one in open(sys.argv[1], "rb").read().split(b"\0") if b"=" in one)
# A second program on the wrapper'\''s socket would answer for the first: the shell'\''s programs see none.
own.update({b"TERM": os.environb.get(b"TERM", b"dumb"), b"SPOTBURST_SHELL": b"1", b"SPOTBURST_SOCKET": b"", b"SPOTBURST_RUN": b""})
try:
    os.execvpe(sys.argv[2], sys.argv[2:], own)
except OSError as error:
    sys.exit(f"{sys.argv[2]}: {error.strerror}")
' "$folder/environ" "$@"
fi
echo "spotburst: job $job has no process of yours here yet: the shell has srun's environment" >&2
[ $# -gt 0 ] || set -- "${SHELL:-/bin/sh}"
exec "$@"
"""
"""What runs on the node: POSIX shell and any Python 3, so that nothing of spotburst need be on its PATH. Arguments: job, command."""


def command(
    job: SlurmJobArgument,
    program: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND ...]", help="Run this instead of a shell.", show_default=False),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option("--node", help="Which of the job's nodes; else its first.", autocompletion=completion.nodes),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Open a shell on a running job's node, in its program's environment and folder.

    It is a step of the job (srun --overlap): it ends with the job, and what it uses is the job's.
    """
    known = settings(config)
    shown = find_job(commands(known).jobs(), job)
    require_running(shown, "there is no node to open a shell on")
    if shown.user_id != os.geteuid():
        raise NotPossible(
            f"job {job} belongs to {shown.user}: Slurm lets only that user start a step in it, not even root"
        )
    where = _node(shown, node)
    conf = known.slurm.conf if known is not None else None
    bin_dir = known.slurm.bin_dir if known is not None else None
    environ = {**environment(os.environ, conf), "SPOTBURST_SHELL": "1"}
    environ.pop("LC_ALL", None)
    if "LC_ALL" in os.environ:
        environ["LC_ALL"] = os.environ["LC_ALL"]
    srun = str(bin_dir / "srun") if bin_dir is not None else shutil.which("srun", path=environ["PATH"]) or "srun"
    arguments = srun_arguments(shown, where, program or [], terminal=sys.stdin.isatty())
    sys.stdout.flush()
    try:
        os.execve(srun, [srun, *arguments], environ)  # noqa: S606 - the step replaces this command, as ssh would
    except OSError as error:
        raise UsageError(f"{srun}: can't be run: {error.strerror}; install Slurm's client commands") from error


def _node(job: Job, wanted: str | None) -> str:
    if wanted is None:
        return job.nodes[0]
    if wanted not in job.nodes:
        raise UsageError(f"--node {wanted}: job {job.name_id} runs on {', '.join(job.nodes)}")
    return wanted


def srun_arguments(job: Job, node: str, program: Sequence[str], *, terminal: bool) -> list[str]:
    """Of the srun that attaches to the job beside its own steps. Pure."""
    pty = ["--pty"] if terminal else []
    one = ("--nodes=1", "--ntasks=1", f"--nodelist={node}", "--chdir=/")
    return [f"--jobid={job.job_id}", "--overlap", *one, *pty, "sh", "-c", INSIDE, "sh", str(job.job_id), *program]
