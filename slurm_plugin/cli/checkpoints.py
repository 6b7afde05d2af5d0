"""``spotburst checkpoints JOB``: what was committed and what of it is still there. Deleting is `free`'s."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from job_wrapper.counted import counted
from job_wrapper.errors import Damaged, ExitCode, ObjectMissing
from job_wrapper.store import read_manifest, read_part, told, verify_checkpoint
from job_wrapper.store.checkpoint_codec import PACK_SIZES
from job_wrapper.store.io_types import CommitRef, Entry, Kind, ObjectStore
from job_wrapper.transfer import Shown, may_draw
from slurm_plugin.cli import free, output
from slurm_plugin.cli.source import (
    ClusterOption,
    ConfigOption,
    EndpointOption,
    JobArgument,
    JsonOption,
    NameOption,
    UriOption,
    open_run,
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One commit. Sizes in bytes, None where it is not kept: ``uploaded`` is less than ``size`` where items did not change."""

    entry: int
    epoch: int
    step: int | None
    time: float
    seconds: float | None
    urgent: bool
    size: int | None
    uploaded: int | None
    state: str
    error: str | None = None


class _JobFirst(TyperGroup):
    """``checkpoints JOB`` is ``checkpoints show JOB``: what is no command's name is a job's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Options may stand before the job."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_JobFirst,
    help="Show the checkpoints of a job, or delete them: `spotburst checkpoints JOB` shows.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("delete")(free.delete)
app.command("prune")(free.prune)


@app.command("show")
def command(
    job: JobArgument,
    name: NameOption = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte of the kept ones and check it.")] = False,
    uri: UriOption = None,
    endpoint_url: EndpointOption = None,
    cluster: ClusterOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show the checkpoints of a job.

    Committed when, how large, kept or deleted; with --verify, whether they are whole. UPLOADED is less than SIZE where content did not
    change.
    """
    run = open_run(job, name, uri, endpoint_url, cluster, config)
    found = checkpoints(run.where.store, run.log.entries(), verify=verify)
    if json:
        output.as_json([asdict(one) for one in found])
    elif not found:
        output.console().print("no checkpoint yet")
    else:
        headings = ("ENTRY", "EPOCH", "STEP", "COMMITTED", "TOOK", "SIZE", "UPLOADED", "STATE")
        output.table(
            headings,
            (
                [
                    one.entry,
                    one.epoch,
                    one.step,
                    output.moment(one.time),
                    output.duration(one.seconds),
                    output.size(one.size),
                    output.size(one.uploaded),
                    one.state,
                ]
                for one in found
            ),
        )
        output.lines("Damage", (f"entry {one.entry}: {one.error}" for one in found if one.error))
    if any(one.error for one in found):
        raise typer.Exit(int(ExitCode.RESTORE_FAILED))


def checkpoints(store: ObjectStore, entries: list[Entry], *, verify: bool) -> list[Checkpoint]:
    """Every commit of the log, oldest first. Raises ``StoreError`` where the store can't be asked; damage is told, not raised."""
    summary = entries[-1].summary if entries else None
    kept = {commit.seq: commit for commit in summary.commits} if summary else {}
    failed = summary.failed_restores if summary else {}
    known: set[str] = set()
    return [
        _checkpoint(store, e, kept.get(e.seq), failed.get(e.seq, 0), known, verify)
        for e in entries
        if e.kind is Kind.COMMIT
    ]


def _checkpoint(
    store: ObjectStore, entry: Entry, kept: CommitRef | None, failures: int, known: set[str], verify: bool
) -> Checkpoint:
    size = uploaded = error = None
    state = "deleted"
    if kept is not None:
        try:
            size, uploaded = _sizes(store, kept, known)
            if verify:
                with _checking(entry.seq)(size) as tell:
                    verify_checkpoint(store, kept.manifest, tell=tell)
            state = "verified" if verify else "kept"
        except (Damaged, ObjectMissing) as fault:
            state, error = "damaged", str(fault)
        if failures and error is None:
            state += f", failed to restore {counted(failures, 'time')}"
    return Checkpoint(
        entry=entry.seq,
        epoch=entry.epoch,
        step=told.whole(entry.body.get("step")),
        time=entry.time,
        seconds=told.seconds(entry.body.get("seconds")),
        urgent=bool(entry.body.get("urgent")),
        size=size,
        uploaded=uploaded,
        state=state,
        error=error,
    )


def _checking(seq: int) -> Shown:
    return Shown(f"checking entry {seq}", lambda text: print(f"spotburst: {text}", file=sys.stderr), bar=may_draw())


def _sizes(store: ObjectStore, commit: CommitRef, known: set[str]) -> tuple[int, int]:
    """(bytes of content, bytes of it written for this commit). ``known`` holds the parts of earlier commits: those were not written again."""
    manifest = read_manifest(store, commit.manifest)
    size = uploaded = 0
    for ref in manifest.parts.values():
        part = read_part(store, ref)
        size += sum(item.length for item in part.items)
        if ref.key in known:
            continue
        known.add(ref.key)
        # A part's own packs are named after it; those of other names were there before.
        stem = ref.key.removesuffix(".part") + "-"
        packs = part.attributes.get(PACK_SIZES, {})
        uploaded += sum(length for pack, length in packs.items() if pack.startswith(stem))
    return size, uploaded
