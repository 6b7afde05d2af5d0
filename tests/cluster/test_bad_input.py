"""Bad input, as a user gives it with sbatch: one clear message that says what to do, before any work is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from job_wrapper.errors import ExitCode
from slurm_plugin.local_cluster.cluster import LocalCluster
from tests.fixtures.addresses import host_address
from tests.fixtures.careless_s3 import careless_s3

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def cluster(make_module_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    """One spot node."""
    return make_module_cluster(1)


def run(
    cluster: LocalCluster, mark: Path, options: str, *sbatch: str, env: dict[str, str] | None = None
) -> tuple[int, str]:
    """Exit code and output of a job whose program would make the file ``mark``; of another one where Slurm was too busy to tell how it stands."""
    job = cluster.submit(f"srun spotburst run {options} -- touch {mark}", *sbatch, env=env)
    over = ("COMPLETED", "FAILED", "CANCELLED")
    cluster.wait_for(
        lambda: cluster.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip() in over, 240, f"job {job}'s end"
    )
    shown = next(j for j in cluster.client().jobs() if j.job_id == int(job))
    output = cluster.output(job)
    assert "Traceback" not in output
    if "Slurm does not answer (squeue)" in output:
        mark.unlink(missing_ok=True)
        return run(cluster, mark, options, *sbatch, env=env)
    return shown.exit_code, output


def test_no_requeue(cluster: LocalCluster, tmp_path: Path) -> None:
    code, output = run(cluster, tmp_path / "ran", "", "--no-requeue")
    assert code == ExitCode.NOT_REQUEUEABLE
    assert "#SBATCH --requeue" in output
    assert not (tmp_path / "ran").exists()
    code, _ = run(cluster, tmp_path / "ran", "--on-interruption fail", "--no-requeue")
    assert code == 0
    assert (tmp_path / "ran").exists()


def test_a_place_that_can_not_be_written(cluster: LocalCluster, tmp_path: Path) -> None:
    code, output = run(cluster, tmp_path / "ran", "--uri file:///proc/checkpoints")
    assert code == ExitCode.STORE_REFUSED
    assert "file:///proc/checkpoints" in output
    code, output = run(cluster, tmp_path / "ran", "--uri nonsense")
    assert code == ExitCode.STORE_REFUSED
    assert "s3://bucket/prefix" in output
    assert not (tmp_path / "ran").exists()


def test_a_store_that_ignores_put_if_absent(cluster: LocalCluster, tmp_path: Path) -> None:
    with host_address("10.76.0.2") as address, careless_s3(address) as url:
        code, output = run(cluster, tmp_path / "ran", f"--uri s3://bucket/runs --endpoint-url {url}", env=KEYS)
    assert code == ExitCode.STORE_REFUSED
    assert "put-if-absent" in output
    assert not (tmp_path / "ran").exists()


def test_wrong_arguments(cluster: LocalCluster, tmp_path: Path) -> None:
    code, output = run(cluster, tmp_path / "ran", "--intervall 3m")
    assert code == ExitCode.USAGE
    assert "--intervall" in output
    assert not (tmp_path / "ran").exists()


def test_an_unknown_key_in_burst_yaml(cluster: LocalCluster, tmp_path: Path) -> None:
    wrong = tmp_path / "burst.yaml"
    wrong.write_text(cluster.config_path.read_text().replace("suspend_time:", "suspendtime:"))
    for command in ("manager", "check"):
        output = cluster.run("spotburst", command, "--config", wrong, check=False)
        assert "Traceback" not in output
        assert f"{wrong}: power.suspendtime: unknown key" in output
        assert "suspend_time" in output


def test_no_slurm_conf(cluster: LocalCluster, tmp_path: Path) -> None:
    lost = tmp_path / "burst.yaml"
    text = cluster.config_path.read_text().replace(str(cluster.slurm_conf), "/nowhere/slurm.conf")
    lost.write_text(text.replace(str(cluster.config.state_dir), str(tmp_path / "state")))
    for command in ("manager", "check"):
        output = cluster.run("spotburst", command, "--config", lost, check=False, env={"SLURM_CONF": ""})
        assert "Traceback" not in output
        assert "/nowhere/slurm.conf" in output
