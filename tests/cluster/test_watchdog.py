"""The manager's unit on a machine that boots with systemd: it gets ready, says what it does, and is started again when it hangs."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

from slurm_plugin import render
from slurm_plugin.config import load_config
from slurm_plugin.local_cluster.settings import default_settings
from tests.fixtures.nspawn import machines
from tests.fixtures.private_slurm import wait_for
from tests.fixtures.unmet import unmet

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = """\
#!/bin/sh
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/shared:/shared/{packages} exec python3 -c 'from slurm_plugin.cli import main; main()' "$@"
"""


def test_systemd_starts_a_manager_that_hangs_again(tmp_path: Path) -> None:
    packages = Path(sysconfig.get_paths()["purelib"])
    if sys.version_info[:2] != (3, 11) or not packages.is_relative_to(REPOSITORY):
        unmet("needs this repository's .venv, by the Python of the machines' image (3.11)")
    settings = {**default_settings(1), "state_dir": "/var/lib/spotburst", "checkpoints": {"uri": "file:///var/tmp/s"}}
    settings |= {"slurm": {"conf": "/etc/slurm/slurm.conf", "bin_dir": "/opt/away"}}
    (tmp_path / "burst.yaml").write_text(yaml.safe_dump(settings))
    programs = render.Programs(*(Path("/opt/away/spotburst") for _ in range(4)))
    where = Path("/etc/slurm/burst.yaml")
    unit = render.manager_service(load_config(tmp_path / "burst.yaml"), programs, config_path=where, user="root")
    addresses = {"wdog": "10.88.9.2"}
    with machines(tmp_path, addresses, REPOSITORY, bridge="sbwatchdog", gateway="10.88.9.1") as found:
        machine = found["wdog"]
        for path, text in {
            "opt/away/spotburst": PROGRAM.format(packages=packages.relative_to(REPOSITORY)),
            # A Slurm that is away, and says so at once.
            **{
                f"opt/away/{name}": "#!/bin/sh\necho connect failure >&2; exit 1\n"
                for name in ("scontrol", "squeue", "sinfo")
            },
            "etc/slurm/slurm.conf": "ClusterName=local\n",
            "etc/slurm/burst.yaml": yaml.safe_dump(settings),
            "etc/systemd/system/spotburst-manager.service": unit,
            "etc/systemd/system/spotburst-manager.service.d/soon.conf": "[Service]\nWatchdogSec=30\nTimeoutAbortSec=2\n",
        }.items():
            (machine.root / path).parent.mkdir(parents=True, exist_ok=True)
            (machine.root / path).write_text(text)
        machine.run("chmod +x /opt/away/*; systemctl daemon-reload; systemctl start spotburst-manager")
        show = "systemctl show --value --property {} spotburst-manager"
        first = machine.run(show.format("MainPID")).strip()
        assert machine.run(show.format("ActiveState")).strip() == "active"
        wait_for(lambda: "not well: " in machine.run(show.format("StatusText")), "its status")
        assert "Slurm" in machine.run(show.format("StatusText"))
        machine.run(f"kill -STOP {first}")
        wait_for(lambda: machine.run(show.format("MainPID")).strip() not in ("0", first), "another one", 180)
        wait_for(lambda: machine.run(show.format("ActiveState")).strip() == "active", "it to be ready", 180)
        assert int(machine.run(show.format("NRestarts"))) >= 1
        assert "Watchdog timeout" in machine.run("journalctl --unit spotburst-manager --no-pager")
