"""The same questions and orders to real Slurm 22.05 (this machine's) and 24.11 (Debian 13's): both must answer alike."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Iterator

import pytest

from slurm_plugin.actions import NOWHERE
from slurm_plugin.errors import SlurmRefused, SlurmUnavailable
from slurm_plugin.slurm.cli import CliClient
from slurm_plugin.slurm.client import SlurmClient
from slurm_plugin.slurm.pyslurm_client import PyslurmClient, installed
from slurm_plugin.slurm.records import Job, Node
from tests.fixtures.private_slurm import VERSIONS, PrivateSlurm, private_slurm, wait_for
from tests.fixtures.unmet import unmet

pytestmark = pytest.mark.cluster

MakeClient = Callable[..., SlurmClient]
PORTS = {"22.05": 21001, "24.11": 21011}


def pyslurms_slurm() -> str | None:
    """The version of Slurm that the pyslurm here was built for, as ``VERSIONS`` has them; None without one."""
    if not installed():
        return None
    major, minor = importlib.metadata.version("pyslurm").split(".")[:2]
    return f"{major}.{int(minor):02}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each version with the commands, and that of the pyslurm which is here with it, too."""
    both = [(version, "commands") for version in VERSIONS]
    both += [(version, "pyslurm") for version in VERSIONS if version == pyslurms_slurm()]
    # Each client has a slurmctld of its own, in which none of the other's jobs are.
    if "make_client" in metafunc.fixturenames:
        fixtures, ids = [(each, each[1]) for each in both], list(map("-".join, both))
        metafunc.parametrize(("slurm", "make_client"), fixtures, indirect=True, scope="module", ids=ids)
    elif "slurm" in metafunc.fixturenames:
        alone = [(version, "commands") for version in VERSIONS]
        metafunc.parametrize("slurm", alone, indirect=True, scope="module", ids=VERSIONS)


@pytest.fixture(scope="module")
def slurm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateSlurm]:
    version, _ = request.param
    folder = tmp_path_factory.mktemp("slurm") / f"v{version.replace('.', '')}"
    private = private_slurm(version, folder, PORTS[version])
    if isinstance(private, str):
        unmet(private)
    private.start()
    try:
        yield private
    finally:
        private.stop()


@pytest.fixture(scope="module")
def make_client(request: pytest.FixtureRequest, slurm: PrivateSlurm) -> MakeClient:
    """Each kind of client that can be had here for this Slurm."""
    if request.param == "commands":
        return lambda timeout=10.0: CliClient(slurm.bin_dir, slurm.conf, timeout)

    return lambda timeout=10.0: PyslurmClient(slurm.bin_dir, slurm.conf, timeout)


@pytest.fixture(scope="module")
def client(make_client: MakeClient) -> SlurmClient:
    return make_client()


@pytest.fixture
def submit(slurm: PrivateSlurm) -> Iterator[Callable[..., str]]:
    submitted: list[str] = []

    def make(*arguments: str, script: str = "sleep 600") -> str:
        submitted.append(slurm.submit(*arguments, script=script))
        return submitted[-1]

    yield make
    for job_id in submitted:
        slurm.run("scancel", job_id, check=False)


def job(client: SlurmClient, name_id: str) -> Job:
    return next(j for j in client.jobs() if j.name_id == name_id)


def node(client: SlurmClient, name: str) -> Node:
    return next(n for n in client.nodes() if n.name == name)


def until(look: Callable[[], bool], what: str) -> None:
    wait_for(look, what)


def test_version(client: SlurmClient, slurm: PrivateSlurm) -> None:
    expected = (22, 5) if slurm.port == PORTS["22.05"] else (24, 11)
    assert client.version()[:2] == expected


def test_when_slurmctld_began(client: SlurmClient) -> None:
    assert 0 <= time.time() - client.slurmctld_start().began < 3600


def test_no_jobs_is_an_answer(client: SlurmClient) -> None:
    assert client.jobs() == ()


