"""The program's configuration: kept with the checkpoint, compared at a resume. A changed hyper-parameter is never passed over."""

from __future__ import annotations

import dataclasses
import enum
import os
from argparse import Namespace
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import torch

from job_wrapper.checkpoint.state import UnsupportedState, dtype_name
from job_wrapper.errors import ConfigChanged

ALLOW_VARIABLE = "SPOTBURST_ALLOW_CONFIG_CHANGE"
"""Keys that may differ, separated by commas; ``*`` allows any."""

_ABSENT = object()


def flatten(config: Any) -> dict[str, Any]:
    """A dict, dataclass, ``argparse.Namespace`` or pydantic model, nested or not, as ``{"optimizer.lr": 0.1, …}`` with values that JSON can hold.

    Raises ``UnsupportedState`` naming the key whose value can't be compared after a restart.
    """
    flat: dict[str, Any] = {}
    _flatten(config, "", flat)
    return flat


def allowed_keys(keys: Collection[str], environ: Mapping[str, str] = os.environ) -> frozenset[str]:
    """The keys that may differ: those given and those in ``SPOTBURST_ALLOW_CONFIG_CHANGE``."""
    named = (key.strip() for key in environ.get(ALLOW_VARIABLE, "").split(","))
    return frozenset(keys) | {key for key in named if key}


def differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Keys whose values differ, with the stored and the present one; None stands for a key that isn't there. Pure."""
    changed = {}
    for key in sorted({*stored, *now}):
        old, new = stored.get(key, _ABSENT), now.get(key, _ABSENT)
        if not _same(old, new):
            changed[key] = (None if old is _ABSENT else old, None if new is _ABSENT else new)
    return changed


def check(
    stored: Mapping[str, Any], now: Mapping[str, Any], allowed: Collection[str], where: str
) -> dict[str, tuple[Any, Any]]:
    """The differences, if each of them is allowed: by its key, by a part before a dot, or by ``*``. Pure.

    Raises ``ConfigChanged`` with a line for each that is not.
    """
    changed = differences(stored, now)
    refused = [key for key in changed if not _is_allowed(key, allowed)]
    if refused:
        lines = "\n".join(f"  {key}: {_text(stored, key)} in the checkpoint, {_text(now, key)} now" for key in refused)
        raise ConfigChanged(
            f"the configuration differs from that of {where}:\n{lines}\n"
            f"To go on with the new values all the same, set {ALLOW_VARIABLE}={','.join(refused)} "
            f"(or pass allow_config_change=[…], or `spotburst run --allow-config-change {refused[0]}`); "
            "to begin anew, start a new job or give another --run"
        )
    return changed


def _text(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "absent"


def _is_allowed(key: str, allowed: Collection[str]) -> bool:
    return "*" in allowed or any(key == a or key.startswith((f"{a}.", f"{a}[")) for a in allowed)


def _same(old: Any, new: Any) -> bool:
    # True is not 1 and 1 is 1.0; a NaN is itself.
    return isinstance(old, bool) == isinstance(new, bool) and (old == new or (old != old and new != new))


def _flatten(value: Any, path: str, flat: dict[str, Any]) -> None:
    if isinstance(value, Namespace):
        value = vars(value)
    elif callable(getattr(value, "model_dump", None)) and not isinstance(value, type):
        value = value.model_dump()  # pydantic
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        if not value and path:
            flat[path] = {}
        for key, one in value.items():
            _flatten(one, f"{path}.{key}" if path else str(key), flat)
    elif not path:
        raise UnsupportedState(
            f"config: is a {type(value).__name__}; give a dict, a dataclass or an argparse.Namespace of plain values"
        )
    elif isinstance(value, (set, frozenset)):
        flat[path] = sorted((_plain(v, path) for v in value), key=repr)
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        if all(_is_plain(v) for v in value):
            flat[path] = [_plain(v, path) for v in value]
        else:
            for index, one in enumerate(value):
                _flatten(one, f"{path}[{index}]", flat)
    else:
        flat[path] = _plain(value, path)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, PurePath, enum.Enum, torch.dtype, torch.device))


def _plain(value: Any, path: str) -> Any:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (PurePath, torch.device)):
        return str(value)
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    raise UnsupportedState(
        f"config.{path}: a {type(value).__name__} can't be kept and compared after a restart; give a number, a string, or a list of them"
    )
