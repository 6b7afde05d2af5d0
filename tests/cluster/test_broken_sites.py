"""`spotburst check` on a real slurmctld whose site is broken in one way: it names the fault and the remedy, which then helps."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slurm_plugin import render
from slurm_plugin.checks.finding import Finding, State, exit_code
from slurm_plugin.cli.look import Role, look
from slurm_plugin.config import load_config
from slurm_plugin.manager.stores import Stores
from tests.fixtures.ports import PORTS
from tests.fixtures.private_slurm import DAEMONS, PrivateSlurm, private_slurm, wait_for
from tests.fixtures.unmet import unmet

pytestmark = pytest.mark.cluster

BIN = Path(sys.executable).parent
BURST = """\
cluster: site
state_dir: {folder}/spotburst
slurm: {{conf: {folder}/slurm.conf}}
checkpoints: {{uri: "file://{folder}/store"}}
providers: {{local: {{type: local, subnet: 10.79.6.0/24, bridge: sb-sites}}}}
nodesets:
  - {{name: spot, nodes: "spot-[1-3]", cpus: 2, memory_mb: 500, offerings: [{{provider: local, instance_type: small}}]}}
partitions:
  - {{name: spot, nodesets: [spot], default: true}}
  - {{name: urgent, nodesets: [spot], priority_tier: 10, preempt_mode: "off"}}
"""
BASE = f"""{DAEMONS}\
KillWait=30
Include {{folder}}/spotburst.conf
"""


class SiteUnderTest:
    """A site of one controller. ``mend`` makes all as it has to be, ``change`` makes one thing otherwise."""

    def __init__(self, slurm: PrivateSlurm) -> None:
        self.slurm, self.folder = slurm, slurm.folder
        self.burst = self.folder / "burst.yaml"
        self.included = self.folder / "spotburst.conf"
        self.programs = self.folder / "bin"
        host = socket.gethostname().partition(".")[0]
        self._base = BASE.format(name="site", host=host, port=slurm.port, folder=self.folder)
        self._manager: subprocess.Popen[bytes] | None = None

    def write(self, more: str = "") -> None:
        """Every file as it has to be, with ``more`` at slurm.conf's end."""
        self.burst.write_text(BURST.format(folder=self.folder))
        self.included.write_text(self.rendered())
        self.slurm.conf.write_text(self._base + more)

    def rendered(self) -> str:
        programs = render.Programs.beside_python(self.programs / "python")
        return render.spotburst_conf(load_config(self.burst), (22, 5, 8), programs, self.included)

    def read_again(self) -> None:
        self.slurm.run("scontrol", "reconfigure")

    def restart(self) -> None:
        self.slurm.stop_slurmctld()
        self.slurm.start_slurmctld()

    def look(self) -> list[Finding]:
        return list(look(self.burst))

    def wrong(self, role: Role | None = None) -> list[Finding]:
        return [one for one in look(self.burst, role) if one.state is not State.OK]

    def start_manager(self) -> None:
        with (self.folder / "manager.out").open("ab") as out:
            self._manager = subprocess.Popen(
                ["setpriv", "--pdeathsig=TERM", BIN / "spotburst", "manager", "--config", self.burst],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            )  # fmt: skip
        wait_for((self.folder / "spotburst/manager.sock").exists, "the manager")

    def stop_manager(self) -> None:
        if self._manager is not None:
            self._manager.terminate()
            self._manager.wait(90)
            self._manager = None


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteUnderTest]:
    slurm = private_slurm("22.05", tmp_path_factory.mktemp("broken") / "site", PORTS[-3])
    if isinstance(slurm, str):
        unmet(slurm)
    slurm.start()
    made = SiteUnderTest(slurm)
    try:
        (slurm.folder / "store").mkdir()
        made.programs.mkdir()
        for name in ("spotburst-resume", "spotburst-suspend", "spotburst-resume-fail"):
            shutil.copy(BIN / name, made.programs / name)
        made.write()
        # Of another site until now. slurmctld writes there for as long as it runs.
        slurm.stop_slurmctld()
        shutil.rmtree(slurm.folder / "state")
        (slurm.folder / "state").mkdir()
        slurm.start_slurmctld()
        made.start_manager()
        yield made
    finally:
        made.stop_manager()
        slurm.stop()