def test_powered_down_cloud_nodes_are_shown(client: SlurmClient) -> None:
    nodes = {n.name: n for n in client.nodes()}
    assert sorted(nodes) == ["real-1", "spot-1", "spot-2", "spot-3"]
    spot = nodes["spot-2"]
    assert spot.states == {"IDLE", "CLOUD", "POWERED_DOWN"}
    assert not spot.up
    assert spot.partitions == ("spot", "urgent")
    assert spot.features == ("spot", "t4")
    assert (spot.gres, spot.cpus, spot.hostname, spot.boot_time) == ("gpu:t4:2", 2, "spot-2", 0)
    real = nodes["real-1"]
    assert real.up
    assert (real.address, real.hostname) == ("127.0.0.1", "localhost")
    assert 0 < real.boot_time <= time.time()
    assert abs(real.slurmd_start_time - time.time()) < 3600


def test_partitions(client: SlurmClient) -> None:
    found = {p.name: p for p in client.partitions()}
    assert sorted(found) == ["real", "spot", "urgent"]
    assert found["spot"].nodes == ("spot-1", "spot-2", "spot-3")
    assert found["spot"].default
    assert not found["urgent"].default
    assert (found["spot"].priority_tier, found["spot"].grace_time, found["spot"].preempt_mode) == (1, 10, "REQUEUE")
    assert (found["urgent"].priority_tier, found["urgent"].grace_time, found["urgent"].preempt_mode) == (10, 0, "OFF")


@pytest.mark.parametrize(
    ("script", "code", "signal"),
    [("exit 7", 7, 0), ("kill -9 $$", 0, 9), ("true", 0, 0)],
    ids=["exit 7", "killed", "ok"],
)
def test_ended_jobs_stay_visible_with_how_they_ended(
    client: SlurmClient, submit: Callable[..., str], script: str, code: int, signal: int
) -> None:
    job_id = submit("--partition=real", script=script)
    state = "FAILED" if code or signal else "COMPLETED"
    until(lambda: job(client, job_id).has(state), f"{script!r} to end")
    ended = job(client, job_id)
    assert (ended.exit_code, ended.exit_signal) == (code, signal)
    assert ended.nodes == ("real-1",)
    assert 0 < ended.start_time <= ended.end_time


def test_a_job_that_waits_for_its_node_to_boot(client: SlurmClient, submit: Callable[..., str]) -> None:
    job_id = submit(
        "--partition=spot", "--gpus-per-node=t4:2", "--job-name=boots", "--exclude=spot-1,spot-3", "--constraint=t4"
    )
    until(lambda: job(client, job_id).has("CONFIGURING"), "the job to get its node")
    booting = job(client, job_id)
    assert booting.has("RUNNING")
    assert not booting.running
    assert booting.nodes == ("spot-2",)
    assert (booting.gpus_per_node, booting.name, booting.features) == (2, "boots", "t4")
    assert booting.excluded_nodes == ("spot-1", "spot-3")
    assert (booting.user, booting.user_id, booting.batch, booting.requeue) == ("root", 0, True, True)
    until(lambda: node(client, "spot-2").has("POWERING_UP"), "the node to be powered up")
    assert node(client, "spot-2").states >= {"CLOUD", "POWERING_UP", "NOT_RESPONDING"}


def test_gpus_however_asked_for(client: SlurmClient, submit: Callable[..., str]) -> None:
    for request in (
        ["--gres=gpu:t4:2"],
        ["--gpus=4", "--nodes=2"],
        ["--gpus-per-task=1", "--ntasks-per-node=2", "--nodes=1"],
    ):
        job_id = submit("--partition=spot", "--hold", *request)
        assert job(client, job_id).gpus_per_node == 2, request


def test_array_tasks_and_what_is_left_of_the_array(client: SlurmClient, submit: Callable[..., str]) -> None:
    array = submit("--partition=real", "--cpus-per-task=2", "--array=1-4%1")
    until(lambda: any(j.name_id == f"{array}_1" and j.running for j in client.jobs()), "the first task to run")
    rest = job(client, f"{array}_[2-4%1]")
    assert rest.has("PENDING")
    assert rest.job_id == int(array)
    client.requeue(f"{array}_1")
    until(lambda: job(client, f"{array}_1").restart_count == 1, "the task to be requeued")


