"""The loop: look, decide, act, wait."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slurm_plugin import render
from slurm_plugin.actions import Action, ForgetJob, RememberJob
from slurm_plugin.config import Config
from slurm_plugin.ledger import Ledger
from slurm_plugin.ledger_records import IntentState
from slurm_plugin.manager.apply import Applier
from slurm_plugin.manager.booting import LOOK_EVERY, Booting
from slurm_plugin.manager.describing import Describing
from slurm_plugin.manager.gone import Gone
from slurm_plugin.manager.hearing import Hearing
from slurm_plugin.manager.launch import Launcher
from slurm_plugin.manager.observe import Observer
from slurm_plugin.manager.patience import Patience, patient
from slurm_plugin.manager.pricing import Pricing
from slurm_plugin.manager.providers import build_lanes
from slurm_plugin.manager.rates import Rates
from slurm_plugin.manager.reach import Reach
from slurm_plugin.manager.runs import RunReader
from slurm_plugin.manager.say import Once, log, whereabouts
from slurm_plugin.manager.service import Service
from slurm_plugin.manager.sound import Soundness
from slurm_plugin.manager.status import status_line
from slurm_plugin.manager.stores import Stores
from slurm_plugin.manager.sweeper import Sweeper
from slurm_plugin.manager.turn import Post
from slurm_plugin.manager.wake import Waker
from slurm_plugin.prices import load_prices
from slurm_plugin.reconcile import Policy, View, decide
from slurm_plugin.reconcile.comeback import waits_for_begin_time
from slurm_plugin.reconcile.flags import Phase, phase
from slurm_plugin.reconcile.index import ACTIVE
from slurm_plugin.slurm.cli import CliClient
from slurm_plugin.slurm.connect import connect_for_long

if TYPE_CHECKING:
    from slurm_plugin.manager.monitor import Monitor

PRUNE_EVERY = 3600.0


class Loop:
    """Owns the parts and runs them until stopped."""

    def __init__(
        self,
        config: Config,
        observer: Observer,
        applier: Applier,
        waker: Waker,
        ledger: Ledger,
        reach: Reach | None = None,
        runs: RunReader | None = None,
        sweeper: Sweeper | None = None,
        pricing: Pricing | None = None,
        describing: Describing | None = None,
        hearing: Hearing | None = None,
        post: Post | None = None,
        monitor: Monitor | None = None,
        booting: Booting | None = None,
        stores: Stores | None = None,
    ) -> None:
        self.config, self.observer, self.applier, self.waker, self.ledger = config, observer, applier, waker, ledger
        self.patience = Patience()
        self.service, self.post = Service({}), post
        """Told of each pass that ends; asked before each whether it may be."""
        self.reach, self.runs, self.monitor = reach, runs, monitor
        parts = (reach, runs, sweeper, pricing, hearing, describing, post, monitor, booting, stores)
        self.parts = [part for part in parts if part is not None]

    @classmethod
    def build(cls, config: Config, service: Service | None = None, post: Post | None = None) -> Loop:
        """From the settings; ``service`` is told what goes on, ``post`` asked whether it may. Raises ``ConfigError``. slurmctld need not run yet, nor any cloud answer."""
        client = connect_for_long(config.slurm)
        lanes = build_lanes(config)
        policy = Policy.of(config)
        ledger = Ledger.open(config.state_dir / "ledger.db")
        waker = Waker(config.state_dir / "manager.sock")
        once = Once()
        reach = Reach(max(0.2, config.manager.silent_prepare / 4), wake=waker.nudge)
        booting = Booting(client, Reach(LOOK_EVERY), once)
        stores = Stores(config)
        runs = RunReader(config.cluster, stores.open, once, wake=waker.nudge)
        hearing = Hearing(lanes, ledger, config.state_dir, once, wake=waker.nudge)
        table = load_prices(config.prices) if config.prices else None
        observer = Observer(
            policy,
            client,
            lanes,
            ledger,
            config.state_dir,
            once=once,
            reach=reach,
            booting=booting,
            hearing=hearing,
            runs=runs,
            prices=table,
        )
        rates = Rates(ledger)
        launcher = Launcher(policy, lanes, ledger, lambda *names: _node_config(config, rates, *names), once)
        for freed in ledger.settings_are(policy.settings):
            log.info("blocked no longer: its settings have changed", offering=freed)
        unknown = sorted({i.provider for i in ledger.intents()} - set(lanes))
        for name in unknown:
            log.error(
                "machines of a provider that burst.yaml no longer names may still run; name it again", provider=name
            )
        gone = Gone(config.state_dir / "gone_jobs.json")
        keep, jobs = config.checkpoints.keep_ended, CliClient(config.slurm.bin_dir, config.slurm.conf).jobs
        sweeper = Sweeper(config.cluster, stores.open, keep, once, gone=gone, jobs=jobs)
        pricing = Pricing(tuple(policy.offerings.values()), lanes, ledger, once)
        describing = Describing(tuple(policy.offerings.values()), lanes, ledger, once)
        patience = Patience()
        launcher.enough, launcher.store_mark = patience.over, lambda: stores.mark
        applier = Applier(patient(client, patience), ledger, launcher, once)
        parts = (
            reach,
            runs,
            sweeper,
            pricing,
            describing,
            hearing,
            post,
            _monitor(config, ledger, stores, once),
            booting,
            stores,
        )
        loop = cls(config, observer, applier, waker, ledger, *parts)
        loop.service, loop.patience = service or loop.service, patience
        return loop

    def stop(self) -> None:
        """End after the present pass. Safe in a signal handler."""
        self.waker.stop()

    def run(self) -> None:
        """Until ``stop``, or until this manager may act no more. An unexpected fault ends one pass, not the loop.

        The watchdog hears of passes that end, so one that hangs has the manager started again. Raises ``LedgerDamaged`` where only that helps.
        """
        sound = Soundness(self.ledger)
        spare_collections()
        for part in self.parts:
            part.start()
        log.info("manager started", cluster=self.config.cluster, nodes=len(self.observer.policy.nodeset_of))
        pruned = float("-inf")
        faults = self.observer.once
        self.service.ready()
        try:
            while not self.waker.stopped:
                if self.post is not None and (why := self.post.lost()):
                    log.warning("this manager stops acting", why=why)
                    break
                busy = failed = True
                try:
                    busy = self.once()
                    if time.monotonic() - pruned > PRUNE_EVERY:
                        self.ledger.prune()
                        pruned = time.monotonic()
                    faults.well("a pass")
                    failed = False
                except Exception as error:
                    if faults.fault("a pass", f"failed: {error!r}"):
                        log.error("a pass failed", exc_info=True)
                    self.service.status(status_line(None, faults.lasting()))
                    if self.monitor is not None:
                        self.monitor.failed()
                    self.waker.wait(1.0)
                self.service.alive()
                sound.look(failed)
                pause = self.config.manager.busy_interval if busy else self.config.manager.interval
                self.waker.wait(min(pause, self.service.longest_pause))
        finally:
            self.service.stopping()
            for part in self.parts:
                part.stop()
            self.observer.close()
            self.waker.close()
            self.ledger.close()
            log.info("manager stopped")

    def once(self) -> bool:
        """One pass. True if something is in transition, so that the next one comes soon."""
        self.patience.begin()
        if self.monitor is not None:
            self.monitor.begins()
        view = self.observer.look()
        know(view)
        actions = decide(view)
        self.applier.apply(actions, view)
        self.service.status(status_line(view, self.observer.once.lasting()))
        if self.monitor is not None:
            self.monitor.passed(view)
        return in_transition(view, actions)


def know(view: View) -> None:
    """For the log's lines of this pass: who is where, in which attempt."""
    names = {job.job_id: job.name_id for job in view.jobs or ()}
    whereabouts.know(
        ((job.name_id, job.restart_count, job.nodes if job.has(*ACTIVE) else ()) for job in view.jobs or ()),
        {names[job]: max(tail.epoch for tail in tails) for job, tails in view.runs.items() if job in names and tails},
    )


