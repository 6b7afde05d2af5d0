"""Slurm's accounting for a private cluster: a slurmdbd with a MariaDB of its own, below the cluster's folder."""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from slurm_plugin.errors import LocalCloudError
from slurm_plugin.local_cluster.reserve import free_port

COMMANDS = ("mariadbd", "mariadb-install-db", "slurmdbd", "sacctmgr")
DAEMONS = ("slurmdbd", "mariadbd")
"""In the order in which they are to be stopped."""


class Accounting:
    """Files and commands; the cluster runs the daemons. MariaDB listens on the loopback alone."""

    def __init__(self, root: Path, address: str) -> None:
        """``address``: the host's on the cluster's network, at which slurmctld and machines reach slurmdbd.

        Clusters that start at the same moment look for ports of their own, by the network's number: they are taken only seconds later.
        """
        number = int(address.split(".")[2])
        self._root = root
        self._data = root / "accounting"
        self._address = address
        self.database_port = free_port(17824 + number)
        self.port = free_port(18848 + number)
        self._password = secrets.token_hex(16)

    def slurm_conf(self, munge_socket: Path) -> tuple[str, ...]:
        """Lines of slurm.conf."""
        return (
            "AccountingStorageType=accounting_storage/slurmdbd",
            f"AccountingStorageHost={self._address}",
            f"AccountingStoragePort={self.port}",
            f"AccountingStoragePass={munge_socket}",
        )

    def prepare(
        self, install_db: str, environment: Mapping[str, str], munge_socket: Path, plugins: Path | None
    ) -> None:
        """An empty database and slurmdbd.conf. Raises ``LocalCloudError`` with MariaDB's own words."""
        shutil.rmtree(self._data, ignore_errors=True)
        self._data.mkdir(mode=0o700)
        done = subprocess.run(
            [
                *(install_db, "--no-defaults", f"--datadir={self._data / 'db'}", "--user=root", "--skip-test-db"),
                "--auth-root-authentication-method=socket",
            ],
            env=dict(environment),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise LocalCloudError(f"{install_db}: {(done.stderr or done.stdout).strip()[-1000:]}")
        user = "'slurm'@'127.0.0.1'"
        _write_private(
            self._data / "init.sql",
            f"CREATE USER IF NOT EXISTS {user} IDENTIFIED BY '{self._password}';\nGRANT ALL ON slurm_acct.* TO {user};\n"
            f"SELECT 'ready' INTO OUTFILE '{self._data / 'ready'}';\n",
        )
        lines = {
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={munge_socket}",
            "DbdHost": "localhost",
            "DbdAddr": self._address,
            "DbdPort": self.port,
            "SlurmUser": "root",
            "StorageType": "accounting_storage/mysql",
            "StorageHost": "127.0.0.1",
            "StoragePort": self.database_port,
            "StorageUser": "slurm",
            "StoragePass": self._password,
            "StorageLoc": "slurm_acct",
            "PidFile": self._root / "run" / "slurmdbd.pid",
            "LogFile": self._root / "log" / "slurmdbd.log",
            **({"PluginDir": plugins} if plugins else {}),
        }
        # Where slurmdbd looks for it: beside the file that SLURM_CONF names.
        _write_private(self._root / "etc" / "slurmdbd.conf", "".join(f"{k}={v}\n" for k, v in lines.items()))

    def mariadbd(self, program: str) -> list[str]:
        """The command, in the foreground."""
        return [
            *(program, "--no-defaults", "--user=root", f"--datadir={self._data / 'db'}"),
            *(f"--init-file={self._data / 'init.sql'}", f"--socket={self._data / 'db.sock'}"),
            *("--bind-address=127.0.0.1", f"--port={self.database_port}", "--skip-name-resolve"),
            *("--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=16M"),
        ]

    def database_ready(self) -> bool:
        """Whether MariaDB has made the user: it takes connections before, and refuses them."""
        return (self._data / "ready").exists()

    def ready(self) -> bool:
        """Whether slurmdbd takes connections."""
        try:
            socket.create_connection((self._address, self.port), timeout=1.0).close()
        except OSError:
            return False
        return True


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
