"""What the manager shows of itself and the cluster: metrics for Prometheus and a page for people, on one port of 127.0.0.1. Acts on nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from job_wrapper.store.io_types import ObjectStore
from slurm_plugin.config import Config
from slurm_plugin.ledger import Ledger
from slurm_plugin.manager.metrics import Metrics
from slurm_plugin.manager.page import Shown, shown
from slurm_plugin.manager.saves import Interruption, Saves
from slurm_plugin.manager.say import Once
from slurm_plugin.manager.server import Answer, Server
from slurm_plugin.pages import page, policy_of
from slurm_plugin.reconcile.view import View

TEMPLATE, SCRIPT = "cluster.html.j2", "cluster.js"
TRY_AGAIN = 30.0
"""Seconds after which a port that another has is asked for again."""
FAULT = "monitoring"


class Monitor:
    """A part of the loop, which tells it of each pass. Nothing here raises, and nothing holds a pass up."""

    def __init__(
        self, config: Config, ledger: Ledger, open_store: Callable[[], ObjectStore], once: Once, *, every: float | None = None
    ) -> None:  # fmt: skip
        """``every``: seconds between two looks at checkpoints; None: as `Saves` has it."""
        self._config, self._ledger, self._once = config, ledger, once
        self.metrics = Metrics(config.cluster, jobs=config.monitoring.jobs)
        self._partitions = frozenset(partition.name for partition in config.partitions)
        self.metrics.known((n.name for n in config.nodesets), config.providers, self._partitions)
        self.saves = Saves(
            config.cluster, open_store, once, self._interrupted, **({} if every is None else {"every": every})
        )
        self._event = ledger.newest_event()
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._view: View | None = None
        self._page: tuple[float, bytes] = (float("-inf"), b"")
        self._server: Server | None = None
        self._asked = float("-inf")

    @property
    def port(self) -> int | None:
        """The one that is listened on; None where it could not be had yet."""
        return self._server.port if self._server is not None else None

    def start(self) -> None:
        """Begin."""
        self.saves.start()
        self._listen()

    def stop(self) -> None:
        """Let go of port and threads."""
        self.saves.stop()
        if self._server is not None:
            self._server.stop()

    def begins(self) -> None:
        """A pass begins."""
        self._began = time.monotonic()

    def failed(self) -> None:
        """The pass failed."""
        self.metrics.failed()

    def passed(self, view: View) -> None:
        """The pass is done."""
        try:
            self._passed(view, time.monotonic() - self._began)
        except Exception as error:
            self._once.fault(FAULT, f"a pass could not be told: {error!r}")

    def _passed(self, view: View, seconds: float) -> None:
        if self._server is None and time.monotonic() - self._asked >= TRY_AGAIN:
            self._listen()
        self._view = view
        if view.jobs is not None:
            self.saves.watch(job for job in view.jobs if not job.partitions.isdisjoint(self._partitions))
        for number, event in self._ledger.events_after(self._event):
            self._event = number
            self.metrics.happened(event, view.policy.nodeset_of.get, view.policy.offerings)
        self.metrics.saved(self.saves.found(), self.saves.reachable)
        self.metrics.passed(view, seconds, len(self._once.lasting()), self._ledger_bytes())

    def _ledger_bytes(self) -> int:
        path = self._config.state_dir / "ledger.db"
        return sum(p.stat().st_size for p in (path, path.with_name(f"{path.name}-wal")) if p.exists())

    def _interrupted(self, interruption: Interruption) -> None:
        if interruption.seconds is None:
            self.metrics.uncommitted.inc()
        else:
            self.metrics.committed.observe(interruption.seconds)

    # --- what is asked for --------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        port = self._config.monitoring.port
        self._asked = time.monotonic()
        try:
            self._server = Server(port or 0, {"/": self._html, "/metrics": self._told, "/favicon.ico": _nothing})
        except OSError as error:
            self._once.fault(FAULT, f"port {port} of 127.0.0.1 can't be had, so nothing is shown: {error.strerror}")
            return
        self._server.start()
        self._once.well(FAULT)

    def _told(self) -> Answer:
        return Answer(CONTENT_TYPE_LATEST, generate_latest(self.metrics.registry))

    def _html(self) -> Answer:
        """Made at most once a second, however many look."""
        with self._lock:
            at, content = self._page
            if time.monotonic() - at >= 1.0:
                content = page(TEMPLATE, script=SCRIPT, shown=self.shown()).encode()
                self._page = time.monotonic(), content
        return Answer("text/html; charset=utf-8", content, policy_of(SCRIPT))

    def shown(self) -> Shown:
        """What the page shows now."""
        jobs = self._config.monitoring.jobs
        return shown(
            self._config.cluster, self._view, self.saves.found() if jobs else None, self._once.lasting() if jobs else (),
            self._partitions, time.time(),
        )  # fmt: skip


def _nothing() -> Answer:
    return Answer("image/x-icon", b"")
