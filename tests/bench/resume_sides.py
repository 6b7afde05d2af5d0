"""The two sides of ``bench_resume``: a private Slurm whose ResumeProgram is ours or the reference's, everything else the same.

The reference is aws-parallelcluster-node from PyPI, installed into a temporary folder: the newest version that a Slurm before 25.11 can serve
(3.16 sets InstanceId of many nodes at once). What it lacks here is stood in for: ``sudo`` runs what follows it, its daemon's heartbeat is a
file, and SLURM_RESUME_FILE gets the member names of Slurm 23.02. Its daemon, clustermgtd, does not run, which spares it that work.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from slurm_plugin import render
from slurm_plugin.local_cluster.cluster import LocalCluster
from tests.bench.resume_server import TEMPLATE, TYPE, ZONE
from tests.fixtures.moto_ec2 import REGION

REFERENCE, VERSION = "aws-parallelcluster-node", "3.15.0"
NODES = 1000
NODE_NAMES = f"q-dy-c-[1-{NODES}]"
"""As the reference wants them: queue, "dynamic", resource, number."""
CLUSTER = TEMPLATE.split("-")[0]
COUNTED = ("scontrol", "squeue", "sinfo")

_COUNTING = """\
#!/bin/bash
echo "$EPOCHREALTIME {name}" >>{log}
exec {program} "$@"
"""
_MEASURED = """\
import json, os, sys, time

log, *command = sys.argv[1:]


def note(**found):
    with open(log, "a") as file:
        file.write(json.dumps(found) + "\\n")


began = time.time()
note(began=began)
_, status, used = os.wait4(os.spawnv(os.P_NOWAIT, command[0], command), 0)
note(ended=time.time(), took=time.time() - began, memory=used.ru_maxrss * 1024, cpu=used.ru_utime + used.ru_stime, status=status)
"""
_REFERENCE = """\
import json, logging, os, tempfile

with open(os.environ["SLURM_RESUME_FILE"]) as file:
    told = json.load(file)
for job in told["jobs"]:
    both = job.get("nodes")
    words = {"nodes_alloc": both, "nodes_resume": both, "oversubscribe": "OK"} | job
    job.clear()
    job.update({k: words[k] for k in ("job_id", "nodes_alloc", "nodes_resume", "oversubscribe")})
with tempfile.NamedTemporaryFile("w", delete=False, dir=os.path.dirname(__file__)) as file:
    json.dump(told, file)
os.environ["SLURM_RESUME_FILE"] = file.name
# Where the root logger has a handler it does not open its own file in /var/log.
logging.root.addHandler(logging.NullHandler())

from slurm_plugin.resume import main

