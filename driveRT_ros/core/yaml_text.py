"""YAML as ROS reads it, with errors that are one sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from driveRT_ros.core.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """Plain values; ``1e3`` is a number, as in ROS and YAML 1.2, not a text as in YAML 1.1."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def parse_yaml(text: str) -> Any:
    """Return the value of a text.

    Raises:
        ConfigError: If it is no YAML. The sentence says where and why; the caller adds of what.
    """
    try:
        return yaml.load(text, _Loader)  # a SafeLoader: it makes plain values only
    except yaml.YAMLError as error:
        raise ConfigError(_sentence(error)) from None


def read_yaml(path: str | Path, what: str = "Parameter file") -> Any:
    """Return the value of a file, None where it is empty.

    Args:
        path: The file.
        what: What it is, for the message.

    Raises:
        ConfigError: If it cannot be read.
    """
    try:
        return parse_yaml(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        reason = "does not exist"
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError as error:
        reason = f"is no text in UTF-8: byte {error.start} is {error.object[error.start]:#04x}"
    except ConfigError as error:
        reason = f"is no YAML: {error}"
    raise ConfigError(f"{what} '{path}' {reason.rstrip('.')}.")


def _sentence(error: yaml.YAMLError) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return " ".join(str(error).split())
    return f"{problem} in line {mark.line + 1}, column {mark.column + 1}"
