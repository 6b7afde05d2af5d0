"""A cloud's public price list over HTTPS: one page at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import requests

from slurm_plugin.cloud.refusals import shorten
from slurm_plugin.errors import CloudUnavailable

TIMEOUT = (3.0, 30.0)
"""Seconds to connect, and for an answer: pages hold thousands of prices."""
MOST_PAGES = 200
"""A list that goes on for longer is not to be trusted."""
KEPT = 6 * 3600.0
"""Seconds for which a list is kept: list prices change once a day at most."""


def page(session: requests.Session, url: str, params: Mapping[str, str]) -> dict[str, Any]:
    """One page. Raises ``CloudUnavailable`` in the server's own words."""
    try:
        answer = session.get(url, params=dict(params), timeout=TIMEOUT)
        if answer.status_code != 200:
            raise CloudUnavailable(f"{url}: HTTP {answer.status_code}: {shorten(answer.text)}")
        found = answer.json()
    except (requests.RequestException, ValueError, RecursionError) as error:
        raise CloudUnavailable(f"{url}: {shorten(str(error))}") from error
    if not isinstance(found, dict):
        raise CloudUnavailable(f"{url}: the answer is no list of prices")
    return found


def records(answer: Mapping[str, Any], key: str, url: str) -> list[dict[str, Any]]:
    """The page's list under ``key``, none where there is none. Raises ``CloudUnavailable`` where it is no list of objects."""
    found = answer.get(key) or []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise CloudUnavailable(f"{url}: {key} is no list of objects")
    return found


def is_price(value: object) -> TypeGuard[float]:
    """Whether it can be one: a finite number of 0 or more."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