main()
"""
_REFERENCE_CONF = """\
[slurm_resume]
cluster_name = {cluster}
region = {region}
dynamodb_table = nodes
head_node_private_ip = 127.0.0.1
head_node_hostname = head
fleet_config_file = {folder}/fleet.json
clustermgtd_heartbeat_file_path = {folder}/heartbeat
logging_config = {folder}/logging.conf
"""
_LOGGING = """\
[loggers]
keys=root
[handlers]
keys=file
[formatters]
keys=plain
[logger_root]
level=INFO
handlers=file
[formatter_plain]
format=%(asctime)s - %(levelname)s - %(message)s
[handler_file]
class=FileHandler
level=INFO
formatter=plain
args=("{folder}/resume.log",)
"""


class Programs:
    """What Slurm is to run on one side, made in ``folder``; and what was noted of that."""

    def __init__(self, folder: Path, python_path: Path | None, server: Mapping[str, str], slurm_conf: Path) -> None:
        """``python_path``: where the reference is installed; None: our side."""
        self.folder = folder
        self.bin_dir = folder / "bin"
        self.bin_dir.mkdir(parents=True)
        for name in COUNTED:
            _script(
                self.bin_dir / name, _COUNTING.format(name=name, log=folder / "commands", program=f"/usr/bin/{name}")
            )
        _script(self.bin_dir / "sudo", '#!/bin/sh\nexec "$@"\n')
        measured = folder / "measured.py"
        measured.write_text(_MEASURED)
        run: list[Path | str] = [sys.executable, measured, folder / "programs"]
        if python_path is None:
            exports: dict[str, Any] = {}
            run.append(render.Programs.beside_python().resume)
        else:
            exports = self._reference(python_path, server, slurm_conf)
            run += [sys.executable, folder / "reference.py"]
        lines = [f"export {k}={v}" for k, v in exports.items()]
        words = " ".join(map(str, run))
        self.resume = _script(folder / "resume", "\n".join(["#!/bin/sh", *lines, f'exec {words} "$@"', ""]))

    def _reference(self, python_path: Path, server: Mapping[str, str], slurm_conf: Path) -> dict[str, Any]:
        """Its settings; the environment that it needs."""
        folder = self.folder
        resource = {
            "Api": "create-fleet",
            "CapacityType": "spot",
            "AllocationStrategy": "price-capacity-optimized",
            "Instances": [{"InstanceType": TYPE}],
            "Networking": {"SubnetIds": [server["subnet"]]},
        }
        texts = {
            "reference.py": _REFERENCE,
            "resume.conf": _REFERENCE_CONF.format(cluster=CLUSTER, region=REGION, folder=folder),
            "logging.conf": _LOGGING.format(folder=folder),
            "fleet.json": json.dumps({"q": {"c": resource}}),
            "heartbeat": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f%z"),
        }
        for name, text in texts.items():
            (folder / name).write_text(text)
        return {
            "PATH": f"{self.bin_dir}:/usr/bin:/bin",
            "PYTHONPATH": python_path,
            "CONFIG_FILE": folder / "resume.conf",
            "SLURM_BINARIES_DIR": self.bin_dir,
            "SLURM_CONF": slurm_conf,
            "AWS_ENDPOINT_URL": server["endpoint"],
            "AWS_DEFAULT_REGION": REGION,
            **{k: os.environ[k] for k in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")},
        }

    def commands(self, began: float, ended: float, *names: str) -> int:
        """How often Slurm's commands of these names were run, between two times in Unix seconds."""
        log = self.folder / "commands"
        found = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        return sum(began <= float(at) <= ended and name in names for at, name in found)

    def runs(self) -> list[dict[str, float]]:
        """Each start (``began``) and each end (``ended``, ``took``, ``memory`` in bytes, ``cpu``, ``status``) of ResumeProgram."""
        log = self.folder / "programs"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def _script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


class ResumeCluster(LocalCluster):
    """A thousand CLOUD nodes without machines, and a scheduler that starts a thousand jobs in one go."""

    def __init__(self, root: Path, server: Mapping[str, str], python_path: Path | None) -> None:
        self.programs = Programs(root / "bench", python_path, server, root.resolve() / "etc" / "slurm.conf")
        super().__init__(root, settings(server, self.programs.bin_dir), manager=python_path is None)

    def _prepare(self) -> None:
        super()._prepare()
        text = self.slurm_conf.read_text()
        text = re.sub(r"^ResumeProgram=.*$", f"ResumeProgram={self.programs.resume}", text, flags=re.MULTILINE)
        # Else a scheduler on a busy machine starts the jobs bit by bit, and with them ResumeProgram.
        many = f"default_queue_depth={2 * NODES},bf_max_job_test={2 * NODES},bf_continue,max_sched_time=60"
        text = re.sub(r"^SchedulerParameters=.*$", rf"\g<0>,{many}", text, flags=re.MULTILINE)
        self.slurm_conf.write_text(text)


def settings(server: Mapping[str, str], bin_dir: Path) -> dict[str, Any]:
    """burst.yaml: one nodeset of one offering on the server."""
    return {
        "cluster": CLUSTER,
        "providers": {
            "ec2": {
                "type": "aws",
                "region": REGION,
                "endpoint_url": server["endpoint"],
                "image": server["image"],
                "subnets": {ZONE: server["subnet"]},
            }
        },
        "slurm": {"bin_dir": str(bin_dir)},
        "power": {"suspend_time": 3600, "suspend_timeout": 30, "resume_timeout": 1800},
        "nodesets": [
            {
                "name": "q",
                "nodes": NODE_NAMES,
                "cpus": 1,
                "memory_mb": 500,
                "offerings": [{"provider": "ec2", "instance_type": TYPE, "zone": ZONE}],
            }
        ],
        "partitions": [{"name": "q", "nodesets": ["q"], "default": True}],
    }


def install(folder: Path) -> str | None:
    """The reference, without what it needs: boto3 is ours, ``retrying`` comes along. Why it can't be had, or None."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--target", str(folder), f"{REFERENCE}=={VERSION}", "retrying"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or ["pip failed"])[-1]
