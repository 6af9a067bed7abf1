"""Show the versions and devices of this machine, and what is inside a bag or a Plan."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform

from rich.table import Table

from driveRT_ros import __version__
from driveRT_ros.commands.common import console
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.nodes.transport import chosen_transport, transport_setting

HELP = "show versions, devices, ROS availability and the contents of a bag or a Plan"
EXAMPLES = """\
examples:
  drivert info
  drivert info my_bag
  drivert info plan.json                         what drivert tune and drivert qualify found
  drivert info my_bag --sparsity --frames 20     what explains the time that frames take
"""

_MESSAGE_PACKAGES = (
    "sensor_msgs",
    "nav_msgs",
    "visualization_msgs",
    "diagnostic_msgs",
    "vision_msgs",
    "tf2_msgs",
    "grid_map_msgs",
    "autoware_perception_msgs",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``drivert info``."""
    parser.add_argument(
        "bag", nargs="?", metavar="BAG", help="a rosbag2 folder or storage file; or a Plan, .json"
    )
    group = parser.add_argument_group("sparsity")
    group.add_argument(
        "--sparsity", action="store_true", help="voxels, neighbours, tiles and leaves of its clouds"
    )
    group.add_argument("--topic", default="", help="the point cloud topic, if a bag has several")
    group.add_argument("--frames", type=int, metavar="N", help="at most N clouds (default: 10)")
    group.add_argument("--config", metavar="YAML", help="parameter file: grid and past sweeps")


def execute(args: argparse.Namespace) -> int:
    """Run ``drivert info``."""
    if args.sparsity and not args.bag:
        raise ConfigError("Option --sparsity needs a bag.")
    given = [
        name for name in ("topic", "frames", "config") if getattr(args, name) not in (None, "")
    ]
    if given and not args.sparsity:
        raise ConfigError(f"Option --{given[0]} is for --sparsity: add that, or leave it out.")
    if not args.bag:
        _show_machine()
        return 0
    if args.bag.endswith(".json") and not args.sparsity:
        from driveRT_ros.commands.plan_table import show_plan

        show_plan(args.bag)
        return 0
    _show_bag(args.bag)
    if args.sparsity:
        from driveRT_ros.commands.bag_sparsity import show_sparsity

        show_sparsity(args)
    return 0


def _show_machine() -> None:
    import torch

    table = Table(box=None, show_header=False)
    table.add_row("driveRT_ros", __version__)
    table.add_row("Python", platform.python_version())
    for name in ("torch", "numpy", "rosbags"):
        table.add_row(name, importlib.metadata.version(name))
    table.add_row("CPU", f"{platform.machine()}, {os.cpu_count()} cores")
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            table.add_row(f"cuda:{i}", torch.cuda.get_device_name(i))
    else:
        table.add_row("GPU", "none that torch can use")
    table.add_row("rclpy", _ros())
    missing = [name for name in _MESSAGE_PACKAGES if importlib.util.find_spec(name) is None]
    table.add_row("messages", f"missing: {', '.join(missing)}" if missing else "all found")
    unset = f"not chosen; drivert and the launch files set {transport_setting(os.environ)}"
    table.add_row("transport", chosen_transport(os.environ) or unset)
    console.print(table)


def _ros() -> str:
    if importlib.util.find_spec("rclpy") is None:
        return "not found: source a ROS 2 install, or run 'make demo' once"
    try:
        version = importlib.metadata.version("rclpy")
    except importlib.metadata.PackageNotFoundError:
        version = "of a ROS install"
    distro = os.environ.get("ROS_DISTRO")
    return f"{version}, ROS_DISTRO={distro}" if distro else version


def _show_bag(path: str) -> None:
    from driveRT_ros.io.bag import BagReader

    with BagReader(path) as reader:
        topics, counts, warnings = reader.topics, reader.message_counts, reader.warnings
        duration = ((reader.end_ns or 0) - (reader.start_ns or 0)) * 1e-9
    console.print(f"{path}: {sum(counts.values())} messages, {duration:.3f} s")
    width = max(map(len, topics), default=0)
    for topic in sorted(topics):
        console.print(f"  {topic:<{width}}  {counts[topic]:>8}  {topics[topic]}")
    for warning in warnings:
        console.print(f"  {warning}")
