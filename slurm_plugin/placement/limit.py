"""What a run may cost: the administrator's limit of a nodeset, and a job's own, by the word ``cost_limit=…`` in its comment. Pure.

The comment (``sbatch --comment``) is what every version of Slurm lets a job say of itself, before it runs and, by ``scontrol update``, later.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from job_wrapper.comments import OURS
from slurm_plugin.placement.rules import Rules

WORD = "cost_limit="
_WORD = re.compile(r"(?<![\w-])cost_limit=([^\s,;|]*)")


@dataclass(frozen=True, slots=True)
class CostLimit:
    """``limit`` in the currency of the prices, None without one; whose it is; and what is wrong with the job's own, "" if nothing."""

    limit: float | None = None
    of_job: bool = False
    fault: str = ""


def cost_limit(comment: str, rules: Rules | None) -> CostLimit:
    """The lower of the two. A job's own that is no number above 0 counts as none."""
    usual = rules.cost_limit if rules is not None else None
    if WORD not in comment:
        return CostLimit(usual)
    own = "" if comment.startswith(OURS) else comment.split(f" | {OURS}")[0]
    word = _WORD.search(own)
    if word is None:
        return CostLimit(usual)
    try:
        wanted = float(word[1])
    except ValueError:
        wanted = math.nan
    if not (math.isfinite(wanted) and wanted > 0):
        return CostLimit(usual, fault=f"{word[0]} is no limit: write a number above 0, such as cost_limit=25")
    return CostLimit(wanted, True) if usual is None or wanted <= usual else CostLimit(usual)