def test_a_site_that_is_well(site: SiteUnderTest) -> None:
    found = site.look()
    assert [one for one in found if one.state is not State.OK] == []
    assert exit_code(found) == 0
    assert {one.what for one in found} == {
        "burst.yaml", "slurmctld", "slurm.conf", "nodes", "rights", "manager", "checkpoint store", "clock",
    }  # fmt: skip


@dataclass(frozen=True)
class Broken:
    """``line`` at slurm.conf's end breaks the site; the finding says ``detail``; its fix says ``fix``, and the lines ``mended`` are that."""

    line: str
    what: str
    detail: str
    fix: str
    mended: str = ""
    state: State = State.FAULT
    restart: bool = False
    and_too: tuple[str, ...] = field(default=())
    """Findings about other things that follow from it."""

    def __str__(self) -> str:
        return self.line.partition("\n")[0] or self.what


WORDS = "SlurmctldParameters="
ALL = "idle_on_node_suspend,cloud_reg_addrs,preempt_send_user_signal"
LINES = [
    Broken("ReturnToService=0", "ReturnToService", "stays DOWN for good", "ReturnToService=2"),
    Broken("JobRequeue=0", "JobRequeue", "not brought back unless submitted with --requeue", "JobRequeue=1"),
    Broken("JobFileAppend=0", "JobFileAppend", "empties the output of those before it", "JobFileAppend=1"),
    Broken("MinJobAge=60", "MinJobAge", "Slurm forgets an ended job before the manager", "MinJobAge=300"),
    Broken("SlurmdTimeout=0", "SlurmdTimeout", "vanished without a notice is never missed", "SlurmdTimeout=300"),
    Broken("SlurmdTimeout=20", "SlurmdTimeout", "for a short cut of the network", "SlurmdTimeout=300"),
    Broken("KillWait=2", "KillWait", "has 5 s to save", "KillWait=30"),
    Broken("KillWait=600", "KillWait", "longer than any notice of a cloud", "KillWait=30"),
    Broken("ResumeTimeout=60", "ResumeTimeout", "burst.yaml gives machines 600 s", "ResumeTimeout=600"),
    Broken("SuspendExcNodes=spot-[2-3]", "SuspendExcNodes", "spot-[2-3]: never powered down", "take spot-[2-3] out", "SuspendExcNodes=other-1"),
    Broken("SuspendExcParts=spot", "SuspendExcParts", "go on to cost money", "take spot out of SuspendExcParts", "SuspendExcParts=other"),
    Broken(WORDS + "cloud_reg_addrs", "SlurmctldParameters", "gets no job again", WORDS + "idle_on_node_suspend", WORDS + ALL),
    Broken(WORDS + "idle_on_node_suspend", "SlurmctldParameters", "does not learn a machine's address", WORDS + "cloud_reg_addrs", WORDS + ALL),
    Broken(f"{WORDS}{ALL},cloud_dns", "SlurmctldParameters", "leaves nodes' addresses to DNS", "take cloud_dns out", WORDS + ALL),
    Broken(f"{WORDS}{ALL},power_save_interval=300", "SlurmctldParameters", "waits so many seconds", "leave power_save_interval out", WORDS + ALL),
    Broken("PrivateData=jobs", "PrivateData", "hides nodes that are powered down", "PrivateData=cloud", "PrivateData=jobs,cloud",
           and_too=("nodes",)),
    Broken("TreeWidth=2", "TreeWidth", "forward messages to nodes whose address they do not know", "TreeWidth=65533"),
    Broken("RequeueExit=1,80-90", "RequeueExit", "it has 80, 81", "leave 80 to 99 out of RequeueExit", "RequeueExit=1"),
    Broken("ResumeProgram=/bin/true", "ResumeProgram", "/bin/true is not spotburst's own", "ResumeProgram=spotburst-resume",
           "ResumeProgram={programs}/spotburst-resume", State.NOTE),
    Broken("Prolog=/bin/true", "Prolog", "Slurm then holds the job", "add nohold_on_prolog_fail",
           "SchedulerParameters=preempt_youngest_first,nohold_on_prolog_fail", State.NOTE),
    Broken("SuspendTime=300\nNodeName=own-1\nPartitionName=own Nodes=own-1", "SuspendTime", "own-1: powered down when idle",
           "take SuspendTime out of slurm.conf", "SuspendTime=INFINITE", restart=True),
    Broken("ProctrackType=proctrack/pgid", "ProctrackType", "hear no signal and outlive the attempt", "ProctrackType=proctrack/cgroup", restart=True),
    Broken("PreemptType=preempt/none\nPreemptMode=OFF", "PreemptType", "no job gets a node of spot while another runs there",
           "PreemptType=preempt/partition_prio", "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE", restart=True,
           ),
]  # fmt: skip


