"""Where frames come from: the simulator, a data set, or a bag that exists already."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driveRT_ros.commands.common import amount, progress, whole_number
from driveRT_ros.core.config import NUSCENES_FORWARD_YAW_DEG
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.io import kitti

if TYPE_CHECKING:
    from driveRT_ros.core.frame import SceneFrame

FORWARD = "input.forward_yaw_deg"
"""Parameter that says where ahead is in a cloud."""

PARAMETERS: dict[str, dict[str, Any]] = {
    "sim": {FORWARD: NUSCENES_FORWARD_YAW_DEG},
    "nuscenes": {FORWARD: NUSCENES_FORWARD_YAW_DEG},
    "kitti": {
        FORWARD: kitti.FORWARD_YAW_DEG,
        "densification_params.num_past_frames": 0,  # single frames without pose
        "input.intensity_scale": 255.0,  # reflectance is 0..1
    },
    "bag": {},  # of any sensor
}
"""What the detector needs to know about the clouds of a source."""


def add_source_arguments(parser: argparse.ArgumentParser, *, bag: bool, required: bool) -> None:
    """Add the options that choose and size a source.

    Args:
        parser: Parser of the command.
        bag: Offer ``--bag``.
        required: One source must be named; else the simulator is the default.
    """
    parser.set_defaults(camera_defaults={})  # a command may ask for other images than the default
    group = parser.add_argument_group("source")
    one = group.add_mutually_exclusive_group(required=required)
    if required:
        one.add_argument("--sim", action="store_true", help="simulate a drive")
    if bag:
        one.add_argument("--bag", metavar="PATH", help="a rosbag2 folder or storage file")
    one.add_argument("--nuscenes", metavar="ROOT", help="a nuScenes data set")
    one.add_argument("--kitti", metavar="ROOT", help="a KITTI object data set")
    group.add_argument(
        "--sim-seed", type=whole_number, default=0, metavar="N", help="seed of the drive"
    )
    group.add_argument("--sim-config", metavar="YAML", help="parameter file of the simulator")
    group.add_argument(
        "--duration", type=amount, default=2.0, metavar="S", help="simulated seconds (default: 2)"
    )
    group.add_argument(
        "--cameras", action="store_true", help="simulate the images of six cameras, too"
    )
    group.add_argument(
        "--version",
        dest="nuscenes_version",
        default="",
        metavar="NAME",
        help="nuScenes tables, such as v1.0-mini (default: the only ones)",
    )


def source_name(args: argparse.Namespace) -> str:
    """Return ``bag``, ``nuscenes``, ``kitti`` or ``sim``."""
    for name in ("bag", "nuscenes", "kitti"):
        if getattr(args, name, None):
            return name
    return "sim"


def write_source_bag(args: argparse.Namespace, path: Path, frames: int = 0) -> int:
    """Write the chosen source (not a bag) as a rosbag2, with a progress bar.

    Args:
        args: Parsed options of :func:`add_source_arguments`.
        path: Bag folder to write.
        frames: At most so many frames; 0 takes all.

    Returns:
        The number of frames.

    Raises:
        ConfigError: If the source is not what its option says, or holds no frame.
    """
    from driveRT_ros.io.scene_bag import write_scene_bag

    name = source_name(args)
    source, total = _open_source(args, name)
    if frames:
        source, total = islice(source, frames), min(total or frames, frames)
    count = 0

    def counted(items: Iterable[SceneFrame]) -> Iterator[SceneFrame]:
        nonlocal count
        with progress() as bar:
            task = bar.add_task("simulate" if name == "sim" else f"convert {name}", total=total)
            for item in items:
                yield item
                count += 1
                bar.update(task, completed=count)

    write_scene_bag(counted(source), path)
    if not count:
        raise ConfigError(f"The source '{getattr(args, name, name)}' holds no frame.")
    return count


def _open_source(args: argparse.Namespace, name: str) -> tuple[Iterable[SceneFrame], int | None]:
    if args.cameras and name != "sim":
        raise ConfigError(
            f"Option --cameras is for simulated drives; {name} brings the images that it has."
        )
    if name == "nuscenes":
        from driveRT_ros.io.nuscenes import NuScenes

        return NuScenes(args.nuscenes, args.nuscenes_version).frames(), None
    if name == "kitti":
        return kitti.frames(args.kitti), None
    from driveRT_ros.sim.config import SimConfig
    from driveRT_ros.sim.simulate import simulate

    base = SimConfig.from_yaml(args.sim_config) if args.sim_config else SimConfig()
    sweeps = max(1, round(args.duration * base.rate_hz))
    values = base.to_dict() | {"seed": args.sim_seed, "num_sweeps": sweeps}
    if args.cameras:
        own_choice = {} if args.sim_config else args.camera_defaults
        values["cameras"] = values["cameras"] | {"enabled": True} | own_choice
    return simulate(SimConfig.from_dict(values)), sweeps
