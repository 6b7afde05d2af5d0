"""What a node knows about its cluster: a small JSON file that the provider puts there at boot.

Looked for at ``$SPOTBURST_NODE_CONFIG``, ``/run/spotburst/node.json``, ``/etc/spotburst/node.json``. JSON rather than YAML, and a
dataclass rather than pydantic, because the wrapper reads it and must start fast.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from job_wrapper.errors import UsageError

PLACES = (Path("/run/spotburst/node.json"), Path("/etc/spotburst/node.json"))
NOTICE_FILE = "/run/spotburst/notice.json"


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Settings of the cluster as the node needs them; every field may be overridden by an argument of ``spotburst run``."""

    cluster: str = ""
    node: str = ""
    nodeset: str = ""
    offering: str = ""
    provider: str = ""
    """Whose metadata service to ask: aws, gcp, azure; auto asks which is here, none asks nobody. "": as auto on a cloud's machine."""
    notice_seconds: float = 0.0
    """How long a preempted machine has where its cloud does not tell (Compute Engine); 0: the usual 30 s."""
    metadata_url: str = "http://169.254.169.254"
    notice_file: str = NOTICE_FILE
    uri: str = ""
    endpoint_url: str = ""
    store_mark: str = ""
    """Of the store at ``uri``, as the manager knows it (``store.open.mark_of``); "" where it does not."""
    interval: float = 0.0
    """Seconds between checkpoints; 0 for ``auto`` (`interval`)."""
    interruption_rate: float = 0.0
    """Interruptions an hour of a machine of this offering, as the manager estimated them at its launch; 0: not known."""
    keep: int = 3
    max_attempts: int = 8
    max_attempts_multi_node: int = 3
    barren_attempts: int = 2
    slurm_bin: str = ""

    @property
    def here(self) -> str:
        """Slurm's name of this node: by its settings, else as slurmd tells its steps; "" where nobody does."""
        return self.node or os.environ.get("SLURMD_NODENAME", "")

    def to_json(self) -> str:
        """As the file holds it."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"


def _checked(name: str, value: object, default: object) -> Any:
    """``value`` if it is of the kind of the field's default. Raises ``ValueError`` naming the key."""
    if isinstance(default, str):
        fits, wanted = isinstance(value, str), "a string"
    elif isinstance(default, float):
        least = 0.0 if default == 0 else 1e-3
        fits = isinstance(value, int | float) and not isinstance(value, bool) and least <= value < 1e9
        wanted = "a number of seconds"
    else:
        fits, wanted = isinstance(value, int) and not isinstance(value, bool) and value >= 1, "a whole number from 1 on"
    if not fits:
        raise ValueError(f"{name}: {value!r} is not {wanted}")
    return value


def load_node_config(environ: Mapping[str, str] = os.environ) -> NodeConfig:
    """The node's settings, or the defaults where there is no file. Keys that this version does not know are passed over."""
    named = environ.get("SPOTBURST_NODE_CONFIG")
    for place in [Path(named)] if named else PLACES:
        try:
            data = json.loads(place.read_text(encoding="utf-8"))
            if not isinstance(data, dict):
                raise ValueError("not a JSON object")
            return NodeConfig(
                **{f.name: _checked(f.name, data[f.name], f.default) for f in fields(NodeConfig) if f.name in data}
            )
        except FileNotFoundError:
            if named:
                raise UsageError(f"{place}: named by SPOTBURST_NODE_CONFIG, but there is no such file") from None
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise UsageError(f"{place}: can't be read as this node's settings: {error}") from error
    return NodeConfig()