@pytest.mark.parametrize("broken", LINES, ids=str)
def test_a_setting_that_defeats_it(site: SiteUnderTest, broken: Broken) -> None:
    site.write(broken.line + "\n")
    again = site.restart if broken.restart else site.read_again
    again()
    wrong = site.wrong(Role.LOGIN)  # what is seen from everywhere
    assert {one.what for one in wrong} == {broken.what, *broken.and_too}
    one = next(one for one in wrong if one.what == broken.what)
    assert one.state is broken.state
    assert broken.detail in one.detail
    assert broken.fix in one.fix
    mended = (broken.mended or broken.fix).format(programs=site.programs)
    site.write(f"{broken.line}\n{mended}\n")
    again()
    assert site.wrong() == []


@contextmanager
def changed(path: Path, change: Callable[[str], str]) -> Iterator[None]:
    text = path.read_text()
    assert change(text) != text
    path.write_text(change(text))
    try:
        yield
    finally:
        path.write_text(text)


def only(found: list[Finding], what: str, detail: str, fix: str) -> None:
    assert [(one.what, one.state) for one in found] == [(what, State.FAULT)]
    assert detail in found[0].detail
    assert fix in found[0].fix


def test_files_that_do_not_agree(site: SiteUnderTest) -> None:
    site.write()
    site.read_again()
    with changed(site.burst, lambda text: text.replace("cluster: site", "cluster: other")):
        only(
            site.wrong(),
            "ClusterName",
            "ClusterName is 'site', burst.yaml's cluster is 'other'",
            "cluster: site in burst.yaml",
        )
    with changed(site.burst, lambda text: text.replace("spot-[1-3]", "spot-[1-5]")):
        found = {one.what: one for one in site.wrong()}
        assert set(found) == {"nodes", "spotburst.conf"}
        assert "spot-[4-5]: in burst.yaml, not in slurm.conf" in found["nodes"].detail
        assert "spotburst render install slurm" in found["spotburst.conf"].fix
    with changed(site.burst, lambda text: text.replace("cpus: 2", "cpus: 4")):
        found = {one.what: one for one in site.wrong()}
        assert "spot-[1-3]: CPUs=2 in slurm.conf, 4 in burst.yaml" in found["nodes"].detail
    with changed(site.burst, lambda text: text.replace("default: true", "default: true, grace_time: 60s")):
        found = {one.what: one for one in site.wrong()}
        assert "GraceTime=0, while burst.yaml has 60 s" in found["partition spot"].detail
    with changed(site.slurm.conf, lambda text: text + "# changed\nMaxArraySize=500\n"):
        only(site.wrong(), "slurm.conf", "the file has changed since slurmctld read it", "scontrol reconfigure")
        site.read_again()
        assert site.wrong() == []


def test_partitions_that_end_or_freeze_jobs(site: SiteUnderTest) -> None:
    site.write()
    for mode, detail in (("CANCEL", "a job that is preempted ends for good"), ("OFF", "its jobs are never preempted")):
        text = site.rendered().replace("PriorityTier=1 PreemptMode=REQUEUE", f"PriorityTier=1 PreemptMode={mode}")
        site.included.write_text(text)
        site.read_again()
        found = {one.what: one for one in site.wrong()}
        assert set(found) == {"partition spot", "spotburst.conf"}
        assert detail in found["partition spot"].detail
        assert "PreemptMode=REQUEUE for PartitionName=spot" in found["partition spot"].fix
    site.included.write_text(site.rendered())
    site.read_again()
    assert site.wrong() == []