def test_no_requeue_is_seen(client: SlurmClient, submit: Callable[..., str]) -> None:
    assert not job(client, submit("--partition=spot", "--hold", "--no-requeue")).requeue


def test_requeue_then_start_now(client: SlurmClient, submit: Callable[..., str]) -> None:
    job_id = submit("--partition=real", script="trap '' TERM; sleep 2; sleep 600")
    until(lambda: job(client, job_id).running, "the job to run")
    client.requeue(job_id)
    on_its_way_out = job(client, job_id)
    assert not on_its_way_out.running
    assert on_its_way_out.restart_count == 1
    until(lambda: job(client, job_id).states == {"PENDING"}, "the old attempt to be gone")
    assert job(client, job_id).eligible_time > time.time()
    client.start_now(job_id)
    until(lambda: job(client, job_id).running, "the job to run again")


def test_hold_release_and_requeuehold(client: SlurmClient, submit: Callable[..., str]) -> None:
    job_id = submit("--partition=real")
    until(lambda: job(client, job_id).running, "the job to run")
    client.requeue(job_id, hold=True)
    until(lambda: job(client, job_id).states == {"PENDING"}, "the job to be back in the queue")
    assert job(client, job_id).priority == 0
    client.release(job_id)
    until(lambda: job(client, job_id).priority > 0, "the job to be released")
    client.hold(job_id)
    until(lambda: job(client, job_id).priority == 0, "the job to be held")
    client.release(job_id)
    until(lambda: job(client, job_id).priority > 0, "the job to be released again")
    client.hold(job_id, releasable=True)
    until(lambda: job(client, job_id).priority == 0, "the job to be held for its owner")
    client.end(job_id)
    until(lambda: job(client, job_id).has("CANCELLED"), "the job to be ended")


TEXTS = [
    'x=1 State=IDLE "q" end',
    '"all quoted"',
    '"',
    "it's 'here'",
    "Reason=y NodeName=spot-1",
    "grüße 漢字",
    "a\tb\\n",
    "--help",
]


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_survives_as_a_reason(client: SlurmClient, text: str) -> None:
    client.update_nodes(["spot-3"], state="down", reason=text)
    assert node(client, "spot-3").reason == text
    assert node(client, "spot-3").has("DOWN")
    assert node(client, "spot-1").reason == ""


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_survives_as_a_comment(client: SlurmClient, submit: Callable[..., str], text: str) -> None:
    job_id = submit("--partition=spot", "--hold")
    assert client.comment(job_id) == ""
    client.set_comment(job_id, text)
    assert job(client, job_id).comment == client.comment(job_id) == text


def test_a_comment_longer_than_slurm_takes_is_cut(client: SlurmClient, submit: Callable[..., str]) -> None:
    job_id = submit("--partition=spot", "--hold")
    client.set_comment(job_id, "é" * 3000)
    assert job(client, job_id).comment == "é" * 512


def test_line_breaks_become_spaces(client: SlurmClient, submit: Callable[..., str]) -> None:
    job_id = submit("--partition=spot", "--hold")
    client.set_comment(job_id, "one\ntwo")
    assert job(client, job_id).comment == "one two"


def test_a_job_that_slurm_does_not_know_has_no_comment(client: SlurmClient) -> None:
    assert client.comment("4000000") is None


def test_many_nodes_in_one_call(client: SlurmClient) -> None:
    client.update_nodes(["spot-1", "spot-2", "spot-3"], state="down", reason="r")
    assert all(n.has("DOWN") and n.reason == "r" for n in client.nodes() if n.name != "real-1")
    client.update_nodes((f"spot-{i}" for i in (3, 1, 2)), state="resume")
    assert not any(n.has("DOWN") for n in client.nodes())
    client.update_nodes([], state="down", reason="nobody")
    assert not any(n.has("DOWN") for n in client.nodes())


def test_resume_of_an_idle_node_is_refused_in_slurms_words(client: SlurmClient) -> None:
    with pytest.raises(SlurmRefused, match=r"NodeName=real-1.*Invalid node state specified"):
        client.update_nodes(["real-1"], state="resume")


