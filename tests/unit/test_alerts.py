"""Alert rules and dashboard: Prometheus takes them, each alert fires when it should and not before, and every metric that they name is told."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_plugin.manager.metrics import Metrics
from slurm_plugin.render import template_folder
from tests.fixtures.unmet import need_program

ALERTS, DASHBOARD = template_folder() / "alerts.yaml", template_folder() / "grafana-dashboard.json"
DOCS = Path(__file__).resolve().parents[2] / "docs/monitoring.md"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
NAMES = [rule["alert"] for rule in RULES]
I = 'instance="127.0.0.1:9464"'  # noqa: E741 - as Prometheus labels what it scrapes
BUCKETS = ("10", "60", "90", "+Inf")

# Of each alert: what the metrics tell, a value a minute, and the minute at which it fires; it must be silent before, at the minute given second.
# Times in the values are Unix seconds, and the tests begin at 0.
CASES: dict[str, tuple[dict[str, str], int, int]] = {
    "SpotburstManagerDown": ({f'up{{job="spotburst",{I}}}': "1 1 0x30"}, 6, 4),
    "SpotburstPassesStalled": ({f"spotburst_last_pass_timestamp_seconds{{{I}}}": "0 60 120 120x30"}, 7, 5),
    "SpotburstPassesSlow": (
        {
            f'spotburst_pass_duration_seconds_bucket{{{I},le="20"}}': "0+1x60",
            f'spotburst_pass_duration_seconds_bucket{{{I},le="40"}}': "0+5x60",
            f'spotburst_pass_duration_seconds_bucket{{{I},le="+Inf"}}': "0+5x60",
        },
        30,
        10,
    ),
    "SpotburstFaultsLast": ({f"spotburst_faults{{{I}}}": "0 1x60"}, 40, 25),
    "SpotburstLedgerLarge": ({f"spotburst_ledger_size_bytes{{{I}}}": "2e9x90"}, 65, 55),
    "SpotburstSlurmctldUnreachable": ({f"spotburst_slurmctld_up{{{I}}}": "1 0x30"}, 4, 2),
    "SpotburstCloudListingOld": ({f'spotburst_cloud_listing_timestamp_seconds{{{I},provider="aws"}}': "0x30"}, 9, 6),
    "SpotburstCheckpointStoreDown": ({f"spotburst_checkpoint_store_up{{{I}}}": "1 0x30"}, 12, 9),
    "SpotburstOwnNetworkSuspect": ({f"spotburst_own_network_suspect{{{I}}}": "0 1x30"}, 5, 3),
    "SpotburstNodesSilent": (
        {f"spotburst_nodes_silent{{{I}}}": "0 2x30", f"spotburst_own_network_suspect{{{I}}}": "0x30"},
        7,
        5,
    ),
    "SpotburstReclaimsMany": (
        {
            f'spotburst_reclaims_total{{{I},nodeset="a"}}': "0 0 0 4 8x30",
            f'spotburst_machines{{{I},provider="aws",market="spot",state="live"}}': "10x40",
        },
        6,
        2,
    ),
    "SpotburstLaunchRefused": (
        {f'spotburst_launches_refused_total{{{I},provider="aws",reason="quota"}}': "0 0 0 1x30"},
        4,
        2,
    ),
    "SpotburstNoCapacity": ({f"spotburst_jobs_without_capacity{{{I}}}": "0 3x90"}, 65, 55),
    "SpotburstMachinesDoNotEnd": (
        {f'spotburst_machines{{{I},provider="aws",market="spot",state="retired"}}': "0 1x60"},
        23,
        18,
    ),
    "SpotburstCostJumped": ({f"spotburst_cost_per_hour{{{I}}}": "2x200 100x70"}, 265, 240),
    "SpotburstCheckpointOld": (
        {
            f'spotburst_job_checkpoint_timestamp_seconds{{{I},job_id="7"}}': "0x60",
            f'spotburst_job_checkpoint_interval_seconds{{{I},job_id="7"}}': "300x60",
        },
        32,
        24,
    ),
    "SpotburstNoticeWithoutCommit": ({f"spotburst_interruptions_without_commit_total{{{I}}}": "0 0 1x30"}, 4, 1),
    "SpotburstNoticeToCommitSlow": (
        {
            f'spotburst_notice_to_commit_seconds_bucket{{{I},le="{le}"}}': f"0 0 {value}x30"
            for le, value in zip(BUCKETS, (0, 1, 9, 9), strict=True)
        },
        5,
        1,
    ),
    "SpotburstJobsGivenUp": ({f"spotburst_jobs_given_up_total{{{I}}}": "0 0 1x30"}, 4, 1),
}


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bspotburst_[a-z0-9_]+", text))


def told() -> set[str]:
    """As Prometheus finds them."""
    found = set()
    for metric in Metrics("c").registry.collect():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(metric.type, ("",))
        found |= {metric.name + suffix for suffix in suffixes}
    return found


def expressions(part: Any) -> Iterator[str]:
    for panel in part["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def promtool(act: str, path: Path) -> str:
    """What it says to a file of rules (``check``) or of tests (``test``), which must be well."""
    done = subprocess.run([need_program("promtool"), act, "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def hold(folder: Path, tests: list[Any]) -> None:
    """These tests of the alerts hold."""
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))
    promtool("test", path)


def test_every_metric_that_is_named_is_told() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert names_in(ALERTS.read_text()) <= told()
    shown = {name for text in expressions(dashboard) for name in names_in(text)}
    assert shown <= told()
    assert {"spotburst_info"} == names_in(json.dumps(dashboard["templating"]))
    assert told() - shown - {"spotburst_info"} <= {
        f"spotburst_{name}"
        for name in ("passes_total", "pass_duration_seconds_sum", "pass_duration_seconds_count", "notice_to_commit_seconds_sum",
                     "notice_to_commit_seconds_count", "checkpoint_interval_seconds")
    }  # fmt: skip


def test_every_metric_and_alert_is_in_the_documents() -> None:
    text = DOCS.read_text()
    assert [name for name in NAMES if f"`{name}`" not in text] == []
    histograms = {re.sub("_(bucket|sum|count)$", "", name) for name in told()}
    assert sorted(histograms - names_in(text)) == []


def test_prometheus_takes_the_rules_and_each_expression_of_the_dashboard(tmp_path: Path) -> None:
    assert f"{len(RULES)} rules found" in promtool("check", ALERTS)
    texts = list(expressions(json.loads(DASHBOARD.read_text())))
    rules = [
        {"record": f"r:{number}", "expr": text.replace("$__rate_interval", "5m").replace("$instance", ".*")}
        for number, text in enumerate(texts)
    ]
    path = tmp_path / "dashboard.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", path)


def test_each_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    assert sorted(CASES) == sorted(NAMES)
    fires: list[Any] = []
    for name, (series, when, before) in CASES.items():
        told_series = [{"series": one, "values": values} for one, values in series.items()]
        rule = next(rule for rule in RULES if rule["alert"] == name)
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        fires.append(
            {
                "name": name,
                "interval": "1m",
                "input_series": told_series,
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                        "eval_time": f"{minute}m",
                        "exp_samples": [{"labels": "{}", "value": wanted}],
                    }
                    for minute, wanted in ((before, 0), (when, 1))
                ],
            }
        )
    hold(tmp_path, fires)


def test_the_rules_speak_when_nothing_is_wrong(tmp_path: Path) -> None:
    """A manager that is well: no alert in five hours."""
    well = {
        f'up{{job="spotburst",{I}}}': "1x300",
        f"spotburst_last_pass_timestamp_seconds{{{I}}}": "0+60x300",
        f"spotburst_faults{{{I}}}": "0x300",
        f"spotburst_slurmctld_up{{{I}}}": "1x300",
        f'spotburst_cloud_listing_timestamp_seconds{{{I},provider="aws"}}': "0+60x300",
        f'spotburst_reclaims_total{{{I},nodeset="a"}}': "0+0.05x300",
        f'spotburst_launches_refused_total{{{I},provider="aws",reason="no-capacity"}}': "0+1x300",
        f'spotburst_machines{{{I},provider="aws",market="spot",state="live"}}': "10x300",
        f"spotburst_cost_per_hour{{{I}}}": "25x300",
        f'spotburst_job_checkpoint_timestamp_seconds{{{I},job_id="7"}}': "0+60x300",
        f'spotburst_job_checkpoint_interval_seconds{{{I},job_id="7"}}': "300x300",
    }
    quiet = {
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in well.items()],
        "promql_expr_test": [
            {"expr": 'count(ALERTS{alertstate="firing"}) or vector(0)', "eval_time": f"{m}m", "exp_samples": [{"labels": "{}", "value": 0}]}
            for m in (10, 100, 300)
        ],
    }  # fmt: skip
    hold(tmp_path, [quiet])


@pytest.mark.parametrize("name", sorted(told()))
def test_names_follow_prometheus_rules(name: str) -> None:
    assert re.fullmatch(r"spotburst_[a-z][a-z0-9]*(_[a-z0-9]+)*", name)
