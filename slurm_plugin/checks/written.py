"""Whether what spotburst wrote for Slurm is what it would write now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slurm_plugin import render
from slurm_plugin.checks.finding import Finding, fault
from slurm_plugin.checks.power import PROGRAMS
from slurm_plugin.checks.slurm_conf import SlurmConf
from slurm_plugin.config import Config
from slurm_plugin.errors import ConfigError
from slurm_plugin.place_files import is_ours


def stale(config: Config, conf: SlurmConf) -> Iterator[Finding]:
    """Files that stand beside slurm.conf, bear spotburst's mark, and differ from what burst.yaml gives."""
    folder, bin_dir = config.slurm.conf.parent, _bin_dir(conf)
    programs = render.Programs.beside_python(bin_dir / "python")
    try:
        fresh = {
            "spotburst.conf": render.spotburst_conf(config, conf.version, programs, folder / "spotburst.conf"),
            "spotburst-gres.conf": render.gres_conf(config),
        }
    except ConfigError:
        return
    for name, text in fresh.items():
        try:
            there = (folder / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if is_ours(there, None) and there.rstrip("\n") != text.rstrip("\n"):
            which = "slurm" if name == "spotburst.conf" else "gres"
            yield fault(
                name,
                f"{folder / name} is not what burst.yaml gives now (`spotburst render all --diff --bin-dir {bin_dir}` shows where)",
                f"`spotburst render install {which} --bin-dir {bin_dir}`, then `scontrol reconfigure` "
                "(before 23.11, where nodes come or go, restart slurmctld)",
            )


def _bin_dir(conf: SlurmConf) -> Path:
    """Where the programs that Slurm runs are: the check itself may run from elsewhere."""
    for key, (name, _) in PROGRAMS.items():
        path = Path(conf.text(key).split(" ")[0])
        if path.name == name:
            return path.parent
    return render.Programs.beside_python().spotburst.parent
