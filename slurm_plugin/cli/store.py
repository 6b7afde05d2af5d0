"""``spotburst store …``: the checkpoint store itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from job_wrapper.errors import ExitCode, UsageError
from job_wrapper.node_config import load_node_config
from job_wrapper.store import check_store
from slurm_plugin.cli import output
from slurm_plugin.cli.source import ConfigOption, EndpointOption, JsonOption, settings

app = typer.Typer(help="The checkpoint store itself.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """The checkpoint store itself."""


@app.command()
def check(
    uri: Annotated[
        str | None, typer.Argument(metavar="URI", help="Else what burst.yaml or node.json says.", show_default=False)
    ] = None,
    endpoint_url: EndpointOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Prove by trying that a store is safe for checkpoints, and measure it. Leaves nothing behind but the mark of a safe store."""
    if uri is None:
        known = settings(config)
        node = load_node_config()
        uri = known.checkpoints.uri if known else node.uri
        if endpoint_url is None:
            endpoint_url = (known.checkpoints.endpoint_url if known else node.endpoint_url) or ""
    if not uri:
        raise UsageError("no place of checkpoints is known here (no readable burst.yaml, no node.json): name a URI")
    report = check_store(uri, endpoint_url or "")
    if json:
        output.as_json(asdict(report))
    else:
        if report.proofs:
            rows = ([p.name, "ok" if p.kept else "FAIL", p.detail] for p in report.proofs)
            output.table(("PROMISE", "KEPT", "SEEN"), rows)
        if report.measured_bytes:
            output.facts(
                [
                    ("create a log entry", f"{report.create_seconds * 1000:.1f} ms"),
                    ("read one", f"{report.read_seconds * 1000:.1f} ms"),
                    ("list a log", f"{report.list_seconds * 1000:.1f} ms"),
                    ("write", f"{output.size(int(report.write_speed))}/s"),
                    ("read and verify", f"{output.size(int(report.read_speed))}/s"),
                ]
            )
        output.console().print(report.verdict)
    if not report.safe:
        raise typer.Exit(int(ExitCode.STORE_REFUSED))
