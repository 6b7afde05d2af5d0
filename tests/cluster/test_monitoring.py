"""A real Prometheus that scrapes the manager of a real cluster tells of a reclaim what happened, and takes our alarms."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.settings import default_settings
from slurm_plugin.render import template_folder
from tests.cluster.counting import Stage
from tests.fixtures.ports import free_ports
from tests.fixtures.server import Server, running
from tests.fixtures.unmet import need_program

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own
        return str(answer.read().decode())


class Prometheus:
    """Scrapes a manager each second."""

    def __init__(self, folder: Path, manager: int) -> None:
        self._folder = folder
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(template_folder() / "alerts.yaml")],
            "scrape_configs": [
                {"job_name": "spotburst", "static_configs": [{"targets": [f"127.0.0.1:{manager}"]}]},
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))

    def server(self, port: int) -> Server:
        """For ``running``."""
        self._url = f"http://127.0.0.1:{port}"
        command = [
            *(need_program("prometheus"), f"--config.file={self._folder}/prometheus.yml"),
            *(f"--storage.tsdb.path={self._folder}/data", f"--web.listen-address=127.0.0.1:{port}"),
        ]
        log = self._folder / "prometheus.log"
        return Server("prometheus", command, self._url, {}, log, lambda: bool(read(f"{self._url}/-/ready")))

    def _asked(self, path: str, **words: str) -> Any:
        return json.loads(read(f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(words)}"))["data"]

    def value(self, expression: str) -> float | None:
        """Of an expression with one series; None where there is none."""
        found = self._asked("query", query=expression)["result"]
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def alarms(self) -> tuple[set[str], set[str]]:
        """(Names of all rules that could be reckoned, those of them that fire)."""
        rules = [rule for group in self._asked("rules")["groups"] for rule in group["rules"]]
        assert {rule["lastError"] for rule in rules if rule.get("lastError")} == set()
        return {rule["name"] for rule in rules if rule["health"] == "ok"}, {
            r["name"] for r in rules if r["state"] == "firing"
        }


@pytest.fixture
def stage(make_cluster: Callable[..., LocalCluster]) -> Stage:
    plan = default_settings(nodes=2)
    plan["monitoring"] = {"port": free_ports(1)[0]}
    return Stage(make_cluster(settings=plan), "22.05")


@pytest.fixture
def prometheus(stage: Stage, tmp_path: Path) -> Iterator[Prometheus]:
    made = Prometheus(tmp_path, stage.cluster.config.monitoring.port)
    with running(made.server):
        yield made


def test_a_reclaim_in_what_prometheus_scrapes(stage: Stage, prometheus: Prometheus) -> None:
    def until(expression: str, wanted: float) -> None:
        stage.wait(lambda: prometheus.value(expression) == wanted, f"{expression} to be {wanted}")

    stage.boot(["spot-1", "spot-2"])
    until('sum(spotburst_machines{state="live"})', 2)
    # There from the start: of a series that begins with its first event `increase` sees nothing.
    for name in ("reclaims", "requeues"):
        until(f"sum(spotburst_{name}_total)", 0)
    job = stage.counting()
    until('spotburst_jobs{state="running"}', 1)
    # The manager reads the runs when a job begins or ends: this one's, which had no log yet when it began itself.
    stage.submit("sleep 5")
    until(f'time() - spotburst_job_checkpoint_timestamp_seconds{{job_id="{job.id}"}} < bool 120', 1)
    page = read(f"http://127.0.0.1:{stage.cluster.config.monitoring.port}/")
    assert job.now.nodes[0] in page
    assert f">{job.id}<" in page

    before = time.time()
    stage.cluster.cloud().reclaim(job.now.nodes[0])
    job.until_back()
    for name in ("reclaims_total", "requeues_total", "notice_to_commit_seconds_count"):
        until(f"sum(spotburst_{name})", 1)
    took = prometheus.value("sum(spotburst_notice_to_commit_seconds_sum)")
    assert took is not None
    assert 0 < took < time.time() - before
    until(f'time() - spotburst_job_checkpoint_timestamp_seconds{{job_id="{job.id}"}} < bool 120', 1)
    job.finish()
    until('spotburst_jobs{state="running"}', 0)
    until(f'absent(spotburst_job_checkpoint_timestamp_seconds{{job_id="{job.id}"}})', 1)
    known, firing = prometheus.alarms()
    assert known == {
        rule["alert"]
        for group in yaml.safe_load((template_folder() / "alerts.yaml").read_text())["groups"]
        for rule in group["rules"]
    }
    assert firing == set()