def spare_collections() -> None:
    """For this process: a pass makes hundreds of thousands of values and no cycles, and looking for these is a third of its time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 10, 10)


def in_transition(view: View, actions: tuple[Action, ...]) -> bool:
    """Whether anything is on its way that somebody waits for."""
    if any(not isinstance(a, RememberJob | ForgetJob) for a in actions):
        return True
    if view.notices or view.replacements or view.requests:
        return True
    if any(view.now - since <= view.policy.silent_down + 10 for since in view.silent_since.values()):
        return True
    if any(i.state is not IntentState.LIVE for i in view.intents):
        return True
    moving = (Phase.COMING_UP, Phase.ASKED_UP, Phase.GOING_OFF)
    if view.nodes is not None and any(
        phase(view.nodes[n]) in moving for n in view.policy.nodeset_of if n in view.nodes
    ):
        return True
    return any(waits_for_begin_time(view, job) for job in view.jobs or ())


def _monitor(config: Config, ledger: Ledger, stores: Stores, once: Once) -> Monitor | None:
    if config.monitoring.port is None:
        return None
    from slurm_plugin.manager.monitor import Monitor

    return Monitor(config, ledger, stores.open, once)


def _node_config(config: Config, rates: Rates, nodeset: str, node: str, offering_id: str) -> Mapping[str, Any]:
    from dataclasses import asdict

    found = next(n for n in config.nodesets if n.name == nodeset)
    offering = next(o for o in config.offerings_of(found) if o.id == offering_id)
    return asdict(render.node_config(config, found, node, offering, rate=rates.of(offering)))
