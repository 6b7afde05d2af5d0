"""What ``bench_chaos`` and ``bench_crowd`` share: acts to be undone, what must hold at the end, the command line."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from job_wrapper.store.io_types import Entry
from slurm_plugin.cloud.provider import InstanceState
from slurm_plugin.local_cluster.cluster import LocalCluster
from slurm_plugin.local_cluster.sweep import sweep

Say = Callable[[str], None]
Undo = Callable[[], object]


@dataclass
class Due:
    """By what was done: when it is to be undone (Unix seconds), and how."""

    acts: dict[str, tuple[float, Undo]] = field(default_factory=dict)

    def later(self, what: str, seconds: float, act: Undo) -> None:
        """Undo it so many seconds from now."""
        self.acts[what] = (time.time() + seconds, act)

    def undo(self, what: str) -> None:
        """Now; nothing if there is nothing to undo."""
        _, act = self.acts.pop(what, (0.0, None))
        if act is not None:
            act()

    def overdue(self) -> list[str]:
        """What is to be undone now."""
        return [what for what, (when, _) in self.acts.items() if when <= time.time()]

    def manager_away(self, cluster: LocalCluster, seconds: float) -> None:
        """Kill the manager, and start it again after that."""
        self.undo("manager")
        cluster.kill_manager()
        self.later("manager", seconds, cluster.start_manager)

    def slurmctld_away(self, cluster: LocalCluster, number: int, seconds: float) -> None:
        """The same for slurmctld, by that signal."""
        self.undo("slurmctld")
        cluster.kill_slurmctld(number)
        self.later("slurmctld", seconds, cluster.start_slurmctld)

    def store_away(self, store: Path, seconds: float) -> None:
        """The store's folder is not where it was."""
        self.undo("store")
        away = store.with_name("away")
        store.rename(away)
        self.later("store", seconds, lambda: away.rename(store))


def assert_kept(seen: Mapping[int, Entry], entries: Iterable[Entry]) -> None:
    """All entries that a log has ever shown are in it still, unchanged."""
    now = {entry.seq: entry for entry in entries}
    lost = [seq for seq, entry in seen.items() if now.get(seq) != entry]
    assert not lost, f"entries that the log has shown and no longer has, or has changed: {lost}"


def until_all_is_over(cluster: LocalCluster) -> None:
    """Every job has ended, every machine is gone, all nodes are usable. Raises ``TimeoutError`` that says what is not."""
    clouds = [cluster.cloud(name) for name in cluster.config.providers]
    cluster.wait_for(lambda: not cluster.run("squeue", "-h").strip(), 180, "every job to end")
    cluster.wait_for(
        lambda: all(i.state is InstanceState.GONE for cloud in clouds for i in cloud.instances()),
        180,
        "every machine to be gone",
    )
    cluster.wait_for(
        lambda: all(n.has("POWERED_DOWN") and not n.has("DOWN", "DRAIN") for n in cluster.client().nodes()),
        180,
        "all nodes to be powered down and usable",
    )


def command(doc: str | None, faults: int, play: Callable[..., None], **choices: Any) -> int:
    """``play(folder, seed, faults, …, say)`` by the command line; ``choices``: names of more arguments, each with its values, the first by default."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=faults)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    for name, values in choices.items():
        parser.add_argument(f"--{name}", choices=values, default=values[0])
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    sweep()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="bench-faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    more = [getattr(given, name) for name in choices]
    try:
        play(folder, given.seed, given.faults, *more, lambda line: print(line, flush=True))
    except (AssertionError, TimeoutError) as error:
        print(f"seed {given.seed}: {error}\nlogs: {folder}", flush=True)
        return 1
    return 0
