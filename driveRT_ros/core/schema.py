"""Typed parameters: frozen dataclasses that check themselves, from dict or YAML.

A field made by :func:`param` carries its description, unit and range. The same record checks
values here and describes the parameter to ROS (``nodes/params.py``), so both always agree.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.yaml_text import read_yaml

T = TypeVar("T", bound="Config")


@dataclasses.dataclass(frozen=True)
class ParamInfo:
    """What one parameter means and which values it takes.

    Args:
        doc: One sentence for people.
        unit: Physical unit, empty where there is none.
        ge: Least value (of every element), or None.
        le: Greatest value (of every element), or None.
        choices: Allowed values, empty where any will do.
        lengths: Allowed lengths of a list, empty where any will do.
    """

    doc: str
    unit: str = ""
    ge: float | None = None
    le: float | None = None
    choices: tuple[Any, ...] = ()
    lengths: tuple[int, ...] = ()


def param(default: Any, doc: str, **info: Any) -> Any:
    """Declare a parameter with its default, description and range (see :class:`ParamInfo`)."""
    return dataclasses.field(default=default, metadata={"param": ParamInfo(doc, **info)})


def group(kind: type) -> Any:
    """Declare a group of parameters, itself a :class:`Config`, with its own defaults."""
    return dataclasses.field(default_factory=kind)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One flattened parameter: dotted name, type, default and description."""

    name: str
    kind: type  # bool, int, float or str; the element type where is_list
    is_list: bool
    default: Any
    info: ParamInfo


@dataclasses.dataclass(frozen=True)
class Config:
    """Base of every configuration; a subclass checks relations between fields in ``check``."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if "param" in field.metadata:
                value = _checked(field.name, _hints(type(self))[field.name], field, self)
                object.__setattr__(self, field.name, value)
        self.check()

    def check(self) -> None:
        """Raise ConfigError where fields contradict each other."""

    @classmethod
    def from_dict(cls: type[T], values: Mapping[str, Any], *, prefix: str = "") -> T:
        """Build from nested (or dotted) names; what is not named keeps its default.

        Args:
            values: ``{"voxelization": {"max_voxels": 1000}}`` or
                ``{"voxelization.max_voxels": 1000}``. Ints are accepted for floats.
            prefix: Name of the enclosing group, for messages.

        Raises:
            ConfigError: On an unknown key, a wrong type or length, or a value out of range.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"Parameters must be a mapping of names to values, got {values!r}.")
        values = _nested(values)
        fields = {f.name: f for f in dataclasses.fields(cls)}
        kwargs: dict[str, Any] = {}
        for key, value in values.items():
            if key not in fields:
                raise ConfigError(_unknown(prefix + key, [prefix + f for f in fields]))
            kind = _hints(cls)[key]
            if isinstance(kind, type) and issubclass(kind, Config):
                if not isinstance(value, Mapping):
                    raise ConfigError(
                        f"Parameter group '{prefix + key}' must be a mapping, got {value!r}."
                    )
                value = kind.from_dict(value, prefix=f"{prefix}{key}.")
            kwargs[key] = value
        try:
            return cls(**kwargs)
        except ConfigError as error:
            if prefix and not str(error).startswith(f"Parameter '{prefix}"):
                raise ConfigError(
                    str(error).replace("Parameter '", f"Parameter '{prefix}", 1)
                ) from None
            raise

    @classmethod
    def from_yaml(cls: type[T], path: str | Path) -> T:
        """Build from a YAML file, plain or in ROS form (``/**: ros__parameters: ...``).

        Raises:
            ConfigError: If the file cannot be read or holds a wrong name or value.
        """
        tree = read_yaml(path)
        if tree is None:
            tree = {}
        if not isinstance(tree, Mapping):
            raise ConfigError(f"Parameter file '{path}' must hold a mapping, got {tree!r}.")
        for value in tree.values():
            if isinstance(value, Mapping) and "ros__parameters" in value:
                tree = value["ros__parameters"] or {}
                break
        try:
            return cls.from_dict(tree)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Return nested plain values; ``from_dict`` of it gives an equal config."""
        return {
            f.name: value.to_dict() if isinstance(value, Config) else value
            for f in dataclasses.fields(self)
            for value in (getattr(self, f.name),)
        }

    @classmethod
    def parameters(cls, prefix: str = "") -> Iterator[Parameter]:
        """Yield every parameter with its dotted name, in the order of declaration."""
        hints = _hints(cls)
        for field in dataclasses.fields(cls):
            kind = hints[field.name]
            if isinstance(kind, type) and issubclass(kind, Config):
                yield from kind.parameters(f"{prefix}{field.name}.")
            else:
                is_list = typing.get_origin(kind) is tuple
                element = typing.get_args(kind)[0] if is_list else kind
                info = field.metadata["param"]
                yield Parameter(prefix + field.name, element, is_list, field.default, info)


def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in values.items():
        head, _, tail = str(key).partition(".")
        if not tail:
            if isinstance(out.get(head), dict):
                if not isinstance(value, Mapping):
                    raise ConfigError(f"Parameter group '{head}' must be a mapping, got {value!r}.")
                value = {**out[head], **value}
            out[head] = value
            continue
        inner = out.setdefault(head, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"Parameter '{key}' is given twice: as a group and as a value.")
        out[head] = {**inner, tail: value}
    return out


def _unknown(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else f" Known: {', '.join(sorted(known))}."
    return f"Parameter '{name}' is unknown.{hint}"


def _checked(name: str, kind: Any, field: dataclasses.Field[Any], owner: Config) -> Any:
    value, info = getattr(owner, field.name), field.metadata["param"]
    if typing.get_origin(kind) is tuple:
        element = typing.get_args(kind)[0]
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            value = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise ConfigError(f"Parameter '{name}' must be a list, got {value!r}.")
        if info.lengths and len(value) not in info.lengths:
            lengths = " or ".join(map(str, info.lengths))
            raise ConfigError(
                f"Parameter '{name}' must hold {lengths} values, got {len(value)}: {value!r}."
            )
        return tuple(_scalar(name, element, v, info) for v in value)
    return _scalar(name, kind, value, info)


def _scalar(name: str, kind: type, value: Any, info: ParamInfo) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ConfigError(f"Parameter '{name}' must be of type {kind.__name__}, got {value!r}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"Parameter '{name}' must be finite, got {value!r}.")
    if info.choices and value not in info.choices:
        allowed = ", ".join(map(repr, info.choices))
        raise ConfigError(f"Parameter '{name}' must be one of {allowed}, got {value!r}.")
    number = float(value) if isinstance(value, (int, float)) else math.nan
    if (info.ge is not None and number < info.ge) or (info.le is not None and number > info.le):
        low = "-inf" if info.ge is None else info.ge
        high = "inf" if info.le is None else info.le
        raise ConfigError(
            f"Parameter '{name}' must lie in [{low}, {high}] {info.unit}".rstrip()
            + f", got {value!r}."
        )
    return value
