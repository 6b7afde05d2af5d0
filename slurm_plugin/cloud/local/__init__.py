"""The embedded cloud (DESIGN §7): a machine is a process tree in namespaces of its own on this host.

``cloud.py`` is the provider; ``machine.py`` and ``init.py`` run as the machines themselves and use the standard library alone, which
is why nothing is imported here.
"""

from __future__ import annotations