def test_an_idle_node_that_is_told_that_it_is_idle_begins_its_idle_time_anew(client: SlurmClient) -> None:
    until(lambda: node(client, "real-1").has("IDLE"), "an idle node")
    before = node(client, "real-1").last_busy
    assert before > 0
    until(lambda: time.time() > before + 1, "its clock to go on")
    client.update_nodes(["real-1"], state="idle")
    assert node(client, "real-1").last_busy > before
    assert node(client, "real-1").has("IDLE")


def test_one_refused_node_does_not_stop_the_others(client: SlurmClient) -> None:
    client.update_nodes(["spot-1"], state="down", reason="r")
    with pytest.raises(SlurmRefused, match="Invalid node state"):
        client.update_nodes(["real-1", "spot-1"], state="resume")
    assert not node(client, "spot-1").has("DOWN")
    with pytest.raises(SlurmRefused, match="Invalid node name") as refused:
        client.update_nodes(["spot-1", "nobody-1", "spot-2"], state="down", reason="r")
    assert "spot-1" not in str(refused.value)
    assert node(client, "spot-1").has("DOWN")
    assert node(client, "spot-2").has("DOWN")
    client.update_nodes(["spot-1", "spot-2"], state="resume")


def test_an_address_each_for_many_nodes_in_one_call(client: SlurmClient) -> None:
    names = ["spot-1", "spot-2"]
    client.update_nodes(names, address=",".join([NOWHERE] * 2))
    assert [node(client, name).address for name in names] == [NOWHERE] * 2
    for name in names:
        client.update_nodes([name], address=name)
        assert node(client, name).address == name


def test_power_up_and_down_by_hand(client: SlurmClient) -> None:
    client.update_nodes(["spot-3"], state="down", reason="r")
    client.update_nodes(["spot-3"], state="resume")
    client.update_nodes(["spot-3"], state="power_up", address="127.0.0.9")
    until(lambda: node(client, "spot-3").has("POWERING_UP"), "the node to be powered up")
    assert node(client, "spot-3").address == "127.0.0.9"
    client.update_nodes(["spot-3"], state="power_down_force")
    until(lambda: node(client, "spot-3").has("POWERING_DOWN", "POWERED_DOWN"), "the node to be powered down")


@pytest.mark.parametrize("job_id", ["999999", "999999_1"])
def test_an_unknown_job_is_refused(client: SlurmClient, job_id: str) -> None:
    for order in (client.requeue, client.start_now, client.hold, client.release):
        with pytest.raises(SlurmRefused, match="Invalid job id"):
            order(job_id)


@pytest.mark.parametrize("job_id", ["", "--help", "1 2", "1,2", "all", "1;2"])
def test_what_is_no_job_id_never_reaches_slurm(client: SlurmClient, job_id: str) -> None:
    with pytest.raises(SlurmRefused, match="not a job id"):
        client.requeue(job_id)


def test_a_slurmctld_that_is_away_is_unavailable_never_empty(make_client: MakeClient, slurm: PrivateSlurm) -> None:
    client = make_client(timeout=1.0)
    slurm.stop_slurmctld()
    try:
        for ask in (client.version, client.jobs, client.nodes, client.partitions):
            with pytest.raises(SlurmUnavailable):
                ask()
        with pytest.raises(SlurmUnavailable):
            client.requeue("1")
        with pytest.raises(SlurmUnavailable, match="spot-1"):
            client.update_nodes(["spot-1"], state="down", reason="r")
    finally:
        slurm.start_slurmctld()
    assert len(client.nodes()) == 4


def test_the_commands_own_words_when_they_are_left_to_give_up(slurm: PrivateSlurm) -> None:
    client = CliClient(slurm.bin_dir, slurm.conf, timeout=30.0)
    slurm.stop_slurmctld()
    try:
        # 22.05 puts the failure into the JSON's "errors" with an empty list beside it, 24.11 on standard error.
        with pytest.raises(SlurmUnavailable):
            client.jobs()
    finally:
        slurm.start_slurmctld()
