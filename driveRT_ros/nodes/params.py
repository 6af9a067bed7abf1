"""ROS parameters made from a configuration class: declared, described, checked in one loop."""

from __future__ import annotations

import difflib
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.node import Node
from rclpy.parameter import Parameter as RosParameter

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.schema import Config, Parameter

_INT64 = 2**63 - 1
_OF_ROS = ("use_sim_time", "qos_overrides.", "start_type_description_service")


def range_text(parameter: Parameter) -> str:
    """Return the values a parameter takes, such as ``[0.0, 1.0] m, 6 values``; may be empty."""
    info, parts = parameter.info, []
    if info.choices:
        parts.append("one of " + ", ".join(map(repr, info.choices)))
    if info.ge is not None or info.le is not None:
        low = "-inf" if info.ge is None else info.ge
        high = "inf" if info.le is None else info.le
        parts.append(f"[{low}, {high}]" + (f" {info.unit}" if info.unit else ""))
    elif info.unit:
        parts.append(info.unit)
    if info.lengths:
        parts.append(" or ".join(map(str, info.lengths)) + " values")
    return ", ".join(parts)


def descriptor(parameter: Parameter, *, dynamic: bool) -> ParameterDescriptor:
    """Return what ROS tools show of a parameter: text, range, and when it takes effect."""
    when = "Takes effect at once." if dynamic else "Takes effect at configure."
    out = ParameterDescriptor(
        name=parameter.name,
        description=f"{parameter.info.doc} {when}",
        additional_constraints=range_text(parameter),
        # An int is accepted where a float is meant, which ROS would call a change of type;
        # the type is checked by the configuration class instead.
        dynamic_typing=True,
    )
    ge, le = parameter.info.ge, parameter.info.le
    if not parameter.is_list and (ge is not None or le is not None):
        if parameter.kind is int:
            low, high = (int(-_INT64 if ge is None else ge), int(_INT64 if le is None else le))
            out.integer_range = [IntegerRange(from_value=low, to_value=high)]
        elif parameter.kind is float:
            big = sys.float_info.max
            low_f, high_f = float(-big if ge is None else ge), float(big if le is None else le)
            out.floating_point_range = [FloatingPointRange(from_value=low_f, to_value=high_f)]
    return out


class NodeParameters:
    """The parameters of one node, and the configuration they stand for.

    Args:
        node: Node that has declared none of them yet.
        config_class: Declares names, defaults, texts and ranges.
        dynamic: Names, or group prefixes ending in a dot, that may change while configured.
        on_change: Called with the new configuration after a change at run time.
        complete: Fills in, at start, what was left open; the parameters show the result.

    Raises:
        ConfigError: If a value given at start has an unknown name, a wrong type or range.
    """

    def __init__(
        self,
        node: Node,
        config_class: type[Config],
        *,
        dynamic: Iterable[str] = (),
        on_change: Callable[[Any], None] | None = None,
        complete: Callable[[Any], Any] | None = None,
    ) -> None:
        self._class = config_class
        self._dynamic = tuple(dynamic)
        self._on_change = on_change
        self.frozen = False
        known = {p.name: p for p in config_class.parameters()}
        given = _given_at_start(node, known)
        self.config = config_class.from_dict(given)
        if complete is not None:
            self.config = complete(self.config)
        for parameter in known.values():
            value = _value_of(self.config, parameter.name)
            what = descriptor(parameter, dynamic=self.is_dynamic(parameter.name))
            value = list(value) if parameter.is_list else value
            node.declare_parameter(parameter.name, value, what, ignore_override=True)
        node.add_on_set_parameters_callback(self._on_set)

    def is_dynamic(self, name: str) -> bool:
        """Return whether a parameter may change while the node is configured."""
        return any(name == d or (d.endswith(".") and name.startswith(d)) for d in self._dynamic)

    def _on_set(self, changes: list[RosParameter[Any]]) -> SetParametersResult:
        known = {p.name for p in self._class.parameters()}
        ours = {p.name: p.value for p in changes if p.name in known}
        for name in ours:
            if self.frozen and not self.is_dynamic(name):
                return SetParametersResult(
                    successful=False,
                    reason=f"Parameter '{name}' needs cleanup and configure: it is in use; "
                    f"its value stays {_value_of(self.config, name)!r}.",
                )
        if not ours:
            return SetParametersResult(successful=True)
        values = {n: _value_of(self.config, n) for n in known} | ours
        try:
            self.config = self._class.from_dict(values)
        except ConfigError as error:
            return SetParametersResult(successful=False, reason=f"{error} The old value is kept.")
        if self._on_change is not None:
            self._on_change(self.config)
        return SetParametersResult(successful=True)


def _given_at_start(node: Node, known: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return the values of command line and parameter files; refuse a name nobody knows."""
    # rclpy shows overrides through no public call, and would ignore a misspelt one in silence.
    overrides = node._parameter_overrides
    given = {}
    for name, parameter in overrides.items():
        if name in known:
            # An empty YAML list has no type, and arrives as no value at all.
            empty = parameter.value is None and known[name].is_list
            given[name] = [] if empty else parameter.value
        elif not name.startswith(_OF_ROS):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else " The option --help lists all."
            raise ConfigError(f"Parameter '{name}' is unknown.{hint}")
    return given


def _value_of(config: Config, name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def help_text(config_class: type[Config]) -> str:
    """Return one line a parameter: name, default, text and values."""
    lines = []
    for parameter in config_class.parameters():
        values = range_text(parameter)
        note = f" ({values})" if values else ""
        default = list(parameter.default) if parameter.is_list else parameter.default
        lines.append(f"  {parameter.name} = {default!r}\n      {parameter.info.doc}{note}")
    return "\n".join(lines)


def yaml_text(config_class: type[Config], node_name: str) -> str:
    """Return a commented parameter file that holds every parameter at its default."""
    lines = [
        f"# Every parameter of {node_name} at its default. The defaults live in the code, so a",
        "# file need only name what differs; a test keeps this one equal to the code.",
        "/**:",
        "  ros__parameters:",
    ]
    open_groups: list[str] = []
    for parameter in config_class.parameters():
        *groups, leaf = parameter.name.split(".")
        for depth, name in enumerate(groups):
            if open_groups[: depth + 1] != groups[: depth + 1]:
                lines.append("  " * (depth + 2) + f"{name}:")
        open_groups = groups
        indent = "  " * (len(groups) + 2)
        values = range_text(parameter)
        text = parameter.info.doc + (f" ({values})" if values else "")
        lines += textwrap.wrap(
            text, 100, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
        )
        lines.append(f"{indent}{leaf}: {_yaml_value(parameter.default)}")
    return "\n".join(lines) + "\n"


def _yaml_value(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)
