"""What several commands share: output folders, detector parameters, progress, node log lines."""

from __future__ import annotations

import argparse
import importlib.util
import math
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.schema import Config
from driveRT_ros.core.yaml_text import parse_yaml
from driveRT_ros.nodes.processes import NodeProcess, Supervisor

if TYPE_CHECKING:
    from driveRT_ros.core.config import LidarConfig

C = TypeVar("C", bound=Config)

console = Console(highlight=False, soft_wrap=True)

LIDAR_NODE = "lidar_node"
DETECTIONS = f"/{LIDAR_NODE}/output/detections"
RECORDED = (
    f"{DETECTIONS}:vision_msgs/msg/Detection3DArray",
    f"/{LIDAR_NODE}/output/object[s]",  # a pattern: absent where autoware_perception_msgs is
    f"/{LIDAR_NODE}/output/markers:visualization_msgs/msg/MarkerArray",
    f"/{LIDAR_NODE}/debug/*",
    "/diagnostics:diagnostic_msgs/msg/DiagnosticArray",
)
"""What a run keeps; the first entry is the one that is counted."""


def dropped_topic(detections: str) -> str:
    """Return where the LiDAR node of a detections topic names the clouds that it drops."""
    node, output, _ = detections.rpartition("/output/")
    return f"{node}/debug/dropped_cloud" if output else ""


def require_ros() -> None:
    """Refuse a command that needs ROS where there is none.

    Raises:
        ConfigError: It says how to get it.
    """
    if importlib.util.find_spec("rclpy") is None:
        raise ConfigError(
            "ROS 2 is not available to this Python: source a ROS 2 install, or run 'make install' "
            "in the repository and use .venv/bin/drivert."
        )


def whole_number(text: str) -> int:
    """Return a number from 0 on that an option is given; argparse names the option."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"takes a whole number from 0 on, got '{text}'")
    return int(text)


def amount(text: str) -> float:
    """Return a finite number from 0 on that an option is given; argparse names the option."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"takes a number from 0 on, got '{text}'")
    return value


