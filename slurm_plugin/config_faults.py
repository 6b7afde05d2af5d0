"""Reading burst.yaml, and telling in the user's words what is wrong with it."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from slurm_plugin.errors import ConfigError


class _UniqueKeys(yaml.SafeLoader):
    """YAML that refuses a key written twice: by itself the last one wins without a word. What can't be read is told with its place."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (yaml.YAMLError, RecursionError):
            raise
        except Exception as error:  # the 31st of February, among others
            raise yaml.MarkedYAMLError(
                problem=f"{str(node.value)[:80]}: {str(error) or type(error).__name__}", problem_mark=node.start_mark
            ) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.tag != "tag:yaml.org,2002:merge" and key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value}: written twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The file's keys and values, not yet validated. Raises ``ConfigError`` that names the file and the place."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:
        where = (
            f", line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}"
            if error.problem_mark
            else ""
        )
        raise ConfigError(f"{path}: is not YAML as it should be: {error.problem or error.context}{where}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must hold keys and values (cluster:, checkpoints:, providers:, …)")
    return data


def explain(path: Path, model: type[BaseModel], error: ValidationError) -> str:
    """One line a fault: file, key, what is wrong, what stands there or what is allowed."""
    faults = error.errors(include_url=False)
    places = [fault["loc"] for fault in faults]
    lines = []
    for fault in faults:
        loc = fault["loc"]
        if fault["type"] == "too_short" and any(p != loc and p[: len(loc)] == loc for p in places):
            continue  # pydantic leaves out what it could not read, and then counts what is left
        key = ".".join(str(part) for part in loc) or "(top)"
        if fault["type"] == "extra_forbidden":
            lines.append(f"{path}: {key}: unknown key; allowed here: {', '.join(_allowed(model, loc)) or 'none'}")
        elif fault["type"] == "missing":
            lines.append(f"{path}: {key}: missing, and has no default")
        elif fault["type"] == "too_short":
            lines.append(f"{path}: {key}: must have at least one entry")
        else:
            message = fault["msg"].removeprefix("Value error, ")
            given = "" if isinstance(fault["input"], dict | list | BaseModel) else f" (it is {fault['input']!r})"
            lines.append(f"{path}: {key}: {message}{given}")
    return "\n".join(lines)


def _allowed(top: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    """Keys that are allowed where an unknown one stood, by walking the models along ``loc``."""
    model: Any = top
    for part in loc[:-1]:
        model = _step(model, part)
        if model is None:
            return []
    inner = _models_in(model)
    return sorted(inner[0].model_fields) if len(inner) == 1 else []


def _step(model: Any, part: Any) -> Any:
    if get_origin(model) is dict:
        return get_args(model)[1]  # part is a name that the user chose
    inner = _models_in(model)
    by_tag = {tag: m for m in inner if "type" in m.model_fields for tag in get_args(m.model_fields["type"].annotation)}
    if part in by_tag:
        return by_tag[part]
    if len(inner) == 1 and str(part) in inner[0].model_fields and not isinstance(part, int):
        return inner[0].model_fields[str(part)].annotation
    return model if inner else None


def _models_in(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for a in get_args(annotation) for m in _models_in(a)]
