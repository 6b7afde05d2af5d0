"""``spotburst checkpoint JOB``: a checkpoint now; the job goes on."""

from __future__ import annotations

from job_wrapper.run import asked
from job_wrapper.store import told
from job_wrapper.store.io_types import Kind
from slurm_plugin.cli import output
from slurm_plugin.cli.acting import SlurmJobArgument, as_owner, commands, find_job, require_running
from slurm_plugin.cli.outcome import Outcome, outcome
from slurm_plugin.cli.source import ClusterOption, ConfigOption, EndpointOption, JsonOption, UriOption, place, settings
from slurm_plugin.cli.target import KeptNameOption, NoWaitOption, WaitOption, at, seconds, target


def command(
    job: SlurmJobArgument,
    name: KeptNameOption = None,
    no_wait: NoWaitOption = False,
    timeout: WaitOption = "10m",
    uri: UriOption = None,
    endpoint_url: EndpointOption = None,
    cluster: ClusterOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Have a running job commit a checkpoint now, and show it. The job goes on."""
    patience, known = seconds(timeout), settings(config)
    client = commands(known)
    shown = find_job(client.jobs(), job)
    require_running(shown, "there is no program to ask for a checkpoint")
    wanted = target(shown, job, name, place(known, uri, endpoint_url, cluster))
    with as_owner(shown):
        client.signal(shown.name_id, asked.SIGNAL.name.removeprefix("SIG"))
    if no_wait:
        text = f"job {shown.name_id} was asked: `spotburst checkpoints {job}` shows what it commits"
        outcome(json, Outcome(shown.name_id, "asked", text, wanted.run))
        return
    entry = wanted.wait(Kind.COMMIT, client, patience)
    commit = entry.summary.commits[-1]
    took = output.duration(told.seconds(entry.body.get("seconds")))
    text = f"job {shown.name_id} committed {at(commit)}, epoch {entry.epoch}" + (f", in {took}" if took else "")
    outcome(json, Outcome(shown.name_id, "committed", text, wanted.run, entry.seq, entry.epoch, commit.step))