def add_detector_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that configure the detector."""
    group = parser.add_argument_group("detector")
    group.add_argument("--config", metavar="YAML", help="parameter file, plain or in ROS form")
    group.add_argument(
        "--checkpoint", metavar="FILE", help="weights; default: those of the package"
    )
    group.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="one parameter, such as post_process_params.score_thresholds=[0.2]; repeatable",
    )


def add_output_arguments(parser: argparse.ArgumentParser, default: str) -> None:
    """Add the options that name the output folder."""
    group = parser.add_argument_group("output")
    group.add_argument(
        "--out", metavar="DIR", help=f"folder for the results (default: {default}/<date>-<time>)"
    )
    group.add_argument(
        "--overwrite", action="store_true", help="empty DIR first if an earlier run made it"
    )
    parser.set_defaults(out_parent=default)


def output_folder(args: argparse.Namespace) -> Path:
    """Make and return the output folder.

    Raises:
        ConfigError: If it is not empty, or holds what no earlier run made.
    """
    out = Path(args.out or Path(args.out_parent) / time.strftime("%Y%m%d-%H%M%S"))
    marker = out / "drivert.txt"
    if out.exists() and not out.is_dir():
        raise ConfigError(f"Output folder '{out}' is a file; choose another folder.")
    # The marker alone is what a command leaves that found out too late that it cannot be done.
    if out.is_dir() and any(path != marker for path in out.iterdir()):
        if not (args.overwrite and marker.is_file()):
            hint = (
                "choose another folder"
                if args.overwrite or not marker.is_file()
                else "choose another folder or add --overwrite"
            )
            raise ConfigError(f"Output folder '{out}' is not empty; {hint}.")
        _keep_inputs(args, out)
        _delete(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        marker.write_text(f"Results of 'drivert {args.command}'; safe to delete.\n")
    except OSError as error:
        raise ConfigError(f"Output folder '{out}' cannot be written: {error}.") from None
    return out.resolve()


_READ = ("bag", "results", "config", "checkpoint", "plan", "sim_config")


def _keep_inputs(args: argparse.Namespace, out: Path) -> None:
    for name in _READ:
        given = getattr(args, name, None)
        if given and out.resolve() in (Path(given).resolve(), *Path(given).resolve().parents):
            raise ConfigError(
                f"Option --overwrite would delete '{given}', which --{name.replace('_', '-')} "
                "names; choose another folder."
            )


def _delete(out: Path) -> None:
    try:
        shutil.rmtree(out)
    except OSError as error:
        raise ConfigError(f"Output folder '{out}' cannot be emptied: {error}.") from None


def detector_config(
    args: argparse.Namespace, forced: Mapping[str, Any] | None = None
) -> LidarConfig:
    """Return the detector's parameters: defaults, then file, ``forced``, then single options.

    Where none name weights, those of the package are chosen, as the node does.

    Args:
        args: With ``config``, ``checkpoint`` and ``set``.
        forced: Dotted names that the command or the data needs.

    Raises:
        ConfigError: On an unknown name or a value that cannot be used.
    """
    from driveRT_ros.core.config import LidarConfig
    from driveRT_ros.models.shipped import with_shipped_weights

    config = config_from(LidarConfig, args.config, args.checkpoint, args.set, forced)
    return with_shipped_weights(config)


def config_from(
    kind: type[C],
    file: str | None,
    checkpoint: str | None,
    single: Sequence[str],
    forced: Mapping[str, Any] | None = None,
) -> C:
    """Return parameters: defaults, then a file, then ``forced``, then single options.

    Args:
        kind: Class of the configuration.
        file: Parameter file, if any.
        checkpoint: Weights, if any.
        single: ``NAME=VALUE`` each.
        forced: Dotted names that the command or the data needs.

    Raises:
        ConfigError: On an unknown name or a value that cannot be used.
    """
    base = kind.from_yaml(file) if file else kind()
    values = {p.name: config_value(base, p.name) for p in kind.parameters()}
    values |= forced or {}
    if checkpoint:
        if not Path(checkpoint).is_file():
            missing = "is a folder" if Path(checkpoint).is_dir() else "does not exist"
            raise ConfigError(f"Checkpoint '{checkpoint}' {missing}; name a file of weights.")
        values["checkpoint_path"] = str(Path(checkpoint).resolve())
    for entry in single:
        name, equals, text = entry.partition("=")
        if not equals:
            raise ConfigError(f"Option --set takes NAME=VALUE, got '{entry}'.")
        try:
            values[name.strip()] = parse_yaml(text)
        except ConfigError as error:
            raise ConfigError(
                f"Option --set '{entry}' has a value that is no YAML: {error}."
            ) from None
    return kind.from_dict(values)


def config_value(config: Any, dotted: str) -> Any:
    """Return the value behind a dotted parameter name."""
    for part in dotted.split("."):
        config = getattr(config, part)
    return config


def write_parameter_file(config: Config, path: Path) -> Path:
    """Write the parameters as ``ros2 run ... --params-file`` takes them.

    Args:
        config: What the node gets.
        path: File to write.

    Returns:
        ``path``.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(v) for key, v in value.items()}
        return list(value) if isinstance(value, tuple) else value

    tree = {"/**": {"ros__parameters": plain(config.to_dict())}}
    path.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    return path


def progress() -> Progress:
    """Return a progress display of steps with elapsed and remaining time."""
    return Progress(
        TextColumn("{task.description:<22}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )


_PLAYED = re.compile(r"(\d+) of (\d+) (?:clouds|images)\b")


def follow_clouds(supervisor: Supervisor, process: NodeProcess, label: str) -> None:
    """Show the progress that a node prints until its process ends with exit code 0.

    Raises:
        ProcessFailed: If any process of the supervisor fails meanwhile.
    """
    with progress() as bar:
        task = bar.add_task(label, total=None)
        while True:
            ended = process.popen.poll() is not None
            supervisor.check()
            seen = _PLAYED.findall(process.log())
            if seen:
                done, total = map(int, seen[-1])
                bar.update(task, completed=done, total=total or None)
            if ended:
                return
            time.sleep(0.2)
