"""Standard input, output and error that were closed before this process began, as daemons and some launchers leave them."""

from __future__ import annotations

import os
import sys


def lead_somewhere() -> None:
    """From now on those lead to /dev/null; before anything else is opened.

    Else the next files that are opened take their numbers, and what a library says of its fault goes into a socket or a checkpoint; and
    Python's own are None.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
