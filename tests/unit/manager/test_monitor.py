"""What the manager shows: metrics that are right and bounded, and a page that tells no more than it should, to those on this machine alone."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_plugin.cloud.provider import Market, Offering, RefusalKind
from slurm_plugin.config import load_config
from slurm_plugin.errors import ConfigError
from slurm_plugin.ledger import Ledger
from slurm_plugin.ledger_offerings import LOST
from slurm_plugin.ledger_records import IntentState, OpenNotice
from slurm_plugin.manager import server
from slurm_plugin.manager.metrics import JOBS, Metrics, standing
from slurm_plugin.manager.monitor import Monitor
from slurm_plugin.manager.saves import Interruption, Saved, Saves
from slurm_plugin.manager.say import Once
from slurm_plugin.manager.server import CONNECTIONS, Answer, Server
from slurm_plugin.placement import Knowledge, OfferingState, plan
from tests.fixtures.ports import free_ports
from tests.unit.cli.conftest import Site
from tests.unit.manager.test_reach import until
from tests.unit.reconcile.views import NOW, A, B, intent, job, node, view, waiting

SECRETS = ("ann-the-user", "secret-project", "arn:aws:iam::123456789012:role/x", "10.0.0.1")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    (tmp_path / "state").mkdir()
    return made


@pytest.fixture
def ledger(site: Site) -> Iterator[Ledger]:
    made = Ledger.open(site.folder / "state/ledger.db", clock=lambda: site.now)
    yield made
    made.close()


@pytest.fixture
def start(site: Site, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Monitor]]:
    made: list[Monitor] = []
    # A thread that waits for its turn on a busy machine is no client that asks slowly, nor one that makes no room.
    monkeypatch.setattr(server, "ROOM", 60.0)
    monkeypatch.setattr(server._Handler, "timeout", 300.0)

    def build(settings: str = "", *, listening: bool = False) -> Monitor:
        path = site.folder / "burst.yaml"
        path.write_text(path.read_text() + settings)
        monitor = Monitor(load_config(path), ledger, lambda: site.store, Once(), every=0.05)
        if listening:
            monitor.start()
            made.append(monitor)
        return monitor

    yield build
    for monitor in made:
        monitor.stop()


def value(monitor: Monitor | Metrics, name: str, **labels: str) -> float | None:
    metrics = monitor.metrics if isinstance(monitor, Monitor) else monitor
    return metrics.registry.get_sample_value(f"spotburst_{name}", labels)


def busy(**changes: Any) -> Any:
    """Node 1 runs a job and is taken back, node 2 is prepared, node 3 is silent."""
    return view(
        [node("n1", "ALLOCATED DRAIN"), node("n2", "IDLE POWERING_UP"), node("n3", "IDLE")],
        [
            replace(job(7, nodes=("n1",)), user=SECRETS[0], name=SECRETS[1], comment=SECRETS[1]),
            waiting(8),
            job(9, "PENDING", priority=0, reason="JobHeldUser"),
            job(10, partition="elsewhere"),
        ],
        [intent("n1"), intent("n2", IntentState.ASKED), intent("n3", IntentState.RETIRED)],
        notices=(OpenNotice("notice", "n1", "launch-n1", A.id, NOW + 90, "agent", NOW - 5),),
        silent_since={"n3": NOW - 30},
        known=Knowledge({A.id: 1.5}),
        offerings={
            A.id: OfferingState(A.id, 2, NOW + 60, text=SECRETS[2]),
            B.id: OfferingState(B.id, 0, 0.0, float("inf"), text=SECRETS[2]),
        },
        **changes,
    )


def test_a_pass_is_told(start: Callable[..., Monitor]) -> None:
    monitor = start()
    monitor.begins()
    monitor.passed(busy())
    for name, labels, wanted in (
        ("slurmctld_up", {}, 1),
        ("last_pass_timestamp_seconds", {}, NOW),
        ("passes_total", {"result": "done"}, 1),
        ("pass_duration_seconds_count", {}, 1),
        ("cloud_listing_timestamp_seconds", {"provider": "sim"}, NOW - 0.1),
        ("nodes", {"nodeset": "spot", "state": "drained"}, 1),
        ("nodes", {"nodeset": "spot", "state": "coming up"}, 1),
        ("nodes", {"nodeset": "spot", "state": "up"}, 1),
        ("nodes", {"nodeset": "big", "state": "off"}, 1),
        ("nodes_silent", {}, 1),
        ("machines", {"provider": "sim", "market": "spot", "state": "live"}, 1),
        ("machines", {"provider": "sim", "market": "spot", "state": "asked"}, 1),
        ("machines", {"provider": "sim", "market": "spot", "state": "retired"}, 1),
        ("machines", {"provider": "sim", "market": "on-demand", "state": "live"}, 0),
        ("cost_per_hour", {}, 3.0),  # what is asked for does not run yet
        ("machines_without_price", {}, 0),
        ("offerings", {"provider": "sim", "state": "cooling"}, 1),
        ("offerings", {"provider": "sim", "state": "blocked"}, 1),
        ("offerings", {"provider": "sim", "state": "ready"}, 1),
        ("notices_open", {}, 1),
        ("jobs", {"state": "running"}, 1),
        ("jobs", {"state": "coming back"}, 1),
        ("jobs", {"state": "held"}, 1),
        ("jobs", {"state": "waiting"}, 0),
    ):
        assert value(monitor, name, **labels) == wanted, (name, labels)
    assert (value(monitor, "ledger_size_bytes") or 0) > 4096
    monitor.passed(view(cloud=False, known_nodes=None, known_jobs=None))
    assert value(monitor, "slurmctld_up") == 0
    # What is not known keeps its last value, and its age tells.
    assert value(monitor, "cloud_listing_timestamp_seconds", provider="sim") == NOW - 0.1
    assert value(monitor, "machines", provider="sim", market="spot", state="live") == 0
    monitor.failed()
    assert value(monitor, "passes_total", result="failed") == 1


@pytest.mark.parametrize(("refused", "stopped"), [(200.0, 150.0), (150.0, 200.0), (0.0, float("inf")), (150.0, 0.0)])
def test_what_stands_against_an_offering_is_called_as_choosing_calls_it(refused: float, stopped: float) -> None:
    offering = Offering("aws", "r", "z", "t", Market.SPOT)
    state = OfferingState(offering.id, 1, NOW + refused, NOW + stopped)
    (passed,) = plan([offering], {offering.id: state}, NOW).passed
    assert standing(state, NOW) == (passed.kind.value, passed.until)
    assert standing(state, NOW + 300)[0] == ("blocked" if stopped == float("inf") else "ready")


def test_what_happened_is_counted_once_from_the_ledger(start: Callable[..., Monitor], ledger: Ledger) -> None:
    ledger.event("down", "before the manager began", node="n1")
    monitor = start()
    calm = view()
    monitor.passed(calm)
    assert value(monitor, "nodes_set_down_total", nodeset="spot") == 0
    ledger.record_notice(OpenNotice("x", "n1", "l", A.id, None, "agent", NOW))
    ledger.end_notice("x", "over")
    ledger.event("down", "silent", node="n2")
    first, second = (ledger.open_intent("n1", "spot", "sim", A.id) for _ in range(2))
    ledger.launched(first.launch_id, "i-1")
    ledger.refused(second.launch_id, RefusalKind.QUOTA, "Limit", "no: really")
    ledger.close_intent(first.launch_id, LOST)
    odd = ledger.open_intent("n9", "gone", "old", "old/r/z/t/spot")
    ledger.refused(odd.launch_id, RefusalKind.NO_CAPACITY, "c", "t")
    ledger.event("cancelled", "CapacityUnavailable: …", job=3)
    for _ in range(2):
        monitor.passed(calm)
    assert value(monitor, "reclaims_total", nodeset="spot") == 1
    assert value(monitor, "nodes_set_down_total", nodeset="spot") == 1
    assert value(monitor, "machines_launched_total", provider="sim") == 1
    assert value(monitor, "launches_refused_total", provider="sim", reason="quota") == 1
    assert value(monitor, "launches_refused_total", provider="other", reason="no-capacity") == 1
    assert value(monitor, "machines_lost_total") == 1
    assert value(monitor, "jobs_given_up_total") == 1


def test_restarts_are_counted_as_slurm_counts_them(start: Callable[..., Monitor]) -> None:
    monitor = start()
    for restarts in (4, 4, 5, 5, 7):  # that it was 4 when the manager began is no restart
        monitor.passed(
            view(jobs=[job(7, restart_count=restarts), job(8, partition="elsewhere", restart_count=restarts)])
        )
    assert value(monitor, "requeues_total", partition="spot") == 3
    monitor.passed(view(jobs=[job(9, restart_count=1)]))
    assert value(monitor, "requeues_total", partition="spot") == 4


def test_series_of_jobs_are_few_and_go_with_them() -> None:
    metrics = Metrics("c")
    metrics.saved({str(n): Saved(NOW - n, n, 60.0) for n in range(1000)} | {"none": None}, True)
    ages = [s for m in metrics.registry.collect() if m.name == "spotburst_job_checkpoint_timestamp_seconds" for s in m.samples]  # fmt: skip
    assert len(ages) == JOBS
    assert {s.labels["job_id"] for s in ages} == {str(n) for n in range(1000 - JOBS, 1000)}
    assert value(metrics, "oldest_checkpoint_timestamp_seconds") == NOW - 999
    assert value(metrics, "jobs_without_checkpoint") == 1
    metrics.saved({"1": Saved(NOW, 1, None)}, None)
    assert value(metrics, "job_checkpoint_timestamp_seconds", job_id="1") == NOW
    assert value(metrics, "job_checkpoint_timestamp_seconds", job_id="999") is None
    assert value(metrics, "job_checkpoint_interval_seconds", job_id="1") is None
    assert value(metrics, "checkpoint_store_up") == 1
    hidden = Metrics("c", jobs=False)
    hidden.saved({"1": Saved(NOW, 1, 60.0)}, True)
    assert b'job="1"' not in exposed(hidden)
    assert value(hidden, "oldest_checkpoint_timestamp_seconds") == NOW


def test_who_reads_in_the_middle_of_a_pass_misses_no_job() -> None:
    metrics = Metrics("c")
    saves = {str(n): Saved(NOW, n, 60.0) for n in range(JOBS)}
    metrics.saved(saves, True)

    def tell() -> None:
        for _ in range(100):
            metrics.saved(saves, True)

    writer = threading.Thread(target=tell)
    writer.start()
    seen = {JOBS}
    while writer.is_alive():
        seen.add(exposed(metrics).count(b"spotburst_job_checkpoint_timestamp_seconds{"))
    assert seen == {JOBS}


def exposed(metrics: Metrics) -> bytes:
    from prometheus_client.exposition import generate_latest

    return generate_latest(metrics.registry)


def test_checkpoints_of_running_jobs_and_how_soon_they_came(site: Site) -> None:
    heard: list[Interruption] = []
    saves = Saves("demo", lambda: site.store, Once(), heard.append)
    claim = site.claim("7")
    running = [job(7, nodes=("n1",)), job(8)]
    saves.watch(running)
    assert saves.found() == {}
    saves.look()
    assert saves.found() == {"7": None}
    assert saves.reachable is True
    site.tick(10)
    site.commit(claim, 10, b"x")
    saves.look()
    assert saves.found() == {"7": Saved(site.now, 10, None)}
    arrived = site.tick(5)
    site.tick(4)
    site.commit(claim, 12, b"y", urgent=True)
    claim.interrupted("aws reclaim", {"arrived": arrived})
    saves.watch([waiting(7)])
    assert saves.found() == {}
    saves.look()
    second = site.claim("7", 1)
    site.tick(5)
    second.interrupted("lost", {"arrived": site.now - 1})
    saves.look()
    assert heard == [Interruption(4.0), Interruption(None)]
    saves.watch([])
    saves.watch([job(7, restart_count=2)])
    saves.look()
    assert len(heard) == 2, "what was there before anybody looked is not told again"
    assert saves.found()["7"] == Saved(site.now - 5, 12, None)


def test_a_store_that_is_away_is_told_and_found_again(site: Site) -> None:
    saves = Saves("demo", lambda: site.store, Once())
    site.claim("7")
    saves.watch([job(7)])
    (site.folder / "store").rename(site.folder / "away")
    saves.look()
    assert saves.reachable is False
    (site.folder / "away").rename(site.folder / "store")
    saves.look()
    assert saves.reachable is True
    assert saves.found() == {"7": None}


def ask(port: int, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(method, path, headers={"Host": f"127.0.0.1:{port}", **headers})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def test_who_is_answered_and_what_not(start: Callable[..., Monitor]) -> None:
    monitor = start(listening=True)
    monitor.passed(busy())
    port = monitor.port
    assert port is not None
    for host in ("127.0.0.1", f"localhost:{port}", "LOCALHOST:9000"):  # a tunnel has another port
        assert ask(port, Host=host)[0] == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "localhost.", "user@localhost"):
        status, _, text = ask(port, Host=host)
        assert (status, "spot" in text.replace("spotburst", "")) == (403, False)
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert ask(port, method=method)[0] == 501
    assert ask(port, "/../etc/passwd")[0] == 404
    assert ask(port, "/metrics?x=1")[0] == 200
    status, headers, text = ask(port, method="HEAD")
    assert (status, text) == (200, "")
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    status, headers, text = ask(port, "/metrics")
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert "spotburst_notices_open 1.0" in text
    # On loopback only.
    with socket.socket() as other:
        assert other.connect_ex(("127.0.0.2", port)) != 0


def test_clients_that_hang_take_no_more_than_their_share(start: Callable[..., Monitor]) -> None:
    monitor = start(listening=True)
    monitor.passed(busy())
    assert monitor.port is not None
    threads = threading.active_count()
    held = [socket.create_connection(("127.0.0.1", monitor.port), 60) for _ in range(CONNECTIONS - 1)]
    assert ask(monitor.port)[0] == 200
    held += [socket.create_connection(("127.0.0.1", monitor.port), 60) for _ in range(3 * CONNECTIONS)]
    until(lambda: threading.active_count() <= threads + CONNECTIONS + 1)
    monitor.passed(busy())
    for one in held:
        one.close()


def test_who_asks_slowly_keeps_nobody_else_from_asking(start: Callable[..., Monitor]) -> None:
    monitor = start(listening=True)
    monitor.passed(busy())
    assert monitor.port is not None
    slow = [socket.create_connection(("127.0.0.1", monitor.port), 60) for _ in range(CONNECTIONS)]
    for one in slow:
        one.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: it goes on\r\n")
    for _ in range(CONNECTIONS + 1):
        slow.append(socket.create_connection(("127.0.0.1", monitor.port), 60))
        assert ask(monitor.port, "/metrics")[0] == 200
    for one in slow:
        one.close()


def test_a_fault_in_making_an_answer_is_one_answer() -> None:
    def broken() -> Answer:
        raise RuntimeError("secret")

    made = Server(free_ports(1)[0], {"/": broken})
    made.start()
    status, _, text = ask(made.port)
    assert (status, "secret" in text) == (500, False)
    made.stop()
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", made.port))


def test_a_port_that_another_has_stops_nothing_and_is_taken_later(
    start: Callable[..., Monitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", free_ports(1)[0]))
        other.listen()
        monitor = start(f"monitoring: {{port: {other.getsockname()[1]}}}\n", listening=True)
        assert monitor.port is None
        monitor.passed(busy())
        assert value(monitor, "faults") == 1
    monkeypatch.setattr("slurm_plugin.manager.monitor.TRY_AGAIN", 0.0)
    monitor.passed(busy())
    assert monitor.port is not None
    assert ask(monitor.port)[0] == 200


def test_the_page_shows_what_goes_on_and_nobodys_secrets(start: Callable[..., Monitor], site: Site) -> None:
    monitor = start(listening=True)
    assert monitor.port is not None
    assert "starts" in ask(monitor.port)[2]
    monitor.passed(busy())
    monitor._page = (float("-inf"), b"")
    text = ask(monitor.port)[2]
    for shown in (
        "n1",
        "drained",
        "silent for",
        "cools: no capacity",
        "blocked until",
        "PENDING (BeginTime)",
        ">7<",
        "Cluster demo",
        "3.00 an hour",
    ):
        assert shown in text, shown
    assert ">10<" not in text, "a job in no partition of ours"
    for secret in (*SECRETS, "launch-n1", str(site.folder)):
        assert secret not in text
        assert secret not in ask(monitor.port, "/metrics")[2]


def test_jobs_are_left_out_where_the_site_says_so(start: Callable[..., Monitor]) -> None:
    monitor = start("monitoring: {jobs: false}\n", listening=True)
    monitor.passed(busy())
    assert monitor.port is not None
    text = ask(monitor.port)[2]
    assert ">7<" not in text and 'id="jobs"' not in text
    assert "n1" in text


@pytest.mark.parametrize("wrong", ["{port: 0}", "{port: 70000}", "{address: 0.0.0.0}", "{jobs: maybe}"])
def test_settings_that_are_wrong_are_named(site: Site, wrong: str) -> None:
    path = site.folder / "burst.yaml"
    path.write_text(path.read_text() + f"monitoring: {wrong}\n")
    with pytest.raises(ConfigError, match="monitoring"):
        load_config(path)


def test_off_by_default(site: Site) -> None:
    assert load_config(site.folder / "burst.yaml").monitoring.port is None
