"""What programs of a private cluster are given. Real namespaces; nothing of the host is changed."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

from slurm_plugin.local_cluster.daemons import without_name_server
from tests.fixtures.unmet import need_root

ASK = """\
import json, socket, sys
def ask(name):
    try:
        return len(socket.getaddrinfo(name, 6818)) > 0
    except socket.gaierror as error:
        return error.errno
print(json.dumps([ask(name) for name in sys.argv[1:]]))
"""


def test_nobody_is_asked_for_a_machines_name(tmp_path: Path) -> None:
    """Slurm asks again for ten seconds, with its configuration locked, after any answer but "no such name"."""
    need_root("for a mount namespace")
    before = Path("/etc/nsswitch.conf").read_text()
    program = [sys.executable, "-c", ASK, "slow-7", "slow-7.example.org", "localhost"]
    done = subprocess.run(without_name_server(tmp_path, program), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [socket.EAI_NONAME, socket.EAI_NONAME, True]
    assert Path("/etc/nsswitch.conf").read_text() == before