def test_programs_and_folders_that_can_not_be_used(site: SiteUnderTest) -> None:
    site.write()
    site.read_again()
    program = site.programs / "spotburst-resume"
    whole = program.read_bytes()
    program.chmod(0o644)
    only(site.wrong(), "ResumeProgram", "can't be run by root (SlurmUser): mode 0644", f"chmod 0755 {program}")
    program.chmod(0o777)
    only(
        site.wrong(),
        "ResumeProgram",
        "may be written to by others (mode 0777): Slurm turns power saving off",
        f"chmod 0755 {program}",
    )
    program.chmod(0o755)
    program.write_bytes(b"#!/nowhere/bin/python\n")
    only(site.wrong(), "ResumeProgram", "its Python, /nowhere/bin/python, is not there", "install spotburst again")
    program.write_bytes(f"#!{sys.executable}\nimport spotburst_that_was_removed\n".encode())
    only(site.wrong(), "ResumeProgram", "No module named 'spotburst_that_was_removed'", "install spotburst again")
    program.unlink()
    only(site.wrong(), "ResumeProgram", "is not there", "install spotburst on this machine")
    program.write_bytes(whole)
    program.chmod(0o755)
    state_dir = site.folder / "spotburst"
    state_dir.chmod(0o777)
    only(site.wrong(), "state_dir", "others may write to it (mode 0777)", f"chmod 0700 {state_dir}")
    state_dir.chmod(0o700)
    (state_dir / "ledger.db").chmod(0o666)
    only(site.wrong(), "state_dir", "ledger.db: others may write to it", "chmod go-w")
    (state_dir / "ledger.db").chmod(0o600)
    site.burst.chmod(0o666)
    only(site.wrong(), "burst.yaml", "may be written to by others", "chmod 0644")
    site.burst.chmod(0o644)
    elsewhere = site.folder / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(site.burst, elsewhere / "burst.yaml")
    wrong = [one for one in look(elsewhere / "burst.yaml") if one.state is not State.OK]
    only(wrong, "burst.yaml", f"the power programs read {site.burst}, not {elsewhere}/burst.yaml", "beside slurm.conf")
    assert site.wrong() == []


def test_a_store_that_is_not_there(site: SiteUnderTest) -> None:
    site.write()
    site.read_again()
    with changed(site.burst, lambda text: text.replace("/store", "/nowhere/store")):
        only(site.wrong(), "checkpoint store", "there is no", "spotburst store check file://")
    assert site.wrong() == []


def test_a_store_that_is_not_mounted_on_the_controller(site: SiteUnderTest) -> None:
    """Its mount point is not marked: that would make it the store."""
    site.write()
    site.read_again()
    Stores(load_config(site.burst)).open()
    store, aside = site.folder / "store", site.folder / "store-elsewhere"
    store.rename(aside)
    store.mkdir()
    only(site.wrong(), "checkpoint store", "Is its file system mounted", "mount its file system, if that is not there;")
    assert list(store.iterdir()) == []
    store.rmdir()
    aside.rename(store)
    assert site.wrong() == []


def test_the_manager_is_gone(site: SiteUnderTest) -> None:
    site.write()
    site.read_again()
    site.stop_manager()
    only(site.wrong(), "manager", "does not run: nobody launches machines", "systemctl start spotburst-manager")
    site.start_manager()
    assert site.wrong() == []


def test_state_that_is_gone_with_the_next_boot(site: SiteUnderTest) -> None:
    volatile = Path("/dev/shm") / f"spotburst-sites-{os.getpid()}"
    volatile.mkdir()
    try:
        site.write(f"StateSaveLocation={volatile}\n")
        site.restart()
        only(site.wrong(), "StateSaveLocation", "is on tmpfs, gone with the next boot", "StateSaveLocation on a disk")
        site.write(f"StateSaveLocation={volatile}\nStateSaveLocation={site.folder}/state\n")
        site.restart()
        assert site.wrong() == []
    finally:
        shutil.rmtree(volatile)


def test_where_slurmctld_does_not_start_its_file_is_read(site: SiteUnderTest) -> None:
    site.slurm.stop_slurmctld()
    try:
        site.write("PreemptType=preempt/qos\nJobFileAppend=0\n")
        found = {one.what: one for one in site.wrong()}
        assert set(found) == {"slurmctld", "AccountingStorageType", "JobFileAppend"}
        assert "does not answer" in found["slurmctld"].detail
        assert "systemctl status slurmctld" in found["slurmctld"].fix
        assert "takes its rules from the accounting database" in found["AccountingStorageType"].detail
        assert "PreemptType=preempt/partition_prio" in found["AccountingStorageType"].fix
    finally:
        site.write("PreemptType=preempt/qos\nPreemptType=preempt/partition_prio\n")
        site.slurm.start_slurmctld()
    assert site.wrong() == []
